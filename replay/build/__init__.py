"""From a trace set to a job graph: every rule once, over all ranks.

The order: read all ranks, match their collectives, align their clocks, learn what host gaps are
typical, then add host tasks, device tasks and the waits between them, and finally the constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foretrace.replay.align import ANCHOR_KINDS, Alignment, align
from foretrace.replay.build import calls as calls_
from foretrace.replay.build import context as context_
from foretrace.replay.build import device as device_
from foretrace.replay.build import gaps, handoffs, host, identity, rendezvous, streamwaits
from foretrace.replay.build import steps as steps_
from foretrace.replay.build.buckets import with_bucket_waits
from foretrace.replay.build.columns import (
    NETWORK,
    NameTable,
    RankCollectives,
    RankEvents,
    read_rank,
)
from foretrace.replay.build.communicators import communicators
from foretrace.replay.build.constants import Constant, with_constants
from foretrace.replay.build.context import Context
from foretrace.replay.build.launches import launches
from foretrace.replay.build.messages import messages
from foretrace.replay.build.parts import GraphParts
from foretrace.replay.build.recorded import build_recorded, has_own_graph
from foretrace.replay.build.syncs import blocking_calls
from foretrace.replay.graph import I64, Collectives, EdgeKind, JobGraph, StepMarks
from foretrace.traces.errors import GraphError
from foretrace.traces.store import TraceSet

SYNC_COST_PERCENTILE = 10.0
"""The own cost of a blocking call: what the quickest of them took, having nothing to wait for."""


@dataclass(frozen=True, slots=True)
class Build:
    """A job graph and what was learnt while it was built.

    Attributes:
        graph: the job graph.
        alignment: clock corrections.
        constants: delays of launches, streams, events and synchronisations.
        dropped: why edges were left out -> how many.
        unmatched: rank -> communication operations without a counterpart; their durations
            still contain waiting for ranks that were not recorded.
    """

    graph: JobGraph
    alignment: Alignment
    constants: tuple[Constant, ...]
    dropped: dict[str, int]
    unmatched: dict[int, int]


@dataclass(frozen=True, slots=True)
class Recording:
    """All ranks of a job as arrays.

    Attributes:
        tables: rank -> its events and communication operations.
        groups: rank -> global ranks of each of its recorded groups.
        names: name table of the events.
    """

    tables: dict[int, tuple[RankEvents, RankCollectives]]
    groups: dict[int, list[tuple[int, ...]]]
    names: NameTable


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank while its graph is built."""

    events: RankEvents
    collectives: RankCollectives
    call_of: I64
    calls: calls_.Calls
    boundaries: gaps.Boundaries
    handoffs: handoffs.Handoffs
    marks: steps_.Marks


def build_graph(trace: TraceSet, ranks: Sequence[int] | None = None) -> JobGraph:
    """The job graph of a trace set.

    Args:
        trace: an open trace set.
        ranks: only these ranks; all by default.

    Raises:
        GraphError: nothing to replay, or the trace's order contradicts itself.
    """
    return build(trace, ranks).graph


def build(trace: TraceSet, ranks: Sequence[int] | None = None) -> Build:
    """Like :func:`build_graph`, with what was learnt on the way."""
    chosen = list(trace.ranks if ranks is None else ranks)
    if has_own_graph(trace, chosen):
        found = build_recorded(trace, chosen)
        return Build(found.graph, found.alignment, (), {}, found.unmatched)
    return build_from_arrays(read(trace, ranks))


def read(trace: TraceSet, ranks: Sequence[int] | None = None) -> Recording:
    """Load the ranks of a trace set."""
    names = NameTable()
    chosen = list(trace.ranks if ranks is None else ranks)
    tables = {r: read_rank(trace, r, names) for r in chosen}
    groups = {r: [tuple(g.ranks) for g in trace.info(r).groups] for r in chosen}
    return Recording(tables, groups, names)


def build_from_arrays(recording: Recording, borrow: frozenset[int] = frozenset()) -> Build:
    """The job graph of arrays that are already in memory.

    Args:
        recording: all ranks.
        borrow: ranks that take their constants from the others.

    Raises:
        GraphError: nothing to replay, or the recorded order contradicts itself.
    """
    tables, groups, names = recording.tables, recording.groups, recording.names
    if not any(len(e.kind) for e, _ in tables.values()):
        raise GraphError("the trace set holds no events; record or import it again")
    tables, matches, alignment = _match_and_align(tables, groups)
    prepared = {r: _prepare(e, c, names.names()) for r, (e, c) in tables.items()}
    if not any(len(p.marks.step) for p in prepared.values()):
        prepared = {r: _as_one_step(p) for r, p in prepared.items()}
    parts = GraphParts()
    halves, exec_ns = _split(prepared, matches)
    context = _host_context(prepared, names)
    begins, finishes, marks = {}, {}, []
    for rank, p in prepared.items():
        begins[rank], finishes[rank], found = _add_rank(
            parts, p, exec_ns[rank], context, names.names()
        )
        marks += found
    member = _member_tasks(prepared, matches, begins)
    rendezvous.add_rendezvous(
        parts, matches, halves, member, _member_tasks(prepared, matches, finishes),
        names.number(context_.JOIN_NAME),
    )  # fmt: skip
    finish = _member_tasks(prepared, matches, finishes)
    rendezvous.label_collectives(parts, matches, np.concatenate([member, finish]))
    table = _collective_table(prepared, matches)
    step, of_rank, begin, end = np.array(marks, np.int64).reshape(-1, 4).T
    steps = StepMarks(step.astype(np.int32), of_rank.astype(np.int32), begin, end)
    graph = parts.finish(names.names(), table, matches.groups, steps)
    graph, constants = with_constants(graph, borrow)
    unmatched = {r: len(rows) for r, rows in matches.unmatched.items()}
    return Build(graph, alignment, constants, parts.dropped, unmatched)


def _match_and_align(
    tables: dict[int, tuple[RankEvents, RankCollectives]],
    groups: dict[int, list[tuple[int, ...]]],
) -> tuple[dict[int, tuple[RankEvents, RankCollectives]], identity.Matches, Alignment]:
    """Match collectives, solve for the clocks and move every rank's times onto one clock."""
    comms = [
        c
        for rank, (events, collectives) in tables.items()
        for c in communicators(rank, events, collectives, groups[rank])
    ]
    sent = messages({r: c for r, (_, c) in tables.items()}, groups)
    matches = identity.match(comms, sent, {})
    alignment = _clocks(tables, matches)
    if any(alignment.offset_ns.values()):
        # With the clocks known, groups of few operations can be told apart by their ends.
        matches = identity.match(comms, sent, alignment.offset_ns)
        alignment = _clocks(tables, matches)
    moved = {}
    for rank, (events, collectives) in tables.items():
        start, end = (alignment.correct(rank, t) for t in (events.start, events.end))
        # Device work keeps its recorded duration to the nanosecond, and the rules for streams
        # allow for what a clock drifts meanwhile. Rows of a thread must go on touching.
        device = events.is_device_work
        end[device] = start[device] + (events.end - events.start)[device]
        moved[rank] = (replace(events, start=start, end=end), collectives)
    return moved, matches, alignment


def _clocks(
    tables: dict[int, tuple[RankEvents, RankCollectives]], matches: identity.Matches
) -> Alignment:
    """Clock offsets from the ends of the matched collectives that are fit for it."""
    keep = np.isin(matches.kind, ANCHOR_KINDS)
    count = np.diff(matches.ptr)
    member = np.repeat(keep, count)
    ptr = np.concatenate([[0], np.cumsum(count[keep])]).astype(np.int64)
    return align(ptr, matches.rank[member], _member_times(tables, matches, "end")[member])


def _member_times(
    tables: dict[int, tuple[RankEvents, RankCollectives]], matches: identity.Matches, which: str
) -> I64:
    """Start or end of each matched member's work row."""
    result = np.zeros(len(matches.rank), np.int64)
    for rank, (events, collectives) in tables.items():
        mine = matches.rank == rank
        result[mine] = getattr(events, which)[collectives.work[matches.operation[mine]]]
    return result


def _prepare(events: RankEvents, collectives: RankCollectives, names: tuple[str, ...]) -> _Rank:
    """What the rules of one rank share."""
    call_of = calls_.device_call_rows(events)
    collectives = with_bucket_waits(events, collectives, call_of, names)
    calls = calls_.find_calls(events, collectives, call_of, names)
    b = gaps.boundaries(events)
    blocking = calls.row[calls.blocks]
    return _Rank(
        events=events,
        collectives=collectives,
        call_of=call_of,
        calls=calls,
        boundaries=b,
        handoffs=handoffs.find_handoffs(b, blocking, _network(events), names),
        marks=steps_.recorded_marks(events, names),
    )


def _network(events: RankEvents) -> handoffs.Network:
    """Communication that the rank's host threads carry out, by end."""
    rows = np.flatnonzero(events.device == NETWORK)
    rows = rows[np.argsort(events.end[rows], kind="stable")]
    return handoffs.Network(rows, events.end[rows])


def _as_one_step(p: _Rank) -> _Rank:
    """A recording without step marks is one step."""
    step = np.full_like(p.events.step, steps_.ONLY_STEP)
    waits = p.calls.row[p.calls.blocks]
    marks = steps_.whole_recording(p.events, waits)
    return replace(p, events=replace(p.events, step=step), marks=marks)


def _split(
    prepared: dict[int, _Rank], matches: identity.Matches
) -> tuple[rendezvous.Split, dict[int, I64]]:
    """Execution of every communication row: from its match, else all of its duration."""
    tables = {r: (p.events, p.collectives) for r, p in prepared.items()}
    root = np.full(len(matches.rank), -1, np.int32)
    for rank, p in prepared.items():
        mine = matches.rank == rank
        root[mine] = p.collectives.peer[matches.operation[mine]]
    start, end = (_member_times(tables, matches, which) for which in ("start", "end"))
    halves = rendezvous.split(matches, start, end, root)
    exec_ns = {}
    for rank, p in prepared.items():
        work = p.collectives.work[p.collectives.work >= 0]
        column = np.full(len(p.events.kind), -1, np.int64)
        column[work] = p.events.end[work] - p.events.start[work]
        mine = matches.rank == rank
        column[p.collectives.work[matches.operation[mine]]] = halves.exec_ns[mine]
        exec_ns[rank] = column
    return halves, exec_ns


def _host_context(prepared: dict[int, _Rank], names: NameTable) -> Context:
    """Typical gaps over all ranks, and the begin of the window."""
    samples = []
    for p in prepared.values():
        gap = p.boundaries.gap.copy()
        gap[p.handoffs.gap] = 0
        threads = p.handoffs.worker >= 0
        use = gap > 0
        samples.append((p.boundaries.pair[use], gap[use]))
        time = p.boundaries.time
        began = p.handoffs.burst_first >= 0
        wake = np.concatenate([
            (time[p.handoffs.burst_first] - time[p.handoffs.gap])[began],
            (time[p.handoffs.gap + 1] - time[p.handoffs.burst_last])[threads],
        ])  # fmt: skip
        samples.append((np.full(len(wake), gaps.WAKE_PAIR, np.int64), wake))
    starts = [int(p.events.start.min()) for p in prepared.values() if len(p.events.start)]
    return Context(
        typical=gaps.typical_gaps(samples),
        sync_cost_ns=_sync_cost(prepared),
        origin_ns=min(starts),
        wake_name=names.number(context_.WAKE_NAME),
        stall_name=names.number(context_.STALL_NAME),
        skew_name=names.number(context_.SKEW_NAME),
        outside_name=names.number(context_.OUTSIDE_NAME),
    )


def _sync_cost(prepared: dict[int, _Rank]) -> int:
    """What a blocking call itself costs, ns, pooled over all ranks: never its waiting.

    The time from its start, or from the last device work that ended inside it, to its return.
    """
    took = []
    for p in prepared.values():
        events = p.events
        rows = p.calls.row[p.calls.blocks & ~p.calls.launches]
        done = np.sort(events.end[events.is_device_work])
        at = np.searchsorted(done, events.end[rows], side="right") - 1
        last = done[at] if len(done) else events.start[rows]
        ready = np.where(at >= 0, np.maximum(last, events.start[rows]), events.start[rows])
        took.append(events.end[rows] - ready)
    every = np.concatenate(took)
    return int(np.percentile(every, SYNC_COST_PERCENTILE)) if len(every) else 0


def _add_rank(
    parts: GraphParts,
    p: _Rank,
    exec_ns: I64,
    context: Context,
    names: tuple[str, ...],
) -> tuple[I64, I64, list[tuple[int, ...]]]:
    """Add one rank's tasks and its own waits; returns its device tasks and step marks."""
    events = p.events
    anchors = host.find_anchors(events, p.boundaries, p.calls, p.handoffs, p.marks)
    tasks = host.add_host_tasks(parts, events, p.boundaries, anchors, context)
    device = device_.add_device_tasks(parts, events, p.call_of, tasks, exec_ns, context)
    launched = launches(events, device, p.call_of)
    source, target = blocking_calls(events, p.calls, launched, p.call_of, names)
    parts.add_edges(device.finish[source], tasks.block[target], EdgeKind.SYNC)
    work, wait = calls_.network_waits(events, p.collectives)
    parts.add_edges(device.finish[work], tasks.block[wait], EdgeKind.SYNC)
    work = p.handoffs.work
    done = np.where(work >= 0, device.finish[work], -1)
    parts.add_edges(done, tasks.resume, EdgeKind.SYNC)
    produced, consumed = streamwaits.collective_waits(events, p.collectives, launched, p.call_of)
    recorded = streamwaits.recorded_stream_waits(events, launched, p.call_of)
    inferred = streamwaits.inferred_stream_waits(events, p.collectives, launched, p.call_of, names)
    for rows in (produced, consumed, recorded, inferred):
        (source, target), contradicted = streamwaits.uncontradicted(events, rows)
        parts.count_dropped("stream wait against the recorded order", contradicted)
        parts.add_edges(device.finish[source], device.begin[target], EdgeKind.EVENT)
    begin, end, step = tasks.mark_begin, tasks.mark_end, p.marks.step
    if not events.is_host.any() and len(device.queue):
        begin, end = device_.add_device_marks(parts, events, device, context)
        step = np.array([steps_.ONLY_STEP], np.int32)
    marks = zip(step, [events.rank] * len(begin), begin, end, strict=True)
    return device.begin, device.finish, list(marks)


def _member_tasks(
    prepared: dict[int, _Rank], matches: identity.Matches, tasks: dict[int, I64]
) -> I64:
    """Task of each matched member."""
    result = np.full(len(matches.rank), -1, np.int64)
    for rank, p in prepared.items():
        mine = matches.rank == rank
        result[mine] = tasks[rank][p.collectives.work[matches.operation[mine]]]
    return result


def _collective_table(prepared: dict[int, _Rank], matches: identity.Matches) -> Collectives:
    """The graph's table of matched operations."""
    size = np.full(len(matches.rank), -1, np.int64)
    for rank, p in prepared.items():
        mine = matches.rank == rank
        size[mine] = p.collectives.bytes[matches.operation[mine]]
    largest = np.maximum.reduceat(size, matches.ptr[:-1]) if len(size) else size
    return Collectives(matches.kind, matches.group, largest, matches.confidence)


__all__ = ["Build", "Recording", "build", "build_from_arrays", "build_graph", "read"]
