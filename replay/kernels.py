"""Compiled loops of the replay: arrays in, arrays out, no Python objects.

Loops that call each other stay in one file, because numba's disk cache does not notice a change
in a compiled function of another file.
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
    start = np.empty(n, np.int64)
    bound = np.empty(n, np.int64)
    first = pred_ptr[0]
    for i in range(n):
        last = pred_ptr[i + 1]
        latest = 0
        edge = first if last > first else -1
        for e in range(first, last):
            # Selections and no branches: which edge decides is anybody's guess.
            p = pred[e]
            t = start[p] + delay_ns[e] + (0 if from_start[e] else dur_ns[p])
            later = t > latest
            latest = t if later else latest
            edge = e if later else edge
        start[i] = latest
        bound[i] = edge
        first = last
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


@njit(cache=True)
def is_topological(pred_ptr: I64, pred: I64) -> bool:
    """Whether every task stands behind all of its predecessors."""
    for i in range(len(pred_ptr) - 1):
        for e in range(pred_ptr[i], pred_ptr[i + 1]):
            if pred[e] >= i:
                return False
    return True


LANES = 8
"""Cost vectors that :func:`longest_paths` runs side by side: one cache line of times a task."""


@njit(cache=True)
def longest_paths(
    dur_ns: I64,
    pred_ptr: I64,
    pred: I64,
    from_start: Bool,
    delay_ns: I64,
    out: tuple[I64, I64, I64, I64],
) -> None:
    """:func:`longest_path` for LANES cost vectors in one pass over the edges.

    Args:
        dur_ns: shape ``(LANES, n)``.
        pred_ptr: shape ``(n + 1,)``.
        pred: shape ``(m,)``.
        from_start: shape ``(m,)``.
        delay_ns: shape ``(m,)``.
        out: scratch of shape ``(n, 2, LANES)``, then start_ns, end_ns and bound, each of shape
            ``(LANES, n)``, to be filled. The caller allocates them: large arrays of numpy's
            get large pages, those made in here do not.
    """
    times, start, end, bound = out
    latest = np.empty(LANES, np.int64)
    edge = np.empty(LANES, np.int64)
    first = pred_ptr[0]
    for i in range(dur_ns.shape[1]):
        last = pred_ptr[i + 1]
        for k in range(LANES):
            latest[k] = 0
            edge[k] = first if last > first else -1
        for e in range(first, last):
            anchor = times[pred[e], 0 if from_start[e] else 1]
            delay = delay_ns[e]
            for k in range(LANES):
                t = anchor[k] + delay
                later = t > latest[k]
                latest[k] = t if later else latest[k]
                edge[k] = e if later else edge[k]
        for k in range(LANES):
            done = latest[k] + dur_ns[k, i]
            times[i, 0, k] = latest[k]
            times[i, 1, k] = done
            start[k, i] = latest[k]
            end[k, i] = done
            bound[k, i] = edge[k]
        first = last


@njit(cache=True)
def enclosing_rows(row: I64, is_end: Bool, first: I64) -> I64:
    """The innermost row that is open behind each boundary of nested rows.

    Args:
        row: row that starts or ends at each boundary, sorted by (thread, time).
        is_end: whether it ends there.
        first: first boundary of each thread, shape ``(threads + 1,)``.

    Returns:
        Rows, -1 where none is open, shape ``(b,)``. Rows that overlap without nesting close what
        was opened after them.
    """
    result = np.full(len(row), -1, np.int64)
    stack = np.empty(len(row) + 1, np.int64)
    for t in range(len(first) - 1):
        depth = 0
        for k in range(first[t], first[t + 1]):
            if not is_end[k]:
                stack[depth] = row[k]
                depth += 1
            else:
                at = depth - 1
                while at >= 0 and stack[at] != row[k]:
                    at -= 1
                if at >= 0:
                    depth = at
            result[k] = stack[depth - 1] if depth > 0 else -1
    return result


@njit(cache=True)
def longest_gap(gap_ns: I64, first: I64, stop: I64) -> I64:
    """Position of the longest gap in each range ``first[i]:stop[i]``, the first one on ties."""
    result = np.empty(len(first), np.int64)
    for i in range(len(first)):
        best = first[i]
        for k in range(first[i] + 1, stop[i]):
            if gap_ns[k] > gap_ns[best]:
                best = k
        result[i] = best
    return result


@njit(cache=True)
def latest_by_step(
    end_ns: I64, tasks: tuple[I8, NDArray[np.int32]], counted: Bool, row: I64, first: int, out: I64
) -> None:
    """Raise each step's end to that of its last task of the kinds that count.

    Args:
        end_ns: shape ``(n,)``.
        tasks: kind and step number of each task, both of shape ``(n,)``.
        counted: whether a kind counts.
        row: row in ``out`` of step ``first + i``, -1 for none.
        first: lowest step number.
        out: ends, shape ``(steps,)``, changed in place.
    """
    kind, step = tasks
    for i in range(len(end_ns)):
        if counted[kind[i]]:
            place = step[i] - first
            if 0 <= place < len(row) and row[place] >= 0:
                out[row[place]] = max(out[row[place]], end_ns[i])
