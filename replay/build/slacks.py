"""How long tasks started after the predecessor that decided, and the low end of such samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.slackkernel import low_ends
from foretrace.replay.engine import counts_from_start
from foretrace.replay.graph import I64, EdgeKind, JobGraph
from foretrace.replay.kernels import latest_predecessor

MIN_SAMPLES = 20
"""Fewer samples make no constant of their own."""

DELAYED = (EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.SYNC)
"""Edges that carry a constant."""


@dataclass(frozen=True, slots=True)
class Slacks:
    """Slack behind the deciding predecessor, in order of start; arrays of shape ``(samples,)``.

    Attributes:
        task: the task that started.
        edge: the edge that decided.
        slack_ns: how long after it the task started.
    """

    task: I64
    edge: I64
    slack_ns: I64


def slacks(graph: JobGraph, borrow: frozenset[int], in_time: I64) -> Slacks:
    """The slack of every task that an edge with a constant decided.

    Args:
        graph: the job graph, its delays as known so far.
        borrow: ranks that are left out.
        in_time: its tasks in order of time (see :func:`time_order`).
    """
    from_start = counts_from_start(graph)
    _, bound = latest_predecessor(
        graph.measured_start_ns,
        graph.measured_end_ns,
        graph.pred_ptr,
        graph.pred,
        from_start,
        graph.edge_delay_ns,
    )
    tasks = in_time[(bound[in_time] >= 0) & (graph.rank[in_time] >= 0)]
    tasks = tasks[np.isin(graph.edge_kind[bound[tasks]], DELAYED)]
    if borrow:
        tasks = tasks[~np.isin(graph.rank[tasks], list(borrow))]
    edge = bound[tasks]
    pred = graph.pred[edge]
    ready = np.where(from_start[edge], graph.measured_start_ns[pred], graph.measured_end_ns[pred])
    return Slacks(tasks, edge, graph.measured_start_ns[tasks] - ready)


def time_order(graph: JobGraph) -> I64:
    """All tasks in order of their measured start.

    Ties must not depend on how tasks are numbered, which other ranks have a say in.
    """
    return np.lexsort((graph.event, graph.rank, graph.measured_start_ns))


def low_percentile(slack: I64) -> int:
    """The low end of one group of samples, ns; see ``slackkernel.low_ends``."""
    return int(low_ends(slack, np.zeros(1, np.int64), np.array([len(slack)]))[0])
