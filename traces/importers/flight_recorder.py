"""PyTorch flight recorder dumps (pickle, or its JSON form) to the tables of one rank.

A dump is the ring buffer of one rank's last communication calls: sizes, groups, order, state,
and times as far as they were taken. Its file is called ``<prefix><rank>`` and does not tell
the rank itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from foretrace.traces.classify import collective_kind
from foretrace.traces.collectives.model import Metadata, Operation
from foretrace.traces.collectives.sizes import fill_by_group_size
from foretrace.traces.collectives.table import as_table
from foretrace.traces.dtypes import element_bytes, scalar_type
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.groups import GroupTable, ranks_of
from foretrace.traces.importers import ranks
from foretrace.traces.importers.flight_recorder_json import load_json
from foretrace.traces.importers.plain_pickle import MOST_BYTES, load_plain
from foretrace.traces.importers.tables import counts_of, event_table, span_of
from foretrace.traces.manifest import RankInfo
from foretrace.traces.salvage import Losses
from foretrace.traces.store import RankTables

NAME = "PyTorch flight recorder dump"

_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_KEYS = (b"collective_seq_id", b"pg_config", b"nccl_comm_state", b"pg_status")
_PEERS = re.compile(r"(?<!\d)(\d{1,9})\s*(?:->|<-)\s*(\d{1,9})(?!\d)")
_LAST_NUMBER = re.compile(r"(\d{1,6})(?:\.(?:json|pkl|pickle))?$")
_GLOO = "gloo:"
_LATEST_NS = 1 << 62


def sniff(head: bytes, name: str) -> bool:
    """Whether a file that begins with ``head`` is a flight recorder dump."""
    del name
    start = head.lstrip(b" \t\r\n")
    is_json = start[:1] == b"{" and b'"traceEvents"' not in head
    quoted = [b'"' + k + b'"' for k in _KEYS]
    if is_json:
        return any(k in head for k in quoted) and b'"nodes"' not in head
    return bool(_PICKLE.match(head)) and any(k in head for k in _KEYS)


def rank_of_name(path: str) -> int:
    """The rank that ends a file's name, as in ``nccl_trace_rank_7``; -1 if none does."""
    name = re.split(r"[/\\:]", path)[-1]
    match = _LAST_NUMBER.search(name)
    return int(match.group(1)) if match else ranks.rank_of_name(path)


def read(chunks: Iterable[bytes], *, python: bool = False) -> RankTables:
    """Read one dump; the rank is -1, because a dump does not tell it.

    Args:
        chunks: the uncompressed content, in pieces of any size.
        python: has no meaning here.

    Raises:
        TraceFormatError: it is no plain data, damaged, or holds no calls.
    """
    del python
    losses = Losses()
    dump = _load(chunks, losses)
    entries = dump.get("entries")
    if not isinstance(entries, list) or not entries:
        raise TraceFormatError(
            "it holds no calls; set TORCH_FR_BUFFER_SIZE (before torch 2.10 "
            "TORCH_NCCL_TRACE_BUFFER_SIZE) above 0 to have them recorded"
        )
    groups = _groups(dump.get("pg_config"))
    calls = [c for e in entries if (c := _call(e, groups, losses)) is not None]
    calls.sort(key=lambda c: c.order)
    events, place = event_table(_columns(calls))
    operations = [_operation(c, place, groups) for c in calls]
    _note_unfinished(calls, losses)
    info = RankInfo(
        rank=-1,
        world_size=max((g.size for g in groups.groups if _is_world(g.description)), default=0),
        backend=_backend(calls),
        groups=groups.groups,
        span_ns=span_of(events),
        counts=counts_of(events),
        dropped=losses.as_list(),
        versions=_versions(dump),
        labels=_status(dump.get("pg_status")),
    )
    return RankTables(info, events, as_table(operations))


def _load(chunks: Iterable[bytes], losses: Losses) -> dict[str, Any]:
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > MOST_BYTES:
            raise TraceFormatError(f"longer than {MOST_BYTES} bytes; refused")
        parts.append(chunk)
    data = b"".join(parts)
    is_json = data.lstrip()[:1] == b"{"
    dump = load_json(data, losses) if is_json else load_plain(data, losses)
    if not isinstance(dump, dict):
        raise TraceFormatError(f"expected a dictionary, found {type(dump).__name__}")
    return dump


@dataclass(slots=True)
class _Call:
    """One entry of the ring buffer."""

    name: str
    state: str
    order: tuple[int, int]
    thread: int
    created_ns: int
    start_ns: int
    dur_ns: int
    shapes: str
    dtypes: str
    kind: str
    lane: int
    meta: Metadata = field(default_factory=Metadata)
    bytes_in: int = -1
    bytes_out: int = -1
    rows: tuple[int, int] = (-1, -1)


def _groups(config: Any) -> GroupTable:
    """Groups by ``pg_config``: ``{"0": {"name": "0", "desc": "dp", "ranks": "[0, 1]"}}``."""
    table = GroupTable(0)
    for name, entry in config.items() if isinstance(config, dict) else ():
        if isinstance(entry, dict):
            members = ranks_of(entry.get("ranks"))
            label = str(entry.get("name", name))
            if label or members:
                table.row(label, members, len(members), str(entry.get("desc", "")))
    return table


def _is_world(description: str) -> bool:
    return description in ("default_pg", "default")


def _integer(value: Any) -> int:
    """A whole number that fits, -1 for anything else."""
    if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isdecimal():
        value = int(value)
    fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    return value if fits else -1


def _time(entry: dict[str, Any], key: str) -> int:
    """A time, ns, to which a duration can be added; -1 if there is none."""
    time = _integer(entry.get(key))
    return time if 0 < time < _LATEST_NS else -1


def _call(entry: Any, groups: GroupTable, losses: Losses) -> _Call | None:
    created = _time(entry, "time_created_ns") if isinstance(entry, dict) else -1
    if created <= 0:
        losses.add("entry without a time of creation (left out)", 1, entry)
        return None
    name = str(entry.get("profiling_name") or "unknown")
    meta = Metadata(collective=name, seq=_seq(entry))
    group, description = _group_name(entry)
    row = groups.row(group, [], 0, description)
    meta.group_name, meta.group_description = group, description
    if row >= 0:
        meta.group_ranks = groups.groups[row].ranks
        meta.group_size = groups.groups[row].size or -1
        groups.groups[row].description = groups.groups[row].description or description
    peers = _PEERS.search(name)
    if peers:
        meta.group_rank, meta.root = int(peers.group(1)), int(peers.group(2))
    sizes = [_sizes(entry, side, meta) for side in ("output", "input")]
    start, duration = _execution(entry, losses)
    return _Call(
        name=name,
        state=str(entry.get("state") or "unknown")[:40],
        order=(created, _integer(entry.get("record_id"))),
        thread=_integer(entry.get("thread_id")),
        created_ns=created,
        start_ns=start,
        dur_ns=duration,
        shapes=_json(entry.get("input_sizes")),
        dtypes=_json(entry.get("input_dtypes")),
        kind=collective_kind(name.split(":", 1)[-1]) or "unknown",
        lane=max(_integer(entry.get("pg_id")), 0),
        meta=meta,
        bytes_in=sizes[1],
        bytes_out=sizes[0],
    )


def _seq(entry: dict[str, Any]) -> int:
    key = "p2p_seq_id" if entry.get("is_p2p") is True else "collective_seq_id"
    return _integer(entry.get(key, entry.get("seq_id")))


def _group_name(entry: dict[str, Any]) -> tuple[str, str]:
    """Name and description of the group; old dumps give a bare name or only a number."""
    named = entry.get("process_group")
    if isinstance(named, list | tuple) and named:
        texts = [str(v) for v in named]
        return texts[0], texts[1] if len(texts) > 1 else ""
    value = named if isinstance(named, str) else entry.get("pg_name", entry.get("pg_id"))
    return ("", "") if value is None else (str(value), "")


def _sizes(entry: dict[str, Any], side: str, meta: Metadata) -> int:
    """Bytes of all tensors of one side, -1 if not recorded."""
    shapes, types = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
    if not isinstance(shapes, list | tuple) or not isinstance(types, list | tuple) or not types:
        return -1
    width = element_bytes(str(types[0]))
    meta.dtype = scalar_type(str(types[0])) or str(types[0])
    total = 0
    for shape in shapes:
        dims = list(shape) if isinstance(shape, list | tuple) else [-1]
        if not all(isinstance(d, int) and 0 <= d < 1 << 48 for d in dims):
            return -1
        elements = 1
        for dim in dims:
            elements = min(elements * dim, 1 << 62)
        total += elements * width
    return total if width and total < 1 << 62 else -1


def _execution(entry: dict[str, Any], losses: Losses) -> tuple[int, int]:
    """Start and duration of the work, ns; (-1, -1) where it was not seen to begin and end."""
    start = _time(entry, "time_discovered_started_ns")
    end = _time(entry, "time_discovered_completed_ns")
    milliseconds = entry.get("duration_ms")
    if end > 0 and isinstance(milliseconds, int | float) and 0 <= milliseconds < 1e12:
        duration = round(milliseconds * 1e6)
        return max(end - duration, start), duration
    if start <= 0 or end <= 0:
        return -1, -1
    if end < start:
        losses.add("negative duration set to 0 (kept)", 1, str(entry.get("profiling_name")))
    return start, max(end - start, 0)


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode() if isinstance(value, list | tuple) else ""
    except (TypeError, ValueError, OverflowError, RecursionError):
        return ""


def _columns(calls: list[_Call]) -> dict[str, Any]:
    """A row for every call, and one for its work where that was seen to begin and end."""
    columns: dict[str, list[Any]] = {
        k: []
        for k in ("kind", "name", "start_ns", "dur_ns", "thread", "device", "stream", "shapes")
    }
    columns["dtypes"] = []

    def add(*values: Any) -> int:
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
        return len(columns["kind"]) - 1

    for call in calls:
        host = call.name.startswith(_GLOO)
        issued = add(
            *("host_op", call.name, call.created_ns, 0, call.thread, -1, -1),
            *(call.shapes, call.dtypes),
        )
        work = -1
        if call.start_ns >= 0:
            kind, thread = ("annotation", 1 + call.lane) if host else ("kernel", -1)
            device, stream = (-1, -1) if host else (0, call.lane)
            work = add(
                *(kind, call.name, call.start_ns, call.dur_ns, thread, device, stream), "", ""
            )
        call.rows = (issued, work)
    if not calls:
        raise TraceFormatError("it holds no call with a time of creation")
    return dict(columns)


def _operation(call: _Call, place: np.ndarray, groups: GroupTable) -> Operation:
    meta = call.meta
    issued, work = (int(place[row]) if row >= 0 else -1 for row in call.rows)
    operation = Operation(
        kind=call.kind,
        work_event=work,
        source="flight_recorder",
        meta=meta,
        call_event=issued,
        bytes_in=call.bytes_in,
        bytes_out=call.bytes_out,
        group=groups.row(meta.group_name, meta.group_ranks, max(meta.group_size, 0)),
    )
    if meta.root >= 0 and meta.root < len(meta.group_ranks):
        meta.peer = meta.group_ranks[meta.root]
    elif meta.root >= 0 and _is_world(meta.group_description):
        meta.peer = meta.root
    if call.kind == "send":
        operation.bytes_out = 0
    elif call.kind == "recv":
        operation.bytes_in = 0
    fill_by_group_size(operation)
    return operation


def _note_unfinished(calls: list[_Call], losses: Losses) -> None:
    for call in calls:
        if call.start_ns < 0:
            what = f"{call.name} of group {call.meta.group_name} #{call.meta.seq}"
            losses.add(f"call without times of its work (state {call.state})", 1, what)


def _backend(calls: list[_Call]) -> str:
    found = {c.name.split(":", 1)[0] for c in calls if ":" in c.name}
    return found.pop() if len(found) == 1 else ""


def _versions(dump: dict[str, Any]) -> dict[str, str]:
    known = {"flight_recorder": dump.get("version"), "nccl": dump.get("comm_lib_version")}
    known["nccl"] = known["nccl"] or dump.get("nccl_version")
    return {k: v for k, v in known.items() if isinstance(v, str) and v}


def _status(status: Any) -> dict[str, str]:
    """Last operations of each group: what was enqueued, started and completed."""
    labels = {}
    for name, entry in status.items() if isinstance(status, dict) else ():
        if isinstance(entry, dict):
            parts = (f"{str(k).removesuffix('_collective')} {v}" for k, v in entry.items())
            labels[f"group {name}"] = ", ".join(parts)[:200]
    return labels
