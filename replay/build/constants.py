"""The only delays that device tasks have: constants per rank, from the low end of the slack.

Slack is how long a task started after everything it was modelled to wait for. Most of it is the
fixed cost of a launch, of the next kernel on a stream or of a wake-up; the rest is unexplained
and must stay visible. So each constant is a percentile below the median, pooled over all ranks
where a rank has few samples, and never fitted to the replay's error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from foretrace.replay.engine import counts_from_start
from foretrace.replay.graph import EdgeKind, JobGraph, TaskKind
from foretrace.replay.kernels import latest_predecessor

PERCENTILE = 40.0

RUN = 16
MIN_RUNS = 5
"""Samples are averaged over runs of this length (shorter where there are few of them)."""

CLIP = 4.0
"""Samples beyond this many medians count as that many."""

MIN_SAMPLES = 20
"""A rank with fewer samples takes the constant pooled over all ranks."""

OUTLIER = 20
"""A task whose slack is this many times its constant (and 100 us) is listed as an outlier."""

ROUNDS = 3

DELAYED = (EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.SYNC)


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of one rank.

    Attributes:
        edge: kind of the edges that carry it.
        source: kind of the tasks they come from.
        target: kind of the tasks they lead to.
        rank: rank.
        delay_ns: the delay.
        samples: tasks it rests on (of all ranks where pooled).
        outliers: how many of the rank's tasks lie far beyond it.
        pooled: whether the rank had too few samples of its own.
    """

    edge: EdgeKind
    source: TaskKind
    target: TaskKind
    rank: int
    delay_ns: int
    samples: int
    outliers: int
    pooled: bool


def with_constants(
    graph: JobGraph, borrow: frozenset[int] = frozenset()
) -> tuple[JobGraph, tuple[Constant, ...]]:
    """Estimate the constants and set them as the delays of their edges.

    Which predecessor decides depends on the delays themselves, hence a few rounds.

    Args:
        graph: the job graph, its edges without delays.
        borrow: ranks whose own times say nothing; they take the other ranks' constants.
    """
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    label = _labels(graph.edge_kind, graph.kind[graph.pred], graph.kind[target], graph.rank[target])
    constants: tuple[Constant, ...] = ()
    for _ in range(ROUNDS):
        constants = _estimate(graph, label, borrow)
        delay = graph.edge_delay_ns.copy()
        known = _labels(
            np.array([c.edge for c in constants], np.int8),
            np.array([c.source for c in constants], np.int8),
            np.array([c.target for c in constants], np.int8),
            np.array([c.rank for c in constants], np.int32),
        )
        values = np.array([c.delay_ns for c in constants], np.int64)
        if len(known):
            order = np.argsort(known)
            at = np.minimum(np.searchsorted(known[order], label), len(known) - 1)
            hit = known[order][at] == label
            delay[hit] = values[order][at[hit]]
        graph = replace(graph, edge_delay_ns=delay)
    return graph, constants


def _labels(
    edge: np.ndarray, source: np.ndarray, target: np.ndarray, rank: np.ndarray
) -> np.ndarray:
    """One number per (edge kind, source kind, target kind, rank)."""
    kinds = (edge.astype(np.int64) * 64 + source) * 64 + target
    number: np.ndarray = kinds * (1 << 32) + rank
    return number


def _estimate(graph: JobGraph, label: np.ndarray, borrow: frozenset[int]) -> tuple[Constant, ...]:
    """One round: slack beyond each task's deciding predecessor."""
    from_start = counts_from_start(graph)
    _, bound = latest_predecessor(
        graph.measured_start_ns,
        graph.measured_end_ns,
        graph.pred_ptr,
        graph.pred,
        from_start,
        graph.edge_delay_ns,
    )
    tasks = np.flatnonzero((bound >= 0) & (graph.rank >= 0))
    tasks = tasks[np.isin(graph.edge_kind[bound[tasks]], DELAYED)]
    tasks = tasks[~np.isin(graph.rank[tasks], list(borrow))]
    tasks = tasks[np.argsort(graph.measured_start_ns[tasks], kind="stable")]
    edge = bound[tasks]
    pred = graph.pred[edge]
    ready = np.where(from_start[edge], graph.measured_start_ns[pred], graph.measured_end_ns[pred])
    slack = graph.measured_start_ns[tasks] - ready
    own = label[edge]
    ranks = np.unique(graph.rank[graph.rank >= 0])
    result = []
    for kind in np.unique(own >> 32):
        pooled, pooled_count = _pooled(slack, own >> 32, int(kind))
        edge_kind = EdgeKind(int(kind) // 4096)
        source, target = TaskKind(int(kind) // 64 % 64), TaskKind(int(kind) % 64)
        # Every rank gets the constant, also one that has such edges but no deciding one.
        for rank in ranks:
            mine = slack[own == (kind << 32) + rank]
            enough = len(mine) >= MIN_SAMPLES
            delay = low_percentile(mine) if enough else pooled
            far = int((mine > max(OUTLIER * delay, 100_000)).sum())
            count = len(mine) if enough else pooled_count
            result.append(
                Constant(edge_kind, source, target, int(rank), delay, count, far, not enough)
            )
    return tuple(result)


def _pooled(slack: np.ndarray, kinds: np.ndarray, kind: int) -> tuple[int, int]:
    """A constant over all ranks, from the narrowest class that has enough samples.

    The classes: same edge, source and target kind; same edge and target; same edge. A constant
    from one or two samples would swallow the very faults that it should show.
    """
    for unit, offset in ((1, 0), (64, kind % 64), (4096, 0)):
        if unit == 64:
            same = (kinds // 4096 == kind // 4096) & (kinds % 64 == offset)
        else:
            same = kinds // unit == kind // unit
        if same.sum() >= MIN_SAMPLES:
            return low_percentile(slack[same]), int(same.sum())
    return max(int(slack[same].min()), 0), int(same.sum())


def low_percentile(slack: np.ndarray) -> int:
    """The low end of the slack, never negative, ns.

    Samples, in order of time, are first averaged over short runs: clocks that tick in whole
    microseconds spread equal gaps over two or three values, and a percentile of single samples
    would measure the ticks. The percentile of the runs' means stays low where the slack itself
    varies. Outliers are cut back first, so that lateness never becomes a constant.
    """
    if not len(slack):
        return 0
    median = float(np.median(slack))
    tick = int(np.gcd.reduce(slack))
    slack = np.minimum(slack, max(median + 2 * tick, CLIP * median))
    run = max(min(RUN, len(slack) // MIN_RUNS), 1)
    whole = len(slack) // run * run
    means = slack[:whole].reshape(-1, run).mean(axis=1)
    return max(int(np.percentile(means, PERCENTILE)), 0)
