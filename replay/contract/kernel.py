"""The compiled loop that replaces the inside of each rank's graph by its longest paths.

Max-plus: where ``x`` is the start of a kept task, every task between kept ones starts at the
largest of some ``x + weight``. The pairs (kept task, weight) of a task are its *entries*. They
follow from the entries of its predecessors, and an entry is dropped where another one can never
be earlier: where the path through a later kept task is at least as long.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

WINDOW = 512
"""Kept tasks between which longest paths are remembered. Beyond it entries are kept that might
be dropped, which costs time and changes no result."""

NEVER = -(1 << 62)
"""Weight of a path that does not exist."""


@njit(cache=True)
def contract_ranks(
    first: I64, order: I64, dur_ns: I64, edges: tuple[I64, I64, Bool, I64], kept: Bool
) -> tuple[I64, I64, I64]:
    """The longest paths between kept tasks, rank by rank.

    Args:
        first: place in ``order`` where each rank begins, shape ``(ranks + 1,)``.
        order: tasks by rank, within a rank in topological order. No edge may cross ranks.
        dur_ns: shape ``(n,)``.
        edges: pred_ptr, pred, from_start, delay_ns of the whole graph.
        kept: tasks that stay, shape ``(n,)``.

    Returns:
        ``(ptr, source, weight)``: entry ``e`` of the k-th kept task (in ``order``), for ``e`` in
        ``ptr[k]:ptr[k + 1]``, says that it starts no earlier than ``weight[e]`` after the start
        of kept task ``source[e]`` (a number among the kept ones), or after 0 where that is -1.
    """
    total = 0
    for i in range(len(order)):
        total += kept[order[i]]
    out_ptr = np.zeros(total + 1, np.int64)
    out_source = np.empty(4 * total + 16, np.int64)
    out_weight = np.empty(4 * total + 16, np.int64)
    place = np.full(len(dur_ns), -1, np.int64)  # of a task within its rank
    written, before = 0, 0
    for r in range(len(first) - 1):
        tasks = order[first[r] : first[r + 1]]
        here = 0
        for i in range(len(tasks)):
            place[tasks[i]] = i
            here += kept[tasks[i]]
        ptr, source, weight = _contract_rank(tasks, place, dur_ns, edges, kept)
        count = 0
        for i in range(len(tasks)):
            if not kept[tasks[i]]:
                continue
            count += 1
            if written + ptr[i + 1] - ptr[i] > len(out_source):
                out_source = _longer(out_source, written + ptr[i + 1] - ptr[i])
                out_weight = _longer(out_weight, len(out_source))
            for k in range(ptr[i], ptr[i + 1]):
                out_source[written] = before + source[k] - 1 if source[k] else -1
                out_weight[written] = weight[k]
                written += 1
            out_ptr[before + count] = written
        before += here
    return out_ptr, out_source[:written], out_weight[:written]


@njit(cache=True)
def _contract_rank(
    tasks: I64, place: I64, dur_ns: I64, edges: tuple[I64, I64, Bool, I64], kept: Bool
) -> tuple[I64, I64, I64]:
    """Entries of every task of one rank; sources count from 1 within it, 0 stands for time zero."""
    here = 0
    for i in range(len(tasks)):
        here += kept[tasks[i]]
    ptr = np.zeros(len(tasks) + 1, np.int64)
    source = np.empty(4 * len(tasks) + 16, np.int64)
    weight = np.empty(4 * len(tasks) + 16, np.int64)
    number = np.zeros(len(tasks), np.int64)  # of a kept task, from 1; 0 for the others
    path = np.full((here + 1, WINDOW), NEVER, np.int64)  # [t, d]: longest from t - 1 - d to t
    since = np.zeros(here + 1, np.int64)  # longest path from time zero
    best = np.full(here + 1, NEVER, np.int64)
    found = np.empty(here + 1, np.int64)
    used, count = 0, 0
    for i in range(len(tasks)):
        entries, seen = (ptr, source, weight), (found, best)
        size = _gather(tasks[i], (place, number), entries, dur_ns, edges, seen)
        if used + size > len(source):
            source = _longer(source, used + size)
            weight = _longer(weight, len(source))
        for a in range(size):
            if _is_needed(found[a], found[:size], best, since, path):
                source[used] = found[a]
                weight[used] = best[found[a]]
                used += 1
        for a in range(size):
            best[found[a]] = NEVER
        ptr[i + 1] = used
        if kept[tasks[i]]:
            count += 1
            number[i] = count
            for k in range(ptr[i], used):
                if source[k]:
                    _extend(path, source[k], count, weight[k])
                since[count] = max(since[count], since[source[k]] + weight[k])
    return ptr, source, weight


@njit(cache=True)
def _gather(
    task: int,
    numbers: tuple[I64, I64],
    entries: tuple[I64, I64, I64],
    dur_ns: I64,
    edges: tuple[I64, I64, Bool, I64],
    seen: tuple[I64, I64],
) -> int:
    """Join the entries of a task's predecessors: the largest weight of each source.

    Args:
        task: the task.
        numbers: place of each task in its rank, and number of each place among the kept, or 0.
        entries: ptr, source and weight of the entries so far, by place.
        dur_ns: shape ``(n,)``.
        edges: pred_ptr, pred, from_start, delay_ns.
        seen: to be filled: the sources found, and the weight of each source (NEVER before).

    Returns:
        How many sources were found.
    """
    place, number = numbers
    found, best = seen
    ptr, source, weight = entries
    pred_ptr, pred, from_start, delay_ns = edges
    size, latest = 0, NEVER
    for e in range(pred_ptr[task], pred_ptr[task + 1]):
        at = place[pred[e]]
        extra = delay_ns[e] + (0 if from_start[e] else dur_ns[pred[e]])
        if number[at]:
            size = _put(number[at], extra, found, best, size)
            latest = max(latest, extra)
            continue
        for k in range(ptr[at], ptr[at + 1]):
            size = _put(source[k], weight[k] + extra, found, best, size)
            latest = max(latest, weight[k] + extra)
    if latest < 0:  # a replay begins at zero, whatever the delays
        size = _put(0, 0, found, best, size)
    return size


@njit(cache=True, inline="always")
def _put(s: int, weight: int, found: I64, best: I64, size: int) -> int:
    """Note a source and its weight where it is the largest so far; the new number of sources."""
    if best[s] == NEVER:
        found[size] = s
        size += 1
    best[s] = max(best[s], weight)
    return size


@njit(cache=True, inline="always")
def _is_needed(s: int, found: I64, best: I64, since: I64, path: I64) -> bool:
    """Whether no path through a later source is at least as long as the one from ``s``."""
    for b in range(len(found) - 1, -1, -1):  # the latest sources hold most paths
        t = found[b]
        if t <= s or (s > 0 and t - s > WINDOW):
            continue
        between = path[t, t - s - 1] if s else since[t]
        if between != NEVER and between + best[t] >= best[s]:
            return False
    return True


@njit(cache=True)
def _extend(path: I64, s: int, t: int, weight: int) -> None:
    """Lengthen the paths to ``s`` by one of ``weight`` from ``s`` to ``t``."""
    apart = t - s
    if apart > WINDOW:
        return
    path[t, apart - 1] = max(path[t, apart - 1], weight)
    for d in range(min(WINDOW - apart, s - 1)):
        if path[s, d] != NEVER:
            path[t, d + apart] = max(path[t, d + apart], path[s, d] + weight)


@njit(cache=True)
def _longer(values: I64, needed: int) -> I64:
    """The same values with room for more."""
    result = np.empty(max(2 * len(values), needed), np.int64)
    result[: len(values)] = values
    return result
