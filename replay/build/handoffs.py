"""Host threads that wait for each other: a gap that another thread's burst of work fills.

``loss.backward()`` blocks the main thread while the autograd thread works. Such a gap is a
wait, not host work: the burst starts after the waiting thread gave way, and the waiting thread
goes on when the burst has ended, or when the autograd engine hands it a task of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.gaps import Boundaries
from foretrace.replay.graph import I64

ENGINE_ROW = "autograd::engine::evaluate_function"

MIN_GAP_NS = 50_000
"""Shorter gaps are not looked at: a hand-over between threads itself costs tens of microseconds."""

MIN_COVERAGE = 0.5
"""Share of the gap that the other thread's burst must fill."""

MAX_WAKE_NS = 300_000
MAX_WAKE_SHARE = 0.1
"""The waiter gives way, and goes on, within this time or share of the gap of the burst's ends."""


@dataclass(frozen=True, slots=True)
class Network:
    """Communication that host threads of the rank carry out (gloo); shape ``(operations,)``.

    Attributes:
        row: event row, sorted by end.
        end: end, ns.
    """

    row: I64
    end: I64


@dataclass(frozen=True, slots=True)
class Handoffs:
    """Waits of one thread for another's burst; arrays of shape ``(waits,)``.

    Attributes:
        waiter: index of the waiting thread.
        gap: boundary of the waiter behind which it waits.
        worker: index of the working thread, -1 for communication.
        burst_first: first boundary of the burst; -1 where the worker was already at work.
        burst_last: the worker's last boundary before the waiter goes on, -1 for communication.
        work: event row of the communication that is waited for, -1 for a thread.
    """

    waiter: I64
    gap: I64
    worker: I64
    burst_first: I64
    burst_last: I64
    work: I64


def find_handoffs(
    b: Boundaries, blocking: I64, network: Network, names: tuple[str, ...]
) -> Handoffs:
    """All waits of one rank's threads for another thread.

    Three patterns count: the other thread lay idle, began inside the gap and filled most of it;
    it is a thread of the autograd engine, works for this waiter and was busy through most of the
    gap; or it carries out communication that ended late in the gap (a wait inside C++, which
    leaves no row).

    Args:
        b: boundaries of the rank's host rows.
        blocking: rows of blocking calls; the time inside them is explained already.
        network: communication that the rank's host threads carry out.
        names: the job's names.
    """
    inside = np.isin(b.row, blocking) & (b.label % 2 == 0)
    wide = np.flatnonzero((b.gap >= MIN_GAP_NS) & ~inside)
    best = np.full(len(wide), MIN_COVERAGE)
    found = np.full((4, len(wide)), -1, np.int64)
    engine = _engine_threads(b, names)
    for other in range(len(b.threads)):
        cover, first, last = _burst(b, wide, other, bool(engine[other]))
        better = cover > best
        best[better] = cover[better]
        columns = np.stack([np.full(len(wide), other), first, last, np.full(len(wide), -1)])
        found[:, better] = columns[:, better]
    if len(network.row):
        begin, end = b.time[wide], b.time[wide] + b.gap[wide]
        at = np.searchsorted(network.end, end, side="right") - 1
        cover = np.where(at >= 0, (network.end[at] - begin) / np.maximum(end - begin, 1), 0.0)
        better = cover > best
        found[:3, better] = -1
        found[3, better] = network.row[at[better]]
        best[better] = cover[better]
    keep = best > MIN_COVERAGE
    worker, first, last, work = found[:, keep]
    return Handoffs(b.thread[wide][keep].astype(np.int64), wide[keep], worker, first, last, work)


def _burst(b: Boundaries, wide: I64, other: int, engine: bool) -> tuple[np.ndarray, I64, I64]:
    """How much of each wide gap a thread's burst fills, and the burst's ends."""
    begin, end = b.time[wide], b.time[wide] + b.gap[wide]
    lo, hi = b.first[other], b.first[other + 1]
    first = lo + np.searchsorted(b.time[lo:hi], begin, side="left")
    last = lo + np.searchsorted(b.time[lo:hi], end, side="right") - 1
    ok = (b.thread[wide] != other) & (first <= last)
    first, last = np.where(ok, first, lo), np.where(ok, last, lo)
    rested = b.time[first] - b.time[np.maximum(first - 1, lo)] >= MIN_GAP_NS
    idle_before = (b.label[first] % 2 == 0) & (b.depth[first] == 1) & (rested | (first == lo))
    busy_after = b.depth[last] > 0
    until = np.where(busy_after, end, b.time[last])
    since = np.where(idle_before, b.time[first], begin)
    started = ok & idle_before & (~busy_after | engine)
    # Only a thread that called the engine is handed tasks by it.
    ok = started | (ok & engine & np.isin(b.thread[wide], b.thread[wide[started]]))
    wake = np.maximum(MAX_WAKE_NS, ((end - begin) * MAX_WAKE_SHARE).astype(np.int64))
    ok &= (since - begin <= wake) & (end - b.time[last] <= wake)
    cover = np.where(ok, (until - since) / np.maximum(end - begin, 1), 0.0)
    return cover, np.where(idle_before, first, -1), last


def _engine_threads(b: Boundaries, names: tuple[str, ...]) -> np.ndarray:
    """Threads that spend most of their busy time in the autograd engine, shape ``(threads,)``."""
    opens = np.flatnonzero((b.label % 2 == 0) & (b.depth == 1))
    closes = np.flatnonzero((b.label % 2 == 1) & (b.depth == 0))
    took = (b.time[closes] - b.time[opens]).astype(np.float64)
    rows = np.unique(b.label[opens] // 2)
    engine = np.array([r for r in rows if names[r].startswith(ENGINE_ROW)], np.int64)
    is_engine = np.isin(b.label[opens] // 2, engine)
    busy = np.bincount(b.thread[opens], weights=took, minlength=len(b.threads))
    inside = np.bincount(b.thread[opens], weights=took * is_engine, minlength=len(b.threads))
    return inside > busy / 2
