"""Host time between events: what is typical for a (previous, next) pair, and what is a stall.

The boundaries (starts and ends) of one thread's rows cut its time into gaps. A gap's label is
the pair of boundaries around it, so the inside of an operator, the step from one operator to
the next and the inside of an API call each have their own statistics, pooled over all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.columns import RankEvents
from foretrace.replay.build.gapkernel import boundary_order, describe
from foretrace.replay.build.labelkernel import distinct, medians
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
        gap: time to the next boundary of the thread, 0 behind the last.
        label: ``2 * name + is_end``.
        pair: label of the gap: this boundary and the next one, input shapes included, since on
            a CPU the inside of an operator depends on them. A hash: collisions among a job's
            thousands of pairs are as good as impossible.
        row: event row that starts or ends there.
        inside: innermost row that is open behind the boundary, -1 for none.
        depth: rows open *after* the boundary.
        threads: thread ids.
        first: first boundary of each thread, shape ``(threads + 1,)``.
    """

    thread: I32
    time: I64
    gap: I64
    label: I64
    pair: I64
    row: I64
    inside: I64
    depth: I32
    threads: I64
    first: I64


def boundaries(events: RankEvents) -> Boundaries:
    """Boundaries of all host rows of one rank."""
    rows = np.flatnonzero(events.is_host)
    threads, lane = distinct(events.thread[rows])
    start, end = events.start[rows], events.end[rows]
    order, first = boundary_order(start, end, lane, len(threads))
    item, time, gap, label, pair, depth, thread = describe(
        order, first, start, end, events.name[rows], events.shape[rows]
    )
    row = rows[item]
    inside = enclosing_rows(row, order >= len(rows), first)
    return Boundaries(thread, time, gap, label, pair, row, inside, depth, threads, first)


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
    labels, median, deviation = medians(pair, gap, MIN_SAMPLES)
    fence = median + (FENCE_MADS * 1.4826 * deviation).astype(np.int64)
    return TypicalGaps(labels, median, fence)
