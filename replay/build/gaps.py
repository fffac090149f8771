"""Host time between events: what is typical for a (previous, next) pair, and what is a stall.

The boundaries (starts and ends) of one thread's rows cut its time into gaps. A gap's label is
the pair of boundaries around it, so the inside of an operator, the step from one operator to
the next and the inside of an API call each have their own statistics, pooled over all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.columns import RankEvents
from foretrace.replay.graph import I32, I64
from foretrace.replay.kernels import enclosing_rows

MIN_SAMPLES = 8
"""A pair seen less often has no typical gap: all of it counts as host work."""

MIN_STALL_NS = 20_000
"""Excess below this is ordinary variation and stays host work."""

WAKE_PAIR = -1
"""Label of the time between giving way and another thread's start, among the pairs' labels."""

FENCE_MADS = 6.0
"""A gap is a stall when it lies this many (normal-scaled) median deviations above the median."""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Starts and ends of a rank's host rows, sorted by (thread, time); shape ``(b,)``.

    Attributes:
        thread: index into ``threads``.
        time: ns.
        label: ``2 * name + is_end``.
        shape: input shapes of that row: on a CPU the inside of an operator depends on them.
        row: event row that starts or ends there.
        inside: innermost row that is open behind the boundary, -1 for none.
        depth: rows open *after* the boundary.
        threads: thread ids.
        first: first boundary of each thread, shape ``(threads + 1,)``.
    """

    thread: I32
    time: I64
    label: I64
    shape: I64
    row: I64
    inside: I64
    depth: I32
    threads: I64
    first: I64

    @property
    def gap(self) -> I64:
        """Time to the next boundary of the thread, 0 behind the last; shape ``(b,)``."""
        gap = np.zeros_like(self.time)
        gap[:-1] = np.diff(self.time)
        gap[self.first[1:] - 1] = 0
        return gap

    @property
    def pair(self) -> I64:
        """Label of the gap behind each boundary: (this boundary, next boundary), shapes included.

        A hash: collisions among a job's thousands of pairs are as good as impossible.
        """
        mixed = (self.label.astype(np.uint64) << np.uint64(24)) ^ self.shape.astype(np.uint64)
        mixed *= _MIX
        mixed ^= mixed >> np.uint64(29)
        pair = mixed * _MIX + np.roll(mixed, -1)
        return (pair >> np.uint64(1)).astype(np.int64)


_MIX = np.uint64(0x9E3779B97F4A7C15)


def boundaries(events: RankEvents) -> Boundaries:
    """Boundaries of all host rows of one rank."""
    rows = np.flatnonzero(events.is_host)
    threads, lane = np.unique(events.thread[rows], return_inverse=True)
    start, end = events.start[rows], events.end[rows]
    time = np.concatenate([start, end])
    is_end = np.repeat([0, 1], len(rows))
    label = 2 * np.tile(events.name[rows].astype(np.int64), 2) + is_end
    thread = np.tile(lane, 2).astype(np.int32)
    # At one instant: rows end (inner ones first), empty rows open and close, rows begin (outer
    # ones first). Anything else makes neighbours look nested where clocks tick coarsely.
    empty = np.tile(start == end, 2)
    phase = np.where(empty, 1, np.where(is_end == 1, 0, 2))
    within = np.where(is_end == 1, -np.tile(start, 2), -np.tile(end, 2))
    within[empty] = (2 * np.tile(np.arange(len(rows)), 2) + is_end)[empty]
    order = np.lexsort((within, phase, time, thread))
    step = np.where(is_end[order] == 1, -1, 1)
    first = np.searchsorted(thread[order], np.arange(len(threads) + 1))
    row = np.tile(rows, 2)[order]
    depth = np.cumsum(step)
    # Each thread's steps sum to zero, so the running sum needs no reset between threads.
    return Boundaries(
        thread=thread[order],
        time=time[order],
        label=label[order],
        shape=np.tile(events.shape[rows], 2)[order].astype(np.int64),
        row=row,
        inside=enclosing_rows(row, is_end[order] == 1, first),
        depth=depth.astype(np.int32),
        threads=threads,
        first=first,
    )


@dataclass(frozen=True, slots=True)
class TypicalGaps:
    """Median and fence of each pair, over all ranks; arrays sorted by ``pair``.

    Attributes:
        pair: pair labels, sorted.
        median_ns: median gap.
        fence_ns: gaps above this are stalls.
    """

    pair: I64
    median_ns: I64
    fence_ns: I64

    def excess(self, pair: I64, gap_ns: I64) -> I64:
        """How far each gap exceeds what is typical, 0 for ordinary gaps, ns."""
        if not len(self.pair):
            return np.zeros_like(gap_ns)
        row = np.minimum(np.searchsorted(self.pair, pair), len(self.pair) - 1)
        known = self.pair[row] == pair
        over = gap_ns - self.median_ns[row]
        stalled = known & (gap_ns > self.fence_ns[row]) & (over >= MIN_STALL_NS)
        return np.where(stalled, over, 0)


def typical_gaps(samples: list[tuple[I64, I64]]) -> TypicalGaps:
    """Typical gaps from every rank's ``(pair, gap_ns)`` arrays."""
    pair = np.concatenate([s[0] for s in samples]) if samples else np.zeros(0, np.int64)
    gap = np.concatenate([s[1] for s in samples]) if samples else np.zeros(0, np.int64)
    order = np.lexsort((gap, pair))
    pair, gap = pair[order], gap[order]
    labels, first, count = np.unique(pair, return_index=True, return_counts=True)
    often = count >= MIN_SAMPLES
    labels, first, count = labels[often], first[often], count[often]
    median = gap[first + count // 2] if len(first) else np.zeros(0, np.int64)
    spread = (
        np.abs(gap - np.repeat(median, count))
        if often.all()
        else _deviation(pair, gap, labels, median)
    )
    order = np.lexsort((spread, pair))
    mad = spread[order][first + count // 2] if len(first) else np.zeros(0, np.int64)
    fence = median + (FENCE_MADS * 1.4826 * mad).astype(np.int64)
    return TypicalGaps(labels, median, fence)


def _deviation(pair: I64, gap: I64, labels: I64, median: I64) -> I64:
    """Distance of each gap from its pair's median; rare pairs get 0."""
    if not len(labels):
        return np.zeros_like(gap)
    row = np.minimum(np.searchsorted(labels, pair), len(labels) - 1)
    known = labels[row] == pair
    return np.where(known, np.abs(gap - median[row]), 0)
