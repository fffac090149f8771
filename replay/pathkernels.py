"""Compiled loops that look back on a replay: slack, chains that bind, what leads to what.

Like ``kernels``: arrays in, arrays out, and none calls a compiled function of another file.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

I8 = NDArray[np.int8]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@njit(cache=True)
def latest_times(
    dur_ns: I64, pred_ptr: I64, pred: I64, from_start: Bool, delay_ns: I64, deadline_ns: I64
) -> tuple[I64, I64]:
    """How late each task may start and end so that none ends behind its deadline.

    Args:
        dur_ns: shape ``(n,)``, tasks in topological order.
        pred_ptr: shape ``(n + 1,)``.
        pred: shape ``(m,)``.
        from_start: shape ``(m,)``.
        delay_ns: shape ``(m,)``.
        deadline_ns: latest end of each task for its own sake, shape ``(n,)``.

    Returns:
        ``(start_ns, end_ns)``, both of shape ``(n,)``. The end alone tells how much longer a
        task may take: what counts from its start does not care.
    """
    start = np.full(len(dur_ns), np.iinfo(np.int64).max >> 1)
    end = deadline_ns.copy()
    for i in range(len(dur_ns) - 1, -1, -1):
        start[i] = min(start[i], end[i] - dur_ns[i])
        for e in range(pred_ptr[i], pred_ptr[i + 1]):
            p = pred[e]
            t = start[i] - delay_ns[e]
            if from_start[e]:
                start[p] = min(start[p], t)
            else:
                end[p] = min(end[p], t)
    return start, end


@njit(cache=True)
def path_range(
    own: I64, label: I64, pred_ptr: I64, pred: I64, from_start: Bool, width: int
) -> tuple[I64, I64]:
    """The most and the least that each class can have on any chain that leads to a task's start.

    Args:
        own: time of each task, shape ``(n,)``, tasks in topological order.
        label: class of each task, shape ``(n,)``; those outside ``0 .. width - 1`` do not count.
        pred_ptr: shape ``(n + 1,)``.
        pred: sources of the edges that bind, shape ``(m,)``.
        from_start: edges that leave the source's own time out, shape ``(m,)``.
        width: number of classes.

    Returns:
        ``(most, least)``, both of shape ``(n, width)``.
    """
    n = len(own)
    most = np.zeros((n, width), np.int64)
    least = np.zeros((n, width), np.int64)
    for i in range(n):
        for e in range(pred_ptr[i], pred_ptr[i + 1]):
            p = pred[e]
            for c in range(width):
                add = own[p] if label[p] == c and not from_start[e] else 0
                if e == pred_ptr[i]:
                    most[i, c] = most[p, c] + add
                    least[i, c] = least[p, c] + add
                else:
                    most[i, c] = max(most[i, c], most[p, c] + add)
                    least[i, c] = min(least[i, c], least[p, c] + add)
    return most, least


@njit(cache=True)
def binding_ancestors(
    wanted: Bool, times_ns: tuple[I64, I64], edges: tuple[I64, I64, Bool, I64]
) -> None:
    """Mark, in place, every task that a marked task starts right after, over any number of edges.

    Args:
        wanted: marks, shape ``(n,)``, tasks in topological order.
        times_ns: start and end of each task, both of shape ``(n,)``.
        edges: pred_ptr, pred, from_start and delay_ns.
    """
    start, end = times_ns
    pred_ptr, pred, from_start, delay_ns = edges
    for i in range(len(wanted) - 1, -1, -1):
        if wanted[i]:
            for e in range(pred_ptr[i], pred_ptr[i + 1]):
                p = pred[e]
                if (start[p] if from_start[e] else end[p]) + delay_ns[e] == start[i]:
                    wanted[p] = True


@njit(cache=True)
def walk_chains(
    times: tuple[I64, I64, I64], edges: tuple[I64, I8, I64, Bool], walks: I64, out: I64
) -> int:
    """Walk back from each task of ``walks`` along what bound it.

    Args:
        times: start, end and binding edge (-1 for none) of each task, each of shape ``(n,)``.
        edges: source, kind and delay of each edge, and which kinds count from their source's start.
        walks: task, ceiling and floor of each walk, shape ``(walks, 3)``.
        out: origin, task, part, start and length of each stretch, shape ``(k, 5)``, to be filled;
            where it is empty they are only counted. Parts are those of ``criticalpath.PathPart``.

    Returns:
        The number of stretches.
    """
    start, end, bound = times
    pred, kind, delay, from_start = edges
    fill = len(out) > 0
    count = 0
    for origin in range(len(walks)):
        task, high, low = walks[origin]
        while high > low:
            edge = bound[task]
            source = pred[edge] if edge >= 0 else -1
            anchor = allowed = low
            if edge >= 0:
                anchor = start[source] if from_start[kind[edge]] else end[source]
                allowed = anchor + delay[edge]
            # Going back in time: the task's own time, its lateness, its edge's constant.
            for part in range(3):
                until = start[task] if part == 0 else allowed if part == 1 else anchor
                cut = max(low, min(high, until))
                if cut < high:
                    if fill:
                        out[count, 0] = origin
                        out[count, 1] = task
                        # Behind a task that nothing bound lies nothing recorded.
                        out[count, 2] = 3 if part == 1 and edge < 0 else part
                        out[count, 3] = cut
                        out[count, 4] = high - cut
                    count += 1
                    high = cut
            if edge < 0:
                break
            task = source
    return count


@njit(cache=True)
def last_ancestor(number: I64, pred_ptr: I64, pred: I64, keep: Bool) -> I64:
    """The highest number among all tasks that lead to each task, -1 for none, shape ``(n,)``.

    Args:
        number: number of each task, -1 for tasks without, shape ``(n,)``, topological order.
        pred_ptr: shape ``(n + 1,)``.
        pred: shape ``(m,)``.
        keep: edges that count, shape ``(m,)``.
    """
    result = np.full(len(number), -1, np.int64)
    for i in range(len(number)):
        for e in range(pred_ptr[i], pred_ptr[i + 1]):
            if keep[e]:
                p = pred[e]
                result[i] = max(result[i], result[p], number[p])
    return result
