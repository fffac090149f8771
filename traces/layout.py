"""Start times for tasks that come with durations and dependencies only."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numba import int64, njit, types
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

I64 = NDArray[np.int64]


def closing_edges(
    source: I64, target: I64, firm: NDArray[np.bool_], tasks: int
) -> NDArray[np.bool_]:
    """Edges of cycles; without them there is no cycle.

    Of a cycle of firm edges those that lead back go; of any other all that are not firm.

    Args:
        source: task of each edge that comes first.
        target: task of each edge that comes after.
        firm: edges to be kept before the others.
        tasks: how many tasks there are.
    """
    closing = np.zeros(len(source), np.bool_)
    sure = np.flatnonzero(firm)
    closing[sure] = _within(source[sure], target[sure], tasks) & (source[sure] >= target[sure])
    left = np.flatnonzero(~closing)
    closing[left] = _within(source[left], target[left], tasks) & ~firm[left]
    return closing


def _within(source: I64, target: I64, tasks: int) -> NDArray[np.bool_]:
    """Which edges lie within a strongly connected component."""
    if not len(source):
        return np.zeros(0, np.bool_)
    # as wide as the number of parallel edges may be: equal entries are added up
    graph = coo_array((np.ones(len(source), np.int32), (source, target)), shape=(tasks, tasks))
    _, component = connected_components(graph.tocsr(), directed=True, connection="strong")
    within: NDArray[np.bool_] = component[source] == component[target]
    return within


def lay_out(dur_ns: I64, lane: I64, source: I64, target: I64) -> I64:
    """Start of each task, ns from 0: as early as its dependencies and its lane allow.

    Tasks of a lane run one at a time, the one that is ready first goes first, the one with
    the lower number where several are.

    Args:
        dur_ns: durations, shape ``(n,)``.
        lane: lane of each task, from 0 on.
        source: task of each edge that comes first, shape ``(m,)``.
        target: task of each edge that comes after; the edges make no cycle.
    """
    order = np.argsort(source, kind="stable")
    follower = np.ascontiguousarray(target[order])
    pointer = np.searchsorted(source[order], np.arange(len(dur_ns) + 1))
    waiting = np.bincount(target, minlength=len(dur_ns)).astype(np.int64)
    lanes = int(lane.max(initial=-1)) + 1
    start: I64 = _schedule(
        np.ascontiguousarray(dur_ns, np.int64),
        np.ascontiguousarray(lane, np.int64),
        np.ascontiguousarray(pointer, np.int64),
        follower.astype(np.int64),
        waiting,
        np.zeros(lanes, np.int64),
    )
    return start


_A = types.Array(types.int64, 1, "C")


@njit(_A(_A, _A, _A, _A, _A, _A), cache=True, nogil=True)
def _schedule(dur: Any, lane: Any, pointer: Any, follower: Any, waiting: Any, free: Any) -> Any:
    n = len(dur)
    ready: Any = np.zeros(n, np.int64)
    start = np.zeros(n, np.int64)
    # per lane the tasks that are ready, and over all the times at which a lane has to look
    queues: Any = [[(int64(0), int64(0)) for _ in range(0)] for _ in range(len(free))]
    looks: Any = [(int64(0), int64(0)) for _ in range(0)]
    for task in range(n):
        if waiting[task] == 0:
            heapq.heappush(queues[lane[task]], (int64(0), int64(task)))
            heapq.heappush(looks, (int64(0), int64(lane[task])))
    while len(looks) > 0:
        now, at = heapq.heappop(looks)
        if free[at] > now or len(queues[at]) == 0 or queues[at][0][0] > now:
            continue  # it looks again when it is free, or when the task is ready
        _, task = heapq.heappop(queues[at])
        start[task] = now
        end = now + dur[task]
        free[at] = end
        heapq.heappush(looks, (end, at))
        for k in range(pointer[task], pointer[task + 1]):
            after = follower[k]
            ready[after] = max(ready[after], end)
            waiting[after] -= 1
            if waiting[after] == 0:
                heapq.heappush(queues[lane[after]], (ready[after], after))
                heapq.heappush(looks, (max(ready[after], free[lane[after]]), lane[after]))
    return start
