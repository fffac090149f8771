"""Tasks of host threads: work between device API calls, the calls, stalls and step marks.

Each thread becomes one chain. Its anchors are the launching and blocking calls, the step marks
and the points where it waits for another thread; what lies between two anchors is one task of
host work plus, where the trace shows one, a stall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.calls import Calls
from foretrace.replay.build.columns import RankEvents
from foretrace.replay.build.context import Context
from foretrace.replay.build.gaps import WAKE_PAIR, Boundaries, TypicalGaps
from foretrace.replay.build.handoffs import Handoffs
from foretrace.replay.build.parts import GraphParts
from foretrace.replay.build.steps import Marks
from foretrace.replay.graph import I64, EdgeKind, TaskKind
from foretrace.replay.kernels import longest_gap

NO_ROW = -1

MIN_OPERATOR_NS = 5_000
"""On ranks without a device, host work of at least this length becomes a task of its own."""

GIVE, RESUME, BURST_FIRST, BURST_LAST = range(4)


@dataclass(frozen=True, slots=True)
class Anchors:
    """Fixed points of a rank's host threads, sorted by (thread, time); shape ``(a,)``.

    Attributes:
        thread: index of the thread.
        start: ns.
        end: ns, never beyond the next anchor's start.
        kind: TaskKind.
        row: event row, -1 for none.
        resumes: the time before it, back to the thread's previous anchor, is a wait.
        tag: ``4 * hand-off + role`` at the ends of a wait for another thread,
            ``-2 - 2 * mark`` where a step begins, ``-3 - 2 * mark`` where it ends, else -1.
    """

    thread: I64
    start: I64
    end: I64
    kind: np.ndarray
    row: I64
    resumes: np.ndarray
    tag: I64


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


def find_anchors(
    events: RankEvents, b: Boundaries, calls: Calls, handoffs: Handoffs, marks: Marks
) -> Anchors:
    """Anchors of one rank.

    Args:
        events: the rank's events.
        b: boundaries of its host rows.
        calls: launching and blocking calls; a call that does both becomes two anchors.
        handoffs: waits between threads.
        marks: step marks on host threads.
    """
    start, end = events.start, events.end
    pieces: list[tuple[np.ndarray, ...]] = []

    def add(
        thread: I64, at: I64, until: I64, kind: TaskKind, row: I64, *, resumes: bool, tag: I64 | int
    ) -> None:
        columns = (thread, at, until, kind, row, resumes, tag)
        pieces.append(tuple(np.broadcast_to(np.asarray(c), at.shape) for c in columns))

    lane = np.searchsorted(b.threads, events.thread[calls.row])
    issue, both = calls.launches, calls.launches & calls.blocks
    row = calls.row[issue]
    # A call that launches and blocks: its issue takes no time of its own, its return is the wait.
    until = np.where(calls.blocks[issue], start[row], calls.until[issue])
    add(lane[issue], start[row], until, TaskKind.CALL, row, resumes=False, tag=-1)
    row = calls.row[both]
    add(lane[both], end[row], end[row], TaskKind.SYNC, row, resumes=True, tag=-1)
    only = calls.blocks & ~calls.launches
    row = calls.row[only]
    add(lane[only], start[row], end[row], TaskKind.SYNC, row, resumes=False, tag=-1)
    lane = np.searchsorted(b.threads, marks.thread)
    mark = 2 * np.arange(len(marks.step))
    add(lane, marks.start, marks.start, TaskKind.MARK, marks.row, resumes=False, tag=-2 - mark)
    add(lane, marks.end, marks.end, TaskKind.MARK, marks.row, resumes=False, tag=-3 - mark)
    number = 4 * np.arange(len(handoffs.gap))
    for role, thread, boundary in (
        (GIVE, handoffs.waiter, handoffs.gap),
        (RESUME, handoffs.waiter, handoffs.gap + 1),
        (BURST_FIRST, handoffs.worker, handoffs.burst_first),
        (BURST_LAST, handoffs.worker, handoffs.burst_last),
    ):
        resumes = role in (RESUME, BURST_FIRST)
        known = boundary >= 0
        at, tag = b.time[boundary[known]], (number + role)[known]
        row = np.full(len(at), NO_ROW)
        add(thread[known], at, at, TaskKind.HOST, row, resumes=resumes, tag=tag)
    if not events.is_device_work.any() or (events.device[events.is_device_work] < 0).all():
        # Without a device the operators themselves are the work: each becomes a task.
        work = np.flatnonzero(b.gap >= MIN_OPERATOR_NS)
        edges = np.unique(np.concatenate([work, work + 1]))
        none = np.full(len(edges), NO_ROW)
        at = b.time[edges]
        add(b.thread[edges].astype(np.int64), at, at, TaskKind.HOST, none, resumes=False, tag=-1)
    return _sorted_anchors([np.concatenate(c) for c in zip(*pieces, strict=True)])


def _sorted_anchors(columns: list[np.ndarray]) -> Anchors:
    """Anchors in thread and time order, each cut off where the next one starts."""
    thread, at, until, kind, row, resumes, tag = columns
    # At one instant: bursts, gaps and blocked calls end, then marks stand, then calls begin.
    ends = (tag < 0) & resumes
    role = np.where(ends | (tag >= 0), np.where(np.isin(tag % 4, (RESUME, BURST_FIRST)), 1, 0), 2)
    role = np.where(ends, 0, role)
    role = np.where((tag >= 0) & (tag % 4 == GIVE), 3, role)
    order = np.lexsort((until, role, at, thread))
    thread, at, until = thread[order], at[order], until[order]
    following = np.full(len(at), np.iinfo(np.int64).max)
    same = thread[1:] == thread[:-1]
    following[:-1][same] = at[1:][same]
    return Anchors(
        thread=thread.astype(np.int64),
        start=at,
        end=np.maximum(np.minimum(until, following), at),
        kind=kind[order].astype(np.int8),
        row=row[order],
        resumes=resumes[order].astype(bool),
        tag=tag[order],
    )


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
    blocks = anchors.kind == TaskKind.SYNC
    length = anchors.end - anchors.start
    own = np.where(
        blocks, 0, np.minimum(stalls(anchors.thread, anchors.start, anchors.end), length)
    )
    cost = np.where(blocks, context.sync_cost_ns, length - own)
    begin = np.where(blocks, anchors.end - context.sync_cost_ns, anchors.start)
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
