"""Every compiled loop of the replay: arrays in, arrays out, no Python objects.

They stay in one file because numba's disk cache does not notice a change in a compiled
function of another file.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

I8 = NDArray[np.int8]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@njit(cache=True)
def topological_order(pred_ptr: I64, pred: I64) -> I64:
    """An order in which every task follows its predecessors (Kahn, first in first out).

    Args:
        pred_ptr: shape ``(n + 1,)``.
        pred: shape ``(m,)``.

    Returns:
        Task numbers, shape ``(k,)``; ``k < n`` means that ``n - k`` tasks lie on or behind a cycle.
    """
    n = len(pred_ptr) - 1
    succ_ptr = np.zeros(n + 1, np.int64)
    for e in range(len(pred)):
        succ_ptr[pred[e] + 1] += 1
    for i in range(n):
        succ_ptr[i + 1] += succ_ptr[i]
    fill = succ_ptr[:-1].copy()
    succ = np.empty(len(pred), np.int64)
    for i in range(n):
        for e in range(pred_ptr[i], pred_ptr[i + 1]):
            p = pred[e]
            succ[fill[p]] = i
            fill[p] += 1
    missing = pred_ptr[1:] - pred_ptr[:-1]
    order = np.empty(n, np.int64)
    tail = 0
    for i in range(n):
        if missing[i] == 0:
            order[tail] = i
            tail += 1
    head = 0
    while head < tail:
        i = order[head]
        head += 1
        for k in range(succ_ptr[i], succ_ptr[i + 1]):
            j = succ[k]
            missing[j] -= 1
            if missing[j] == 0:
                order[tail] = j
                tail += 1
    return order[:tail]


@njit(cache=True)
def longest_path(
    dur_ns: I64, pred_ptr: I64, pred: I64, from_start: Bool, delay_ns: I64
) -> tuple[I64, I64]:
    """Earliest start of each task when all wait only for their predecessors.

    Tasks must be in topological order. ``start[i] = max(0, max over edges of anchor + delay)``
    where the anchor is the predecessor's end, or its start where ``from_start`` holds.

    Returns:
        ``(start_ns, bound)``, both of shape ``(n,)``; ``bound`` is the edge that decided, the
        first one on ties, -1 where nothing did.
    """
    n = len(dur_ns)
    start = np.zeros(n, np.int64)
    bound = np.full(n, -1, np.int64)
    for i in range(n):
        latest = 0
        edge = -1
        for e in range(pred_ptr[i], pred_ptr[i + 1]):
            p = pred[e]
            t = start[p] + delay_ns[e]
            if not from_start[e]:
                t += dur_ns[p]
            if t > latest or edge < 0:
                latest = max(t, latest)
                edge = e
        start[i] = latest
        bound[i] = edge
    return start, bound


@njit(cache=True)
def latest_predecessor(
    start_ns: I64, end_ns: I64, pred_ptr: I64, pred: I64, from_start: Bool, delay_ns: I64
) -> tuple[I64, I64]:
    """When given times allow each task to start, and the edge that decides.

    Returns:
        ``(allowed_ns, bound)``, both of shape ``(n,)``; tasks without predecessors have
        ``bound`` -1 and ``allowed_ns`` equal to their own start.
    """
    n = len(start_ns)
    allowed = start_ns.copy()
    bound = np.full(n, -1, np.int64)
    for i in range(n):
        for e in range(pred_ptr[i], pred_ptr[i + 1]):
            p = pred[e]
            t = (start_ns[p] if from_start[e] else end_ns[p]) + delay_ns[e]
            if bound[i] < 0 or t > allowed[i]:
                allowed[i] = t
                bound[i] = e
    return allowed, bound
