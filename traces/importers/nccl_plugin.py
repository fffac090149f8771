"""NCCL profiler-plugin files to the tables of each rank.

One row per operation that NCCL carried out, with the algorithm, protocol and channels that it
chose, joined to its kernel: the one that CUPTI saw, else the span of its channels on the device.
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
from foretrace.traces.importers.loose import text, whole
from foretrace.traces.importers.nccl_ranks import Member, Ranks, find_ranks
from foretrace.traces.importers.nccl_records import (
    API,
    CHANNEL,
    INIT,
    KERNEL,
    LAUNCH,
    OPERATION,
    PROXY,
    Event,
    read_events,
)
from foretrace.traces.importers.tables import counts_of, event_table, span_of
from foretrace.traces.manifest import RankInfo
from foretrace.traces.salvage import Losses
from foretrace.traces.store import RankTables

NAME = "NCCL profiler plugin"

_LINES = re.compile(rb'"type"\s*:\s*"(?:ProfilerLifecycle|ncclProfile\w+)"')
_CHROME = re.compile(
    rb'"cat"\s*:\s*"(?:GROUP|GROUP_API|COLL|COLL_API|P2P|P2P_API|KERNEL_LAUNCH)"\s*,\s*"ph"'
)
_KINDS = {API: "host_op", LAUNCH: "runtime", KERNEL: "kernel", PROXY: "other"}
_DTYPES = {
    "ncclInt8": ("Char", 1),
    "ncclUint8": ("Byte", 1),
    "ncclInt32": ("Int", 4),
    "ncclUint32": ("UInt32", 4),
    "ncclInt64": ("Long", 8),
    "ncclUint64": ("UInt64", 8),
    "ncclFloat16": ("Half", 2),
    "ncclFloat32": ("Float", 4),
    "ncclFloat64": ("Double", 8),
    "ncclBfloat16": ("BFloat16", 2),
    "ncclFloat8e4m3": ("Float8_e4m3fn", 1),
    "ncclFloat8e5m2": ("Float8_e5m2", 1),
}


@dataclass(slots=True)
class Work:
    """One operation of NCCL and where it ran.

    Attributes:
        event: of the operation.
        channels: its channels on the device.
        kernel: number of its kernel among the rows, -1 for none.
        call: number of the API call among the rows, -1 for none.
        exec_ns: from the first channel's start to the last one's stop; -1 unknown.
    """

    event: Event
    channels: list[Event] = field(default_factory=list)
    kernel: int = -1
    call: int = -1
    exec_ns: int = -1


def sniff(head: bytes, name: str) -> bool:
    """Whether a file that begins with ``head`` was written by a profiler plugin."""
    del name
    return bool(_LINES.search(head) or _CHROME.search(head))


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
    events = list(read_events(json_lines(chunks, losses), losses))
    _give_kernels_to_launchers(events)
    members = [m for m in map(_member, events) if m is not None]
    if not any(e.what == OPERATION for e in events):
        raise TraceFormatError("it holds no operations")
    sizes = _sizes(members)
    ranks = find_ranks(
        Member(m.who, m.comm, m.rank, sizes.get(m.comm, m.size), m.name) for m in members
    )
    by_device: dict[Hashable, list[Event]] = {}
    for event in events:
        if event.who in ranks.of:
            by_device.setdefault(event.who, []).append(event)
        elif event.what in (KERNEL, CHANNEL, LAUNCH):
            losses.add("event of an unknown device (left out)", 1, event.name)
    tables = [_tables(who, own, ranks) for who, own in by_device.items()]
    if not tables:
        raise TraceFormatError("none of its operations tells its rank and communicator")
    tables[0].info.dropped[:0] = losses.as_list()
    return tables


def _give_kernels_to_launchers(events: list[Event]) -> None:
    """A kernel runs where it was launched: the device that CUPTI's record names is the first."""
    launcher = {(e.process, e.link): e.who for e in events if e.what == LAUNCH and e.link >= 0}
    for event in events:
        if event.what == KERNEL:
            event.who = launcher.get((event.process, event.link), event.who)


def _member(event: Event) -> Member | None:
    if event.who is None or not event.comm or event.rank < 0:
        return None
    size = whole(event.details.get("nranks"), 0) if event.what == INIT else 0
    name = text(event.details.get("commName")) if event.what == INIT else ""
    return Member(event.who, event.comm, event.rank, size, name)


def _sizes(members: list[Member]) -> dict[int, int]:
    """Members of each communicator: as its creation says, else as many as the file shows."""
    sizes: dict[int, int] = {}
    for member in members:
        shown = max(member.size, member.rank + 1)
        sizes[member.comm] = max(sizes.get(member.comm, 0), shown)
    return sizes


def _tables(who: Hashable, events: list[Event], ranks: Ranks) -> RankTables:
    losses = Losses()
    rows = [e for e in events if e.what in _KINDS and _lasts(e, losses)]
    works = _works(events, losses)
    _join_calls(works, rows)
    _join_kernels(works, rows, events)
    spans = [w for w in works if w.kernel < 0 and w.exec_ns >= 0]
    for work in spans:
        work.kernel = len(rows)
        rows.append(_span(work))
    table, place = event_table(_columns(rows))
    groups, of_comm = ranks.groups(who)
    operations = [_operation(w, place, of_comm, groups.groups) for w in works]
    losses.add("operation without a kernel or a span on the device", _without(works))
    info = RankInfo(
        rank=ranks.of[who],
        world_size=ranks.world_size,
        rank_from=ranks.rank_from,
        backend="nccl",
        groups=groups.groups,
        span_ns=span_of(table),
        counts=counts_of(table) if len(table) else {},
        dropped=losses.as_list(),
        labels={"clock": "NCCL profiler plugin"},
    )
    return RankTables(info, table, as_table(operations))


def _without(works: list[Work]) -> int:
    return sum(w.kernel < 0 for w in works)


def _lasts(event: Event, losses: Losses) -> bool:
    """Whether begin and end of an event are known, and in this order."""
    if event.start_ns < 0:
        losses.add("event with a start of 0 (left out)", 1, event.name)
    elif event.stop_ns < 0:
        losses.add("event with a stop of 0 (left out)", 1, event.name)
    elif event.stop_ns < event.start_ns:
        losses.add("event that ends before it starts (left out)", 1, event.name)
    else:
        return True
    return False


def _works(events: list[Event], losses: Losses) -> list[Work]:
    """Operations with their channels; addresses are used again, the last use before counts."""
    works: list[Work] = []
    by_address: dict[str, Work] = {}
    for event in sorted(events, key=_begin):
        if event.what == OPERATION:
            work = Work(event)
            works.append(work)
            if event.address:
                by_address[event.address] = work
        elif event.what == CHANNEL:
            parent = by_address.get(event.parent)
            if parent is None:
                losses.add("channel of an unknown operation (left out)", 1, event.parent)
            else:
                parent.channels.append(event)
    for work in works:
        _measure(work, losses)
    return works


def _begin(event: Event) -> tuple[int, int]:
    """Order in time; of what begins at once the operation comes before its channels."""
    return event.start_ns, 0 if event.what == OPERATION else 1


def _measure(work: Work, losses: Losses) -> None:
    whole = [c for c in work.channels if 0 <= c.start_ns <= c.stop_ns]
    losses.add(
        "channel without both of its times (the other channels count)",
        len(work.channels) - len(whole),
        work.event.name,
    )
    if whole:
        work.exec_ns = max(c.stop_ns for c in whole) - min(c.start_ns for c in whole)
        work.channels = whole


def _join_calls(works: list[Work], rows: list[Event]) -> None:
    """Each operation to the API call that asked for it: the last use of the address before."""
    calls: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        if row.what == API:
            calls.setdefault(row.address, []).append(i)
    for work in works:
        before = [
            i for i in calls.get(work.event.parent, []) if rows[i].start_ns <= work.event.start_ns
        ]
        if before:
            work.call = max(before, key=lambda i: rows[i].start_ns)


def _join_kernels(works: list[Work], rows: list[Event], events: list[Event]) -> None:
    """Through the group that asked for an operation: its launch, and the launch's kernel."""
    launches: dict[str, list[Event]] = {}
    for event in events:
        if event.what == LAUNCH and event.link >= 0:
            launches.setdefault(event.parent, []).append(event)
    kernels = {r.link: i for i, r in enumerate(rows) if r.what == KERNEL}
    for work in works:
        group = rows[work.call].parent if work.call >= 0 else ""
        near = launches.get(group, [])
        if near:
            launch = min(near, key=lambda e: abs(e.start_ns - work.event.start_ns))
            work.kernel = kernels.get(launch.link, -1)


def _span(work: Work) -> Event:
    """A row for an operation whose kernel nobody saw: its channels, from first to last."""
    start = min(c.start_ns for c in work.channels)
    name = f"nccl{work.event.name}"
    return Event(KERNEL, name, start, start + work.exec_ns, comm=work.event.comm)


def _columns(rows: list[Event]) -> dict[str, Any]:
    comms = {comm: i for i, comm in enumerate(dict.fromkeys(r.comm for r in rows))}
    device = [r.what == KERNEL for r in rows]
    return {
        "kind": [_KINDS[r.what] for r in rows],
        "name": [_name(r) for r in rows],
        "start_ns": np.array([r.start_ns for r in rows], np.int64),
        "dur_ns": np.array([r.stop_ns - r.start_ns for r in rows], np.int64),
        "thread": [-1 if d else r.thread for d, r in zip(device, rows, strict=True)],
        "device": [
            max(whole(r.details.get("deviceId"), 0), 0) if d else -1 for d, r in _each(rows)
        ],
        "stream": [_stream(r, comms[r.comm]) if d else -1 for d, r in _each(rows)],
        "correlation": [r.link for r in rows],
    }


def _each(rows: list[Event]) -> list[tuple[bool, Event]]:
    return [(r.what == KERNEL, r) for r in rows]


def _name(event: Event) -> str:
    return f"nccl:{event.name}" if event.what == API else event.name


def _stream(event: Event, comm: int) -> int:
    """The stream as CUPTI names it; where it saw nothing, one for each communicator."""
    return whole(event.details.get("cuptiStream"), comm)


def _operation(work: Work, place: Any, of_comm: dict[int, int], groups: list[Any]) -> Operation:
    event, details = work.event, work.event.details
    dtype, width = _DTYPES.get(text(details.get("dtype")), ("", 0))
    count = whole(details.get("count"))
    size = count * width if 0 <= count < 1 << 50 and width else -1
    kind = collective_kind(event.name) or "unknown"
    row = of_comm.get(event.comm, -1)
    channels = whole(details.get("channels"))
    meta = Metadata(
        group_name=hex(event.comm),
        group_size=groups[row].size if row >= 0 else -1,
        group_rank=event.rank,
        dtype=dtype,
        seq=whole(details.get("seq")),
        comm_id=event.comm,
        peer=_peer(details, kind, groups[row].ranks if row >= 0 else []),
        algorithm=text(details.get("algo")),
        protocol=text(details.get("proto")),
        channels=channels if 0 <= channels < 1 << 15 else -1,
        exec_ns=work.exec_ns,
    )
    operation = Operation(
        kind=kind,
        work_event=int(place[work.kernel]) if work.kernel >= 0 else -1,
        source="nccl",
        meta=meta,
        call_event=int(place[work.call]) if work.call >= 0 else -1,
        group=row,
        bytes_in=size,
        bytes_out=size,
    )
    _fill_sides(operation, size)
    return operation


def _peer(details: dict[str, Any], kind: str, members: list[int]) -> int:
    number = details.get("peer") if kind in P2P_KINDS else details.get("root")
    rooted = kind in (*P2P_KINDS, "broadcast", "reduce", "gather", "scatter")
    known = rooted and isinstance(number, int) and 0 <= number < len(members)
    return members[number] if known and isinstance(number, int) else -1


def _fill_sides(operation: Operation, size: int) -> None:
    """NCCL counts what one rank sends in an all-gather and gets from a reduce-scatter."""
    members = operation.meta.group_size
    if operation.kind == "all_gather":
        operation.bytes_out = -1
        fill_by_group_size(operation)
    elif operation.kind == "reduce_scatter":
        operation.bytes_in = of_all(size, members)
    elif operation.kind == "send":
        operation.bytes_out = 0
    elif operation.kind == "recv":
        operation.bytes_in = 0
