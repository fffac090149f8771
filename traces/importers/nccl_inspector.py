"""NCCL Inspector dumps (one JSON object per line, versions 4 and 5) to the tables of each rank.

A dump tells how long each operation took. Only verbose dumps tell when; otherwise an
operation is put before the moment at which it was dumped, in its order.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foretrace.traces.classify import collective_kind
from foretrace.traces.collectives.model import P2P_KINDS, Metadata, Operation
from foretrace.traces.collectives.sizes import fill_by_group_size, of_all
from foretrace.traces.collectives.table import as_table
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers.json_lines import json_lines
from foretrace.traces.importers.loose import any_whole, nanoseconds, objects, text, whole
from foretrace.traces.importers.nccl_ranks import Member, Ranks, find_ranks
from foretrace.traces.importers.tables import NO_TIMES, counts_of, event_table, span_of
from foretrace.traces.manifest import RankInfo
from foretrace.traces.salvage import Losses
from foretrace.traces.store import RankTables

NAME = "NCCL Inspector dump"

_MARKERS = re.compile(rb'"(?:coll_perf|p2p_perf|dump_stats)"\s*:')
_HEADER = re.compile(rb'"header"\s*:')
_BEFORE_DUMP = NO_TIMES + " of operations in the dump: put before the moment of the dump"
_KEYS = ("coll_perf", "p2p_perf")
_EARLIEST_NS = -(1 << 61)  # damaged durations may add up to more than 64 bits


@dataclass(slots=True)
class Record:
    """One operation of a dump.

    Attributes:
        member: the device and its place in the communicator.
        kind: of the operation.
        label: name of the operation as dumped.
        perf: what was dumped about it, without the prefix of its keys.
        host: host name.
        dump_ns: when it was dumped.
        start_ns: when it began; -1 unknown.
        dur_ns: how long it took; -1 unknown.
    """

    member: Member
    kind: str
    label: str
    perf: dict[str, Any]
    host: str
    dump_ns: int
    start_ns: int = -1
    dur_ns: int = -1


@dataclass(slots=True)
class _Context:
    """Header and metadata; newer dumps give them once for all records that follow."""

    header: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, None] = field(default_factory=dict)

    def update(self, line: dict[str, Any]) -> None:
        for key in ("header", "metadata"):
            if isinstance(line.get(key), dict):
                setattr(self, key, line[key])
        version = self.metadata.get("inspector_output_format_version")
        if version:
            self.versions[str(version)] = None


def sniff(head: bytes, name: str) -> bool:
    """Whether a file that begins with ``head`` is a dump of the Inspector."""
    del name
    return (
        head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{"
        and bool(_MARKERS.search(head))
        and bool(_HEADER.search(head))
    )


def read(chunks: Iterable[bytes], *, python: bool = False) -> list[RankTables]:
    """Read one file, which may tell of several ranks.

    Args:
        chunks: the uncompressed text, in pieces of any size.
        python: has no meaning here.

    Raises:
        TraceFormatError: the text holds no operations.
    """
    del python
    losses = Losses()
    context = _Context()
    records = []
    for line in json_lines(chunks, losses):
        context.update(line)
        _note_drops(line, losses)
        record = _record(line, context, losses)
        if record is not None:
            records.append(record)
    if not records:
        raise TraceFormatError("it holds no operations")
    ranks = find_ranks(r.member for r in records)
    by_device: dict[Hashable, list[Record]] = {}
    for record in records:
        by_device.setdefault(record.member.who, []).append(record)
    tables = [_tables(who, own, ranks, context) for who, own in by_device.items()]
    tables[0].info.dropped[:0] = losses.as_list()
    return tables


def _note_drops(line: dict[str, Any], losses: Losses) -> None:
    """The plugin counts what its own buffers could not hold."""
    stats = line.get("dump_stats")
    for key, value in stats.items() if isinstance(stats, dict) else ():
        if "drop" in key and isinstance(value, int) and value > 0:
            losses.add("operations that the plugin itself dropped", value, key)


def _record(line: dict[str, Any], context: _Context, losses: Losses) -> Record | None:
    key = next((k for k in _KEYS if isinstance(line.get(k), dict)), "")
    if not key:
        if "dump_stats" not in line:
            losses.add("record of another kind (left out)", 1, line)
        return None
    prefix = key.split("_", maxsplit=1)[0]
    perf = {k.removeprefix(f"{prefix}_"): v for k, v in line[key].items()}
    header, metadata = context.header, context.metadata
    rank, size = whole(header.get("rank")), whole(header.get("n_ranks"))
    if not 0 <= rank < size < 1 << 24:
        losses.add("operation without rank and communicator (left out)", 1, line)
        return None
    host, pid = text(metadata.get("hostname")), whole(metadata.get("pid"), 0)
    member = Member(
        who=(host, pid) if pid else (host, pid, rank),
        comm=(any_whole(header.get("id")) or 0) & (1 << 64) - 1,
        rank=rank,
        size=size,
        name=text(header.get("comm_name")),
    )
    label = text(line[key].get(prefix))
    record = Record(
        member=member,
        kind=collective_kind(label) or "unknown",
        label=label,
        perf=perf,
        host=host,
        dump_ns=nanoseconds(metadata.get("dump_timestamp_us")),
    )
    _time(record, losses)
    return record


def _time(record: Record, losses: Losses) -> None:
    record.dur_ns = nanoseconds(record.perf.get("exec_time_us"))
    if record.dur_ns < 0:
        source = record.perf.get("timing_source")
        losses.add(
            "operation without a measured duration (kept without one)",
            1,
            f"{record.label} #{record.perf.get('sn')}, timing source {source}",
        )
    trace = record.perf.get("event_trace_ts")
    if isinstance(trace, dict):
        channels = objects(trace.get("kernel_events"))
        begins = [nanoseconds(c.get("kernel_start_ts")) for c in channels]
        losses.add("channel with a start of 0", sum(b < 0 for b in begins), record.label)
        losses.add(
            "channel with a stop of 0",
            sum(nanoseconds(c.get("kernel_stop_ts")) < 0 for c in channels),
            record.label,
        )
        known = [b for b in begins if b > 0] or [nanoseconds(trace.get("coll_start_ts"))]
        record.start_ns = min(known)


def _tables(who: Hashable, records: list[Record], ranks: Ranks, context: _Context) -> RankTables:
    losses = Losses()
    lasting = [r for r in records if r.dur_ns >= 0]
    _place(lasting, losses)
    streams = {comm: i for i, comm in enumerate(dict.fromkeys(r.member.comm for r in records))}
    events, place = event_table(
        {
            "kind": ["kernel"] * len(lasting),
            "name": [f"nccl{r.label}" for r in lasting],
            "start_ns": np.array([r.start_ns for r in lasting], np.int64),
            "dur_ns": np.array([r.dur_ns for r in lasting], np.int64),
            "device": np.zeros(len(lasting), np.int64),
            "stream": np.array([streams[r.member.comm] for r in lasting], np.int64),
        }
    )
    groups, rows = ranks.groups(who)
    row_of = {id(r): int(place[i]) for i, r in enumerate(lasting)}
    operations = []
    for record in sorted(records, key=lambda r: row_of.get(id(r), len(events))):
        row = rows[record.member.comm]
        members = groups.groups[row].ranks
        operations.append(_operation(record, row_of.get(id(record), -1), row, members))
    info = RankInfo(
        rank=ranks.of[who],
        world_size=ranks.world_size,
        rank_from=ranks.rank_from,
        host=records[0].host,
        backend="nccl",
        groups=groups.groups,
        span_ns=span_of(events),
        counts=counts_of(events),
        versions={"nccl_inspector": ", ".join(context.versions)} if context.versions else {},
        dropped=losses.as_list(),
    )
    return RankTables(info, events, as_table(operations))


def _place(records: list[Record], losses: Losses) -> None:
    """Put operations without times before their dump, one after the other."""
    unknown = [r for r in records if r.start_ns < 0]
    losses.add(_BEFORE_DUMP, len(unknown))
    free: dict[int, int] = {}
    for record in sorted(unknown, key=lambda r: (r.dump_ns, _sn(r)), reverse=True):
        comm = record.member.comm
        end = min(max(record.dump_ns, 0), free.get(comm, 1 << 62))
        record.start_ns = free[comm] = max(end - record.dur_ns, _EARLIEST_NS)


def _sn(record: Record) -> int:
    return whole(record.perf.get("sn"))


def _operation(record: Record, row: int, group: int, members: list[int]) -> Operation:
    perf, member = record.perf, record.member
    peer, channels = whole(perf.get("peer")), whole(perf.get("n_channels"))
    size = whole(perf.get("msg_size_bytes"))
    size = size if 0 <= size < 1 << 50 else -1
    meta = Metadata(
        group_name=hex(member.comm),
        group_size=member.size,
        group_rank=member.rank,
        seq=_sn(record),
        comm_id=member.comm,
        peer=members[peer] if 0 <= peer < len(members) else -1,
        algorithm=text(perf.get("algo")),
        protocol=text(perf.get("proto")),
        channels=channels if 0 <= channels < 1 << 15 else -1,
        exec_ns=record.dur_ns,
    )
    is_recv = record.kind == "recv"
    operation = Operation(
        kind=record.kind,
        work_event=row,
        source="inspector",
        meta=meta,
        group=group,
        bytes_in=0 if is_recv else size,
        bytes_out=size if is_recv or record.kind not in P2P_KINDS else 0,
    )
    if record.kind in ("all_gather", "reduce_scatter"):
        _by_message(operation, size)
    return operation


def _by_message(operation: Operation, size: int) -> None:
    """The message of an all-gather is what one rank puts in, of a reduce-scatter what it gets."""
    if operation.kind == "all_gather":
        operation.bytes_in, operation.bytes_out = size, -1
        fill_by_group_size(operation)
    else:
        operation.bytes_out = size
        operation.bytes_in = of_all(size, operation.meta.group_size)
