"""Which operator of a host thread was running at a moment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


def enclosing_rows(rows: I64, spans: tuple[I64, I64, I64], moments: tuple[I64, I64]) -> I64:
    """For each moment the innermost of ``rows`` that spans it on the same thread.

    Args:
        rows: candidate rows of the events table, ascending, hence by start.
        spans: start (ns), end (ns) and thread of every event, each of shape ``(events,)``.
        moments: time (ns) and thread of each moment, each of shape ``(moments,)``.

    Returns:
        Row of the events table for each moment, -1 for none, shape ``(moments,)``.
    """
    start_ns, end_ns, thread = spans
    at_ns, at_thread = moments
    found = np.full(len(at_ns), -1, np.int64)
    for lane in np.unique(at_thread):
        here = rows[thread[rows] == lane]
        if not len(here):
            continue
        asked = np.flatnonzero(at_thread == lane)
        found[asked] = _innermost(here, start_ns, end_ns, at_ns[asked])
    return found


def _innermost(rows: I64, start_ns: I64, end_ns: I64, at_ns: I64) -> I64:
    """Step outwards from the last row that began before each moment until one spans it."""
    parent = _parents(start_ns[rows], end_ns[rows])
    at = np.searchsorted(start_ns[rows], at_ns, side="right") - 1
    while True:
        outside = (at >= 0) & (end_ns[rows[np.maximum(at, 0)]] < at_ns)
        if not outside.any():
            break
        at[outside] = parent[at[outside]]
    return np.where(at >= 0, rows[np.maximum(at, 0)], -1)


def _parents(start_ns: I64, end_ns: I64) -> I64:
    """For nested spans by start, the position of the span around each; -1 at the top."""
    parent = np.full(len(start_ns), -1, np.int64)
    stack: list[int] = []
    ends = end_ns.tolist()
    for i, end in enumerate(ends):
        while stack and ends[stack[-1]] < end:
            stack.pop()
        parent[i] = stack[-1] if stack else -1
        stack.append(i)
    return parent
