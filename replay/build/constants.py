"""The only delays that device tasks have: constants per rank, from the low end of the slack.

Slack is how long a task started after everything it was modelled to wait for. Most of it is the
fixed cost of a launch, of the next kernel on a stream or of a wake-up; the rest is unexplained
and must stay visible. So each constant is a percentile below the median, pooled over all ranks
where a rank has few samples, and never fitted to the replay's error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from foretrace.replay.build.labelkernel import distinct, grouped
from foretrace.replay.build.owngaps import with_own_gaps
from foretrace.replay.build.slackkernel import count_beyond, low_ends
from foretrace.replay.build.slacks import MIN_SAMPLES, Slacks, low_percentile, slacks, time_order
from foretrace.replay.graph import I64, EdgeKind, JobGraph, TaskKind

OUTLIER = 20
"""A task whose slack is this many times its constant (and 100 us) is listed as an outlier."""

ROUNDS = 3


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

    Which predecessor decides depends on the delays themselves, hence a few rounds. Kernels that
    are seen often get a gap of their own at last (see ``owngaps``).

    Args:
        graph: the job graph, its edges without delays.
        borrow: ranks whose own times say nothing; they take the other ranks' constants.
    """
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    label = _labels(graph.edge_kind, graph.kind[graph.pred], graph.kind[target], graph.rank[target])
    labels, number = distinct(label)
    in_time = time_order(graph)
    for _ in range(ROUNDS):
        found = _estimate(graph, slacks(graph, borrow, in_time), labels, number)
        if not len(found.label):
            break
        at = np.minimum(np.searchsorted(found.label, labels), len(found.label) - 1)
        hit = found.label[at] == labels
        delay = np.where(hit[number], found.delay_ns[at][number], graph.edge_delay_ns)
        graph = replace(graph, edge_delay_ns=delay)
    return with_own_gaps(graph, borrow, in_time), _constants(found)


def _labels(
    edge: np.ndarray, source: np.ndarray, target: np.ndarray, rank: np.ndarray
) -> np.ndarray:
    """One number per (edge kind, source kind, target kind, rank)."""
    kinds = (edge.astype(np.int64) * 64 + source) * 64 + target
    number: np.ndarray = kinds * (1 << 32) + rank
    return number


@dataclass(frozen=True, slots=True)
class _Found:
    """Constants of one round, by label ascending; shape ``(constants,)``; see :class:`Constant`."""

    label: I64
    delay_ns: I64
    samples: I64
    outliers: I64
    pooled: np.ndarray


def _estimate(graph: JobGraph, found: Slacks, labels: I64, number: I64) -> _Found:
    """One round: slack beyond each task's deciding predecessor.

    Args:
        graph: the job graph.
        found: its slacks.
        labels: labels of its edges, ascending.
        number: place of each edge's label among them.
    """
    own = number[found.edge]
    order, first = grouped(own, len(labels))
    slack = found.slack_ns[order]
    ranks = np.unique(graph.rank[graph.rank >= 0]).astype(np.int64)
    kinds = np.unique(labels[np.diff(first) > 0] >> 32)
    # Every rank gets the constant, also one that has such edges but no deciding one.
    label = ((kinds << 32)[:, None] + ranks).reshape(-1)
    at = np.minimum(np.searchsorted(labels, label), max(len(labels) - 1, 0))
    known = labels[at] == label
    begin, stop = np.where(known, first[at], 0), np.where(known, first[at + 1], 0)
    samples = stop - begin
    enough = samples >= MIN_SAMPLES
    delay = low_ends(slack, begin, stop)
    of_edge = labels[own] >> 32
    for kind in np.unique(label[~enough] >> 32).tolist():
        few = ~enough & (label >> 32 == kind)
        delay[few], samples[few] = _pooled(found.slack_ns, of_edge, kind)
    outliers = count_beyond(slack, begin, stop, np.maximum(OUTLIER * delay, 100_000))
    return _Found(label, delay, samples, outliers, ~enough)


def _constants(found: _Found) -> tuple[Constant, ...]:
    """The constants one by one."""
    kind = found.label >> 32
    columns = (
        kind // 4096, kind // 64 % 64, kind % 64, found.label & 0xFFFFFFFF, found.delay_ns,
        found.samples, found.outliers, found.pooled,
    )  # fmt: skip
    return tuple(
        Constant(EdgeKind(edge), TaskKind(source), TaskKind(target), *rest)
        for edge, source, target, *rest in zip(*(c.tolist() for c in columns), strict=True)
    )


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
