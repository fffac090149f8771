"""Subsequences that repeat: a stack of equal layers shows as a period in the work of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.graph import I64

_MAY_DIFFER = 0.15  # of the places of an occurrence
_MAY_HOLD = 0.5  # work of others between the places of an occurrence, as a share of it
_AS_GOOD_OVER = 1.02  # how much more several layers must explain than one, to count as one
_LITTLE = 0.2  # of what the best stretch explains
_MOST = 24  # periods that are looked at


@dataclass(frozen=True, slots=True)
class Repeat:
    """A stretch in which work recurs.

    Attributes:
        start: first place.
        period: places from one occurrence to the next.
        length: places of the whole stretch.
    """

    start: int
    period: int
    length: int

    @property
    def count(self) -> int:
        """Whole occurrences."""
        return self.length // self.period

    @property
    def spare(self) -> int:
        """Places by which the occurrences may be shifted without losing one."""
        return self.length % self.period


def repeats(token: I64, weight: NDArray[np.float64]) -> list[Repeat]:
    """Stretches of at least two occurrences, the one that explains most of each period.

    Left out are those that explain little beside the best, and periods that are several of a
    shorter one.

    Args:
        token: shape ``(n,)``.
        weight: what each place counts, such as its duration, shape ``(n,)``.
    """
    total = np.append(0.0, np.cumsum(weight))
    kept: list[tuple[float, Repeat]] = []
    for period in range(1, len(token) // 2 + 1):
        found = [
            (float(total[start + run + period] - total[start]), Repeat(start, period, run + period))
            for start, run in _runs(token[period:] == token[:-period])
            if run >= period
        ]
        if not found:
            continue
        value, repeat = max(found, key=lambda one: one[0])
        several = (v for v, r in kept if period % r.period == 0)
        if value > _AS_GOOD_OVER * max(several, default=0.0):
            kept.append((value, repeat))
    best = max((value for value, _ in kept), default=0.0)
    kept = [one for one in kept if one[0] >= _LITTLE * best]
    kept.sort(key=lambda one: -one[0])
    return [repeat for _, repeat in kept[:_MOST]]


def pattern(tokens: Sequence[I64], repeats: Sequence[Repeat], last: bool) -> tuple[int, ...]:
    """The work of one occurrence, cut at a place that suits every stretch.

    A stretch with spare places may be cut at several; where a neighbour of the stack happens to
    look like the edge of a layer, other stretches (other stages) settle it.

    Args:
        tokens: the passes that the stretches are in.
        repeats: their stretches, all of one period.
        last: of several places take the last one instead of the first.
    """
    choices = [_cuts(token, repeat) for token, repeat in zip(tokens, repeats, strict=True)]
    common = [cut for cut in choices[0] if all(cut in other for other in choices[1:])]
    if not common:
        every = [cut for cuts in choices for cut in cuts]
        most = max(every.count(cut) for cut in set(every))
        common = [cut for cut in every if every.count(cut) == most]
    return common[-1 if last else 0]


def occurrences(token: I64, shape: tuple[int, ...]) -> I64:
    """Where a pattern stands several times in a row: the places of its longest row.

    One occurrence is exact. Beside it others may differ in a few places, as the first and last
    layer of a stage do, or hold other work between their own.

    Args:
        token: shape ``(n,)``.
        shape: the pattern.

    Returns:
        Shape ``(occurrences, len(shape))``.
    """
    period = len(shape)
    wanted = np.array(shape)
    best = np.zeros((0, period), np.int64)
    if len(token) < period:
        return best
    windows = np.lib.stride_tricks.sliding_window_view(token, period)
    exact = np.flatnonzero((windows == wanted).all(axis=1))
    seen = -1
    for start in exact.tolist():
        if start <= seen:
            continue
        behind = _chain(token, wanted, start)
        ahead = _chain(token[::-1], wanted[::-1], len(token) - start)
        before = [len(token) - 1 - row[::-1] for row in ahead[::-1]]
        rows = np.array([*before, *behind], np.int64)
        seen = int(rows[-1, -1])
        best = max(best, rows, key=len)
    return best


def _chain(token: I64, wanted: I64, start: int) -> list[I64]:
    """Occurrences one behind the other from a place on."""
    rows: list[I64] = []
    while (row := _next(token, wanted, start)) is not None:
        rows.append(row)
        start = int(row[-1]) + 1
    return rows


def _next(token: I64, wanted: I64, start: int) -> I64 | None:
    """Places of an occurrence that begins here, or close behind."""
    period = len(wanted)
    near = token[start : start + period]
    if len(near) == period and (near != wanted).mean() <= _MAY_DIFFER:
        return np.arange(start, start + period)
    stretch = token[start : start + period + int(period * _MAY_HOLD)].tolist()
    places, at = [], 0
    for one in wanted.tolist():
        if one not in stretch[at:]:
            return None
        at = stretch.index(one, at) + 1
        places.append(start + at - 1)
    return np.array(places, np.int64)


def _cuts(token: I64, repeat: Repeat) -> list[tuple[int, ...]]:
    firsts = range(repeat.start, repeat.start + repeat.spare + 1)
    return [tuple(token[a : a + repeat.period].tolist()) for a in firsts]


def _runs(same: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(first place, length) of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    return [(int(a), int(b - a)) for a, b in edges.reshape(-1, 2)]
