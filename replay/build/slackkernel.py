"""Compiled loops over samples of slack: the low end of many groups of samples at once."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

I64 = NDArray[np.int64]

PERCENT = 40.0

RUN = 16
MIN_RUNS = 5
"""Samples are averaged over runs of this length (shorter where there are few of them)."""

CLIP = 4.0
"""Samples beyond this many medians count as that many."""


@njit(cache=True)
def low_ends(slack: I64, first: I64, stop: I64) -> I64:
    """The low end of each group of samples, never negative, ns.

    Samples, in order of time, are first averaged over short runs: clocks that tick in whole
    microseconds spread equal gaps over two or three values, and a percentile of single samples
    would measure the ticks. The percentile of the runs' means stays low where the slack itself
    varies. Outliers are cut back first, so that lateness never becomes a constant.

    Args:
        slack: samples, those of a group behind one another.
        first: where each group begins, shape ``(groups,)``.
        stop: where it ends. A group without samples gets 0.
    """
    result = np.zeros(len(first), np.int64)
    for g in range(len(first)):
        own = slack[first[g] : stop[g]]
        if not len(own):
            continue
        ordered = np.sort(own)
        median = (ordered[(len(own) - 1) // 2] + ordered[len(own) // 2]) / 2
        most = max(median + 2 * _tick(own), CLIP * median)
        run = max(min(RUN, len(own) // MIN_RUNS), 1)
        means = np.empty(len(own) // run)
        for k in range(len(means)):
            total = 0.0
            for i in range(k * run, (k + 1) * run):
                total += min(float(own[i]), most)
            means[k] = total / run
        means.sort()
        result[g] = max(int(_percentile(means)), 0)
    return result


@njit(cache=True)
def _tick(values: I64) -> int:
    """The greatest common divisor of all values."""
    tick = 0
    for value in values:
        a, b = tick, abs(value)
        while b:
            a, b = b, a % b
        tick = a
        if tick == 1:
            break
    return tick


@njit(cache=True)
def _percentile(ordered: NDArray[np.float64]) -> float:
    """What ``numpy.percentile`` gives of sorted values."""
    at = PERCENT / 100 * (len(ordered) - 1)
    low = int(at)
    share = at - low
    a, b = float(ordered[low]), float(ordered[min(low + 1, len(ordered) - 1)])
    return a + (b - a) * share if share < 0.5 else b - (b - a) * (1 - share)


@njit(cache=True)
def count_beyond(slack: I64, first: I64, stop: I64, limit: I64) -> I64:
    """How many samples of each group exceed the group's limit."""
    result = np.zeros(len(first), np.int64)
    for g in range(len(first)):
        for i in range(first[g], stop[g]):
            result[g] += slack[i] > limit[g]
    return result
