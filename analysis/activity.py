"""What each rank does at each moment: its time cut into pieces with one activity each.

The devices of a rank count as one. Where several things run at once the first of these
that holds gives the piece its name: computation, execution of a collective, a copy. What is
left is idle, and what ends the idle time tells its cause: a collective that had to wait for
another rank, or else the walk back from the task that starts. So launch gaps stay with the
host even while some collective waits in the background. For a rank without device work
(training on CPUs) its host threads play the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.intervals import Cover, first_come, overlaps
from foretrace.replay.arrivals import arrivals
from foretrace.replay.criticalpath import PathPart, Stretches, walk_back
from foretrace.replay.graph import I8, I32, I64, EdgeKind, JobGraph, TaskKind, Timeline


class Activity(IntEnum):
    """What a rank's devices do; all from IDLE_RANK on are idle, by cause."""

    COMPUTE = 0
    COMMUNICATION = 1  # executing a collective, nothing computed meanwhile: exposed
    COPY = 2  # copying, nothing else meanwhile
    IDLE_RANK = 3  # waiting for another rank
    IDLE_HOST = 4  # the next task was not launched yet
    IDLE_STALL = 5  # the launching thread stood still beyond its typical gap
    IDLE_DEPENDENCY = 6  # constants between tasks of a stream or across streams
    IDLE_UNEXPLAINED = 7  # all was ready, yet the task began later; only when measured
    IDLE_NO_WORK = 8  # before the first or after the last recorded task


IDLE = tuple(a for a in Activity if a >= Activity.IDLE_RANK)

_HOST = (TaskKind.HOST, TaskKind.CALL, TaskKind.SYNC)
_COPY = (TaskKind.MEMCPY, TaskKind.MEMSET)
_HOST_EDGES = (
    EdgeKind.HOST_ORDER, EdgeKind.THREAD, EdgeKind.LAUNCH, EdgeKind.SYNC, EdgeKind.MARK,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of time, sorted by rank and start, without a hole; arrays of shape ``(k,)``.

    Attributes:
        rank: rank the piece belongs to.
        start_ns: begin.
        end_ns: end.
        activity: Activity.
        task: the task that the time is spent on or, when idle, that it is owed to; -1 none.
        culprit: rank that is waited for under IDLE_RANK, else -1.
        hidden: COMM task that runs behind computation meanwhile, else -1.
    """

    rank: I32
    start_ns: I64
    end_ns: I64
    activity: I8
    task: I64
    culprit: I32
    hidden: I64

    @property
    def dur_ns(self) -> I64:
        """Length of each piece, ns."""
        return self.end_ns - self.start_ns

    def take(self, rows: NDArray[np.generic]) -> Pieces:
        """The pieces of ``rows`` (a mask or row numbers)."""
        return Pieces(*(getattr(self, f.name)[rows] for f in fields(self)))

    @staticmethod
    def concatenate(parts: Sequence[Pieces]) -> Pieces:
        """The pieces of all parts, one after the other; at least one part."""
        return Pieces(
            *(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Pieces))
        )

    def clip(self, start_ns: int, end_ns: int) -> Pieces:
        """What lies inside ``[start_ns, end_ns)``."""
        part = self.take(overlaps(self.start_ns, self.end_ns, start_ns, end_ns))
        return Pieces(
            part.rank,
            np.maximum(part.start_ns, start_ns),
            np.minimum(part.end_ns, end_ns),
            part.activity,
            part.task,
            part.culprit,
            part.hidden,
        )


@dataclass(frozen=True, slots=True)
class _Axis:
    """All ranks' times laid one behind the other on a single axis."""

    ranks: I32
    origin_ns: int
    span_ns: int

    def place(self, rank: I32, time_ns: I64) -> I64:
        row: I64 = np.searchsorted(self.ranks, rank)
        return (time_ns - self.origin_ns) + row * self.span_ns

    def row(self, points: I64) -> I64:
        return np.minimum(points // self.span_ns, len(self.ranks) - 1)

    def time(self, points: I64, row: I64) -> I64:
        return points - row * self.span_ns + self.origin_ns


def pieces(timeline: Timeline) -> Pieces:
    """Cut every rank's time into pieces, from the first task of the job to its last.

    Returns:
        Pieces of all ranks; each rank's cover the same span.
    """
    graph = timeline.graph
    ranks = np.unique(graph.rank[graph.rank >= 0]).astype(np.int32)
    if not len(ranks):
        return _pieces(*(np.empty(0, np.int64),) * 5)
    origin = int(timeline.start_ns[graph.rank >= 0].min())
    last = int(timeline.end_ns[graph.rank >= 0].max())
    axis = _Axis(ranks, origin, max(last - origin, 1))
    cut = _cut(timeline, axis)
    idle = cut.activity == Activity.IDLE_NO_WORK
    return _joined(cut.take(~idle), *_explain(timeline, cut, np.flatnonzero(idle)))


def device_ranks(graph: JobGraph) -> NDArray[np.bool_]:
    """Whether each task belongs to a rank that has device work, shape ``(n,)``."""
    work = np.isin(graph.kind, (TaskKind.KERNEL, *_COPY)) & (graph.rank >= 0)
    result: NDArray[np.bool_] = np.isin(graph.rank, np.unique(graph.rank[work]))
    return result


def compute_tasks(graph: JobGraph) -> NDArray[np.bool_]:
    """Which tasks count as computation: kernels, or host work where there is no device."""
    on_host = np.isin(graph.kind, _HOST) & ~device_ranks(graph)
    result: NDArray[np.bool_] = ((graph.kind == TaskKind.KERNEL) | on_host) & (graph.rank >= 0)
    return result


def last_arrivals(timeline: Timeline) -> I32:
    """The rank that each COMM task waited for, shape ``(n,)``; -1 where it waited for none."""
    graph = timeline.graph
    culprit = np.full(len(graph), -1, np.int32)
    comm = np.flatnonzero((graph.kind == TaskKind.COMM) & (timeline.bound >= 0))
    source = graph.pred[timeline.bound[comm]]
    joined = (graph.kind[source] == TaskKind.JOIN) & (timeline.bound[source] >= 0)
    source[joined] = graph.pred[timeline.bound[source[joined]]]
    other = (graph.kind[source] == TaskKind.ARRIVE) & (graph.rank[source] != graph.rank[comm])
    culprit[comm[other]] = graph.rank[source[other]]
    return culprit


def _pieces(
    rank: NDArray[np.generic], start_ns: I64, end_ns: I64, activity: NDArray[np.generic], task: I64
) -> Pieces:
    """Pieces without culprits, with nothing hidden behind them."""
    none = np.full(len(task), -1, np.int64)
    return Pieces(
        rank.astype(np.int32),
        start_ns,
        end_ns,
        activity.astype(np.int8),
        task,
        none.astype(np.int32),
        none,
    )


def _cut(timeline: Timeline, axis: _Axis) -> Pieces:
    """Pieces between neighbouring starts and ends; idle ones have no cause yet."""
    graph = timeline.graph

    def running(mask: NDArray[np.bool_]) -> Cover:
        tasks = np.flatnonzero(mask)
        rank = graph.rank[tasks]
        start, end = timeline.start_ns[tasks], timeline.end_ns[tasks]
        return first_come(axis.place(rank, start), axis.place(rank, end), tasks)

    layers = (  # in the order of Activity
        running(compute_tasks(graph)),
        running(graph.kind == TaskKind.COMM),
        running(np.isin(graph.kind, _COPY)),
    )
    edges = np.arange(len(axis.ranks) + 1) * axis.span_ns
    points = np.unique(np.concatenate([edges, *(x for c in layers for x in (c.start, c.end))]))
    begin, end = points[:-1], points[1:]
    owners = np.stack([layer.at(begin) for layer in layers])
    activity = np.argmax(owners >= 0, axis=0)
    task = owners[activity, np.arange(len(begin))]
    activity[task < 0] = Activity.IDLE_NO_WORK
    row = axis.row(begin)
    cut = _pieces(axis.ranks[row], axis.time(begin, row), axis.time(end, row), activity, task)
    behind = np.where(activity == Activity.COMPUTE, owners[Activity.COMMUNICATION], -1)
    return replace(cut, hidden=behind)


def _explain(timeline: Timeline, cut: Pieces, idle: I64) -> tuple[Pieces, ...]:
    """The idle pieces of ``cut``, split by cause: waits, the walk back, and what is left."""
    gap = cut.take(idle)
    ender = _enders(timeline, cut, idle)
    rank, low, high = gap.rank, gap.start_ns, gap.end_ns
    # A wait inside a collective ends at its execution and begins when this rank arrived.
    arrive = np.where(ender >= 0, arrivals(timeline.graph)[ender], -1)
    culprit = np.where(arrive >= 0, last_arrivals(timeline)[ender], -1)
    waits = culprit >= 0
    top = np.where(ender >= 0, np.minimum(timeline.start_ns[ender], high), low)
    came = np.where(waits, np.clip(timeline.start_ns[arrive], low, top), top)
    waiting = _pieces(rank, came, top, np.full(len(idle), Activity.IDLE_RANK), ender)
    waiting = replace(waiting, culprit=culprit.astype(np.int32))
    left = _pieces(rank, top, high, gap.activity, np.full(len(idle), -1))
    first = np.where(waits, arrive, ender)
    known = first >= 0
    walks = walk_back(timeline, first[known], came[known], low[known])
    walked = _walked(timeline, walks, rank[known][walks.origin])
    return waiting.take(top > came), left.take(high > top), walked


def _enders(timeline: Timeline, cut: Pieces, idle: I64) -> I64:
    """The task whose start ends each idle piece, -1 where nothing follows."""
    following = np.minimum(idle + 1, len(cut.rank) - 1)
    same = (following > idle) & (cut.rank[following] == cut.rank[idle])
    ender = np.where(same, cut.task[following], -1)
    # Behind a rank's last device task its host may still work, up to its last step mark.
    marks = timeline.graph.steps.end
    for row in np.flatnonzero(~same):  # one piece per rank at most
        own = marks[timeline.graph.rank[marks] == cut.rank[idle[row]]]
        own = own[timeline.start_ns[own] > cut.start_ns[idle[row]]]
        if len(own):
            ender[row] = own[np.argmax(timeline.start_ns[own])]
    return ender


def _walked(timeline: Timeline, walks: Stretches, rank: I32) -> Pieces:
    """Stretches of idle time of ``rank`` as pieces with their causes."""
    graph = timeline.graph
    by_kind = np.full(len(TaskKind), Activity.IDLE_DEPENDENCY)
    by_kind[[*_HOST, TaskKind.MARK]] = Activity.IDLE_HOST
    by_kind[TaskKind.STALL] = Activity.IDLE_STALL
    by_kind[TaskKind.SKEW] = Activity.IDLE_NO_WORK
    by_edge = np.full(len(EdgeKind), Activity.IDLE_DEPENDENCY)
    by_edge[list(_HOST_EDGES)] = Activity.IDLE_HOST
    by_edge[EdgeKind.WINDOW] = Activity.IDLE_NO_WORK
    bound = timeline.bound[walks.task]
    activity = np.select(
        [
            (graph.rank[walks.task] != rank) & (graph.rank[walks.task] >= 0),
            walks.part == PathPart.OUTSIDE,
            walks.part == PathPart.LATE,
            walks.part == PathPart.DELAY,
        ],
        [
            np.int64(Activity.IDLE_RANK),
            np.int64(Activity.IDLE_NO_WORK),
            np.int64(Activity.IDLE_UNEXPLAINED),
            by_edge[graph.edge_kind[bound]] if len(graph.edge_kind) else by_edge[:0],
        ],
        by_kind[graph.kind[walks.task]],
    )
    found = _pieces(rank, walks.start_ns, walks.start_ns + walks.dur_ns, activity, walks.task)
    culprit = np.where(activity == Activity.IDLE_RANK, graph.rank[walks.task], -1)
    return replace(found, culprit=culprit)


def _joined(*parts: Pieces) -> Pieces:
    """All pieces in order of rank and time."""
    whole = Pieces.concatenate(parts)
    return whole.take(np.lexsort((whole.start_ns, whole.rank)))
