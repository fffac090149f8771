"""Tasks of host threads: work between device API calls, the calls, stalls and step marks.

Each thread becomes one chain. Its anchors are the launching and blocking calls, the step marks
and the points where it waits for another thread; what lies between two anchors is one task of
host work plus, where the trace shows one, a stall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.anchors import (
    BURST_FIRST,
    BURST_LAST,
    GIVE,
    RESUME,
    Anchors,
)
from foretrace.replay.build.columns import RankEvents
from foretrace.replay.build.context import Context
from foretrace.replay.build.gaps import WAKE_PAIR, Boundaries, TypicalGaps
from foretrace.replay.build.parts import GraphParts
from foretrace.replay.graph import I64, EdgeKind, TaskKind
from foretrace.replay.kernels import longest_gap


@dataclass(frozen=True, slots=True)
class HostTasks:
    """Where the tasks of one rank's host rows are.

    Attributes:
        issue: event row -> task that issues its device work (CALL), -1.
        posted: event row -> task after which a message is on its way, -1.
        block: event row -> task that waits for the device (SYNC), -1.
        mark_begin: MARK task at the begin of each step mark, shape ``(marks,)``.
        mark_end: MARK task at its end.
        resume: task at which each wait for another thread ends, shape ``(hand-offs,)``.
    """

    issue: I64
    posted: I64
    block: I64
    mark_begin: I64
    mark_end: I64
    resume: I64


def add_host_tasks(
    parts: GraphParts, events: RankEvents, b: Boundaries, anchors: Anchors, context: Context
) -> HostTasks:
    """Add the tasks and edges of one rank's host threads.

    Returns:
        Where the tasks of calls and marks are.
    """
    stalls = _stall_sums(b, context.typical)
    last, following = _successors(anchors)
    gap_end = np.where(last | anchors.resumes[following], anchors.end, anchors.start[following])
    excess = stalls(anchors.thread, anchors.end, gap_end)
    waits = anchors.cost >= 0
    usual = np.where(anchors.kind == TaskKind.SYNC, context.sync_cost_ns, anchors.cost)
    length = anchors.end - anchors.start
    inside = np.minimum(stalls(anchors.thread, anchors.start, anchors.end), length)
    own = np.where(waits, anchors.late, inside)
    cost = np.where(waits, usual, length - own)
    begin = np.where(waits, anchors.end - own - cost, anchors.start)
    lanes = [parts.lane(events.rank, -1, int(t)) for t in b.threads]
    shared = {
        "rank": np.full(len(anchors.row), events.rank, np.int32),
        "lane": np.array([*lanes, 0], np.int32)[anchors.thread],
        "step": _step_at(events, anchors),
    }
    name = np.where(anchors.row >= 0, events.name[anchors.row], context.wake_name)
    task = parts.add_tasks(
        anchors.kind, cost, begin, begin + cost, name=name, event=anchors.row, **shared
    )
    inside = _work_rows(b, anchors.thread, anchors.end, gap_end)
    operator = np.where(inside >= 0, events.name[inside], context.outside_name)
    stall = np.full_like(operator, context.stall_name)
    called = _append(parts, task, TaskKind.STALL, own, anchors.end - own, shared | {"name": stall})
    tail = _append(
        parts, called, TaskKind.HOST, gap_end - anchors.end - excess, anchors.end,
        shared | {"name": operator, "event": inside},
    )  # fmt: skip
    tail = _append(parts, tail, TaskKind.STALL, excess, gap_end - excess, shared | {"name": stall})
    parts.add_edges(tail[~last], task[following[~last]], EdgeKind.HOST_ORDER)
    _add_handoff_edges(parts, anchors, task, shared["lane"], context, events.rank)
    _add_skews(parts, anchors, task, shared["lane"], context, events.rank)
    return _where(events, anchors, task, called)


def _successors(anchors: Anchors) -> tuple[np.ndarray, I64]:
    """Which anchors are their thread's last, and the next anchor of each (itself for the last)."""
    count = len(anchors.thread)
    last = np.ones(count, bool)
    last[:-1] = anchors.thread[1:] != anchors.thread[:-1]
    return last, np.where(last, np.arange(count), np.arange(count) + 1)


def _append(
    parts: GraphParts,
    tail: I64,
    kind: TaskKind,
    dur_ns: I64,
    start_ns: I64,
    columns: dict[str, np.ndarray],
) -> I64:
    """Add a task behind each anchor's tail where its duration is positive; the new tails."""
    rows = np.flatnonzero(dur_ns > 0)
    dur, start = dur_ns[rows], start_ns[rows]
    some = {name: values[rows] for name, values in columns.items()}
    added = parts.add_tasks(kind, dur, start, start + dur, **some)
    parts.add_edges(tail[rows], added, EdgeKind.HOST_ORDER)
    result = tail.copy()
    result[rows] = added
    return result


def _stall_sums(b: Boundaries, typical: TypicalGaps) -> Callable[[I64, I64, I64], I64]:
    """A function that sums the stalls of a thread between two instants."""
    total = np.zeros(len(b.time) + 1, np.int64)
    np.cumsum(typical.excess(b.pair, b.gap), out=total[1:])

    def between(thread: I64, begin: I64, end: I64) -> I64:
        result = np.zeros(len(thread), np.int64)
        for t in range(len(b.threads)):
            rows = thread == t
            lo, hi = b.first[t], b.first[t + 1]
            first = lo + np.searchsorted(b.time[lo:hi], begin[rows], side="left")
            stop = lo + np.searchsorted(b.time[lo:hi], end[rows], side="left")
            result[rows] = total[np.maximum(stop, first)] - total[first]
        return result

    return between


def _work_rows(b: Boundaries, thread: I64, begin: I64, end: I64) -> I64:
    """The row that each stretch of host work is named after: the one inside its longest gap, -1."""
    result = np.full(len(thread), -1, np.int64)
    for t in range(len(b.threads)):
        rows = np.flatnonzero((thread == t) & (end > begin))
        lo, hi = b.first[t], b.first[t + 1]
        first = lo + np.searchsorted(b.time[lo:hi], begin[rows], side="left")
        stop = lo + np.searchsorted(b.time[lo:hi], end[rows], side="left")
        some = stop > first
        rows, first, stop = rows[some], first[some], stop[some]
        if len(rows):
            longest = longest_gap(b.gap, first, stop)
            result[rows] = b.inside[longest]
    return result


def _step_at(events: RankEvents, anchors: Anchors) -> np.ndarray:
    """Step of each anchor: its row's, else that of the last row that started before it."""
    latest = np.maximum(np.searchsorted(events.start, anchors.start, side="right") - 1, 0)
    row = np.where(anchors.row >= 0, anchors.row, latest)
    return events.step[row]


def _add_handoff_edges(
    parts: GraphParts,
    anchors: Anchors,
    task: I64,
    lane: np.ndarray,
    context: Context,
    rank: int,
) -> None:
    """The burst starts after the waiter gave way; the waiter goes on after the burst."""
    tagged = np.flatnonzero(anchors.tag >= 0)
    at = np.full((4, int(anchors.tag.max(initial=-1)) // 4 + 1), -1, np.int64)
    at[anchors.tag[tagged] % 4, anchors.tag[tagged] // 4] = tagged
    for giver, taker in ((GIVE, BURST_FIRST), (BURST_LAST, RESUME)):
        known = (at[giver] >= 0) & (at[taker] >= 0)
        source, target = at[giver][known], at[taker][known]
        count = len(source)
        wake = anchors.start[target] - anchors.end[source]
        over = context.typical.excess(np.full(count, WAKE_PAIR), wake)
        woken = parts.add_tasks(
            TaskKind.HOST, wake - over, anchors.end[source], anchors.end[source] + wake - over,
            rank=rank, lane=lane[target], name=context.wake_name,
        )  # fmt: skip
        parts.add_edges(task[source], woken, EdgeKind.THREAD)
        stalled = np.flatnonzero(over > 0)
        late = parts.add_tasks(
            TaskKind.STALL, over[stalled], anchors.start[target][stalled] - over[stalled],
            anchors.start[target][stalled], rank=rank, lane=lane[target][stalled],
            name=context.stall_name,
        )  # fmt: skip
        parts.add_edges(woken[stalled], late, EdgeKind.HOST_ORDER)
        woken[stalled] = late
        parts.add_edges(woken, task[target], EdgeKind.HOST_ORDER)


def _add_skews(
    parts: GraphParts,
    anchors: Anchors,
    task: I64,
    lane: np.ndarray,
    context: Context,
    rank: int,
) -> None:
    """The first anchor of each thread enters the window when it did: an input of the replay."""
    first = np.ones(len(task), bool)
    first[1:] = anchors.thread[1:] != anchors.thread[:-1]
    rows = np.flatnonzero(first & ~(anchors.resumes & (anchors.tag >= 0)))
    late = anchors.start[rows] - context.origin_ns
    origin = np.full(len(rows), context.origin_ns)
    skew = parts.add_tasks(
        TaskKind.SKEW, late, origin, anchors.start[rows], rank=rank, lane=lane[rows],
        name=context.skew_name,
    )  # fmt: skip
    parts.add_edges(skew, task[rows], EdgeKind.WINDOW)


def _where(events: RankEvents, anchors: Anchors, task: I64, called: I64) -> HostTasks:
    """Index the tasks of calls and marks by their event rows."""
    issue = np.full(len(events.kind), -1, np.int64)
    block = np.full(len(events.kind), -1, np.int64)
    calls, syncs = anchors.kind == TaskKind.CALL, anchors.kind == TaskKind.SYNC
    issue[anchors.row[calls]] = task[calls]
    posted = np.full(len(events.kind), -1, np.int64)
    posted[anchors.row[calls]] = called[calls]
    block[anchors.row[syncs]] = task[syncs]
    begins = np.flatnonzero((anchors.tag <= -2) & (anchors.tag % 2 == 0))
    ends = np.flatnonzero((anchors.tag <= -3) & (anchors.tag % 2 == 1))
    begins = begins[np.argsort(-anchors.tag[begins])]
    ends = ends[np.argsort(-anchors.tag[ends])]
    resumes = np.flatnonzero((anchors.tag >= 0) & (anchors.tag % 4 == RESUME))
    resumes = resumes[np.argsort(anchors.tag[resumes])]
    return HostTasks(issue, posted, block, task[begins], task[ends], task[resumes])
