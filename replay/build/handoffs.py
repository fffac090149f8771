"""Host threads that wait for each other: a gap that another thread's burst of work fills.

``loss.backward()`` blocks the main thread while the autograd thread works. Such a gap is a
wait, not host work: the burst starts after the waiting thread gave way, and the waiting thread
goes on after the burst has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.gaps import Boundaries
from foretrace.replay.graph import I64

MIN_GAP_NS = 50_000
"""Shorter gaps are not looked at: a hand-over between threads itself costs tens of microseconds."""

MIN_COVERAGE = 0.5
"""Share of the gap that the other thread's burst must fill."""


@dataclass(frozen=True, slots=True)
class Handoffs:
    """Waits of one thread for another's burst; arrays of shape ``(waits,)``.

    Attributes:
        waiter: index of the waiting thread.
        worker: index of the working thread.
        gap: boundary of the waiter behind which it waits.
        burst_first: first boundary of the burst.
        burst_last: last boundary of the burst.
    """

    waiter: I64
    worker: I64
    gap: I64
    burst_first: I64
    burst_last: I64


def find_handoffs(b: Boundaries) -> Handoffs:
    """All waits of one rank's threads for another thread's burst."""
    wide = np.flatnonzero(b.gap >= MIN_GAP_NS)
    best_cover = np.zeros(len(wide))
    worker = np.full(len(wide), -1, np.int64)
    burst = np.zeros((len(wide), 2), np.int64)
    begin, end = b.time[wide], b.time[wide] + b.gap[wide]
    for other in range(len(b.threads)):
        lo, hi = b.first[other], b.first[other + 1]
        time = b.time[lo:hi]
        first = lo + np.searchsorted(time, begin, side="left")
        last = lo + np.searchsorted(time, end, side="right") - 1
        ok = (b.thread[wide] != other) & (first < last)
        f, n = np.where(ok, first, lo), np.where(ok, last, lo)
        # The burst must begin and end with the thread outside of any row.
        ok &= (b.depth[n] == 0) & (b.label[f] % 2 == 0) & (b.depth[f] == 1)
        cover = np.where(ok, (b.time[n] - b.time[f]) / np.maximum(end - begin, 1), 0.0)
        better = cover > np.maximum(best_cover, MIN_COVERAGE)
        best_cover[better] = cover[better]
        worker[better] = other
        burst[better, 0], burst[better, 1] = f[better], n[better]
    keep = worker >= 0
    return Handoffs(
        b.thread[wide][keep].astype(np.int64), worker[keep], wide[keep], burst[keep, 0],
        burst[keep, 1],
    )  # fmt: skip
