"""Interval arithmetic over arrays: sort and accumulate, no loop over intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.graph import I64

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cover:
    """Intervals in order that do not overlap; arrays of shape ``(k,)``.

    Attributes:
        owner: number of the input interval that a stretch belongs to.
        start: begin of each stretch.
        end: end of each stretch, always behind its start.
    """

    owner: I64
    start: I64
    end: I64

    def at(self, points: I64) -> I64:
        """Owner of the stretch that covers each point, -1 where none does."""
        if not len(self.start):
            return np.full(len(points), -1, np.int64)
        row = np.searchsorted(self.start, points, side="right") - 1
        inside = (row >= 0) & (points < self.end[row])
        return np.where(inside, self.owner[row], -1)


def first_come(start: I64, end: I64, owner: I64) -> Cover:
    """The union of intervals, each instant owned by the interval that began first.

    An interval keeps what it has until it ends; equal starts go to the lower ``owner``.

    Args:
        start: shape ``(k,)``.
        end: shape ``(k,)``; intervals without length are left out.
        owner: number of each interval, shape ``(k,)``.
    """
    real = end > start
    start, end, owner = start[real], end[real], owner[real]
    order = np.lexsort((owner, start))
    start, end, owner = start[order], end[order], owner[order]
    reach = np.maximum.accumulate(end) if len(end) else end
    begin = start.copy()
    begin[1:] = np.maximum(start[1:], reach[:-1])
    left = end > begin
    return Cover(owner[left], begin[left], end[left])


def total_by(keys: I64, amounts: I64, size: int) -> I64:
    """Sum of ``amounts`` per key 0 to ``size - 1``, exact.

    Args:
        keys: shape ``(k,)``.
        amounts: shape ``(k,)``; sums stay below 2**53, which float addition keeps exact
            (104 days in nanoseconds).
        size: number of keys.
    """
    return np.bincount(keys, weights=amounts, minlength=size).astype(np.int64)


def overlaps(start: I64, end: I64, low: int, high: int) -> NDArray[np.bool_]:
    """Which intervals reach into ``[low, high)``."""
    result: NDArray[np.bool_] = (end > low) & (start < high)
    return result
