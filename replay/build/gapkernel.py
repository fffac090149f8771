"""Compiled loops over the boundaries of host rows, of which a rank has tens of thousands."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_MIX = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True)
def boundary_order(start: I64, end: I64, lane: I64, lanes: int) -> tuple[I64, I64]:
    """The starts and ends of rows in order of thread and time.

    At one instant: rows end (inner ones first), empty rows open and close, rows begin (outer ones
    first). Anything else makes neighbours look nested where clocks tick coarsely.

    Args:
        start: start of each row, shape ``(n,)``, ascending on each thread.
        end: end of each row.
        lane: number of its thread, 0 to ``lanes - 1``.
        lanes: how many threads there are.

    Returns:
        ``(order, first)``: ``i`` in the order is the start of row i, ``n + i`` its end; where each
        thread begins in it, shape ``(lanes + 1,)``.
    """
    n = len(start)
    first = np.zeros(lanes + 1, np.int64)
    for i in range(n):
        first[lane[i] + 1] += 1
    for t in range(lanes):
        first[t + 1] += first[t]
    fill = first[:-1].copy()
    by_lane = np.empty(n, np.int64)
    for i in range(n):
        by_lane[fill[lane[i]]] = i
        fill[lane[i]] += 1
    order, time = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
    still = np.empty(n + 1, np.int64)  # rows that are open, the one that ends last below
    at = 0
    for t in range(lanes):
        depth = 0
        for k in range(first[t], first[t + 1]):
            i = by_lane[k]
            while depth > 0 and end[still[depth - 1]] <= start[i]:
                depth -= 1
                order[at], time[at] = n + still[depth], end[still[depth]]
                at += 1
            order[at], time[at] = i, start[i]
            at += 1
            place = depth
            while place > 0 and end[still[place - 1]] < end[i]:
                still[place] = still[place - 1]
                place -= 1
            still[place] = i
            depth += 1
        while depth > 0:
            depth -= 1
            order[at], time[at] = n + still[depth], end[still[depth]]
            at += 1
    first *= 2
    for t in range(lanes):
        _settle(order[first[t] : first[t + 1]], time[first[t] : first[t + 1]], start, end)
    return order, first


@njit(cache=True)
def _settle(order: I64, time: I64, start: I64, end: I64) -> None:
    """Sort the nearly sorted boundaries of one thread, in place."""
    n = len(start)
    for k in range(1, len(order)):
        item, own = order[k], time[k]
        at = k
        while at > 0 and own <= time[at - 1]:
            if own == time[at - 1]:
                other = order[at - 1]
                closes, other_closes = item >= n, other >= n
                i, j = (item - n if closes else item), (other - n if other_closes else other)
                phase = 1 if start[i] == end[i] else (0 if closes else 2)
                other_phase = 1 if start[j] == end[j] else (0 if other_closes else 2)
                far, other_far = (
                    start[i] if closes else end[i],
                    start[j] if other_closes else end[j],
                )
                if phase != other_phase:
                    earlier = phase < other_phase
                elif phase == 1:
                    earlier = 2 * i + closes < 2 * j + other_closes
                elif far != other_far:
                    earlier = far > other_far
                else:
                    earlier = item < other
                if not earlier:
                    break
            order[at], time[at] = order[at - 1], time[at - 1]
            at -= 1
        order[at], time[at] = item, own


@njit(cache=True)
def describe(
    order: I64, first: I64, start: I64, end: I64, name: I32, shape: I32
) -> tuple[I64, I64, I64, I64, I64, I32, I32]:
    """What is at each boundary; the arguments are those of ``boundary_order`` and its results.

    Returns:
        Number of the row, time, gap to the next boundary of the thread, label and pair (see
        ``gaps.Boundaries``), rows open behind it, thread.
    """
    n, size = len(start), len(order)
    item, time = np.empty(size, np.int64), np.empty(size, np.int64)
    gap, label = np.zeros(size, np.int64), np.empty(size, np.int64)
    mixed, pair = np.empty(size, np.uint64), np.empty(size, np.int64)
    depth, thread = np.empty(size, np.int32), np.empty(size, np.int32)
    for t in range(len(first) - 1):
        still = 0
        for k in range(first[t], first[t + 1]):
            is_end = order[k] >= n
            i = order[k] - n if is_end else order[k]
            item[k], time[k] = i, end[i] if is_end else start[i]
            if k > first[t]:
                gap[k - 1] = time[k] - time[k - 1]
            still += -1 if is_end else 1
            depth[k], thread[k] = still, t
            label[k] = 2 * np.int64(name[i]) + is_end
            mix = (np.uint64(label[k]) << np.uint64(24)) ^ np.uint64(np.int64(shape[i]))
            mix *= _MIX
            mixed[k] = mix ^ (mix >> np.uint64(29))
    for k in range(size):
        both = mixed[k] * _MIX + mixed[k + 1 if k + 1 < size else 0]
        pair[k] = np.int64(both >> np.uint64(1))
    return item, time, gap, label, pair, depth, thread
