"""A job graph reduced to the tasks that matter across ranks, exact to the nanosecond."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.contract.kernel import contract_ranks
from foretrace.replay.engine import counts_from_start
from foretrace.replay.graph import I64, JobGraph


@dataclass(frozen=True, slots=True)
class Segments:
    """Longest paths between kept tasks.

    Attributes:
        task: the kept tasks (numbers of the graph they were taken from), by rank and within a
            rank in topological order, shape ``(k,)``.
        ptr: shape ``(k + 1,)``; the segments that lead to kept task i are ``ptr[i]:ptr[i + 1]``.
        source: kept task (a row of ``task``) that each segment begins at, -1 for time zero.
        weight_ns: time from the start of the source to the earliest start of the target.
    """

    task: I64
    ptr: I64
    source: I64
    weight_ns: I64


def contract(graph: JobGraph, kept: np.ndarray) -> Segments:
    """Replace everything but the kept tasks by longest paths between them.

    A replay in which the kept tasks wait for the segments (and for whatever else is put before
    them) starts them exactly when a replay of the whole graph (with the same put before the
    same tasks) does.

    Args:
        graph: tasks in topological order; no edge joins tasks of different ranks, and tasks
            without a rank are left out.
        kept: which tasks stay, bool, shape ``(n,)``.
    """
    order = np.argsort(graph.rank, kind="stable")
    order = order[np.searchsorted(graph.rank[order], 0) :]
    rank = graph.rank[order]
    new = np.append(True, rank[1:] != rank[:-1]) if len(rank) else np.zeros(0, bool)
    first = np.append(np.flatnonzero(new), len(order))
    edges = (graph.pred_ptr, graph.pred, counts_from_start(graph), graph.edge_delay_ns)
    ptr, source, weight = contract_ranks(first, order, graph.dur_ns, edges, kept)
    return Segments(order[kept[order]], ptr, source, weight)
