"""Anchors of host threads: calls that launch or wait, step marks, and where threads wait.

What lies between two anchors is host work, whatever rows it is made of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.calls import Calls
from foretrace.replay.build.columns import RankEvents
from foretrace.replay.build.gaps import Boundaries
from foretrace.replay.build.handoffs import Handoffs
from foretrace.replay.build.steps import Marks
from foretrace.replay.graph import I64, TaskKind

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
        cost: own cost of a call that waits for the device, ns; 0 for the usual cost of blocking
            calls; -1 of what does not wait.
        late: how long the thread stood still after that wait, ns.
    """

    thread: I64
    start: I64
    end: I64
    kind: np.ndarray
    row: I64
    resumes: np.ndarray
    tag: I64
    cost: I64
    late: I64


def find_anchors(
    events: RankEvents, b: Boundaries, calls: Calls, late: I64, handoffs: Handoffs, marks: Marks
) -> Anchors:
    """Anchors of one rank.

    Args:
        events: the rank's events.
        b: boundaries of its host rows.
        calls: launching and blocking calls; a call that does both becomes two anchors.
        late: how long each call's thread stood still after its wait was over, ns.
        handoffs: waits between threads.
        marks: step marks on host threads.
    """
    start, end = events.start, events.end
    pieces: list[tuple[np.ndarray, ...]] = []

    def add(
        thread: I64,
        at: I64,
        until: I64,
        kind: TaskKind,
        row: I64,
        *,
        resumes: bool = False,
        tag: I64 | int = -1,
        waits: tuple[I64 | int, I64 | int] = (-1, 0),
    ) -> None:
        columns = (thread, at, until, kind, row, resumes, tag, *waits)
        pieces.append(
            tuple(c if isinstance(c, np.ndarray) else np.full(len(at), c) for c in columns)
        )

    lane = np.searchsorted(b.threads, events.thread[calls.row])
    held = calls.cost >= 0
    issue, both = calls.launches & ~held, calls.launches & calls.blocks
    row = calls.row[issue]
    # A call that launches and blocks: its issue takes no time of its own, its return is the wait.
    until = np.where(calls.blocks[issue], start[row], calls.until[issue])
    add(lane[issue], start[row], until, TaskKind.CALL, row)
    row = calls.row[held]
    add(lane[held], start[row], end[row], TaskKind.CALL, row, waits=(calls.cost[held], 0))
    row = calls.row[both]
    add(lane[both], end[row], end[row], TaskKind.SYNC, row, resumes=True, waits=(0, 0))
    only = calls.blocks & ~calls.launches
    row = calls.row[only]
    add(lane[only], start[row], end[row], TaskKind.SYNC, row, waits=(0, late[only]))
    lane = np.searchsorted(b.threads, marks.thread)
    mark = 2 * np.arange(len(marks.step))
    add(lane, marks.start, marks.start, TaskKind.MARK, marks.row, tag=-2 - mark)
    add(lane, marks.end, marks.end, TaskKind.MARK, marks.row, tag=-3 - mark)
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
        add(b.thread[edges].astype(np.int64), at, at, TaskKind.HOST, none)
    return _sorted_anchors([np.concatenate(c) for c in zip(*pieces, strict=True)])


def _sorted_anchors(columns: list[np.ndarray]) -> Anchors:
    """Anchors in thread and time order, each cut off where the next one starts."""
    thread, at, until, kind, row, resumes, tag, cost, late = columns
    # At one instant: bursts, gaps and blocked calls end, then steps do, then they and calls begin.
    ends = (tag < 0) & resumes
    role = np.where(ends | (tag >= 0), np.where(np.isin(tag % 4, (RESUME, BURST_FIRST)), 1, 0), 2)
    role = np.where(ends, 0, role)
    # One step ends before the next one begins.
    role = np.where((tag >= -2) | (tag % 2 == 0), 2 * role, 2 * role - 1)
    role = np.where((tag >= 0) & (tag % 4 == GIVE), 6, role)
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
        cost=cost[order],
        late=late[order],
    )
