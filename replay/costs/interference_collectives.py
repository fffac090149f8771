"""How much the collectives of a job slow down beside computation, where its trace can tell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.costs.interference import F64
from foretrace.replay.costs.interference_pairs import ALONE_BELOW, OVERLAPPED_ABOVE, integral
from foretrace.replay.graph import I64, JobGraph, TaskKind
from foretrace.replay.rates import devices
from foretrace.replay.selection import Mask

MIN_EACH = 20
"""Fewer operations than this beside computation, or alone, tell nothing."""


@dataclass(frozen=True, slots=True)
class CollectivePairs:
    """Executions of collectives beside computation whose like was seen alone; shape ``(k,)``.

    Attributes:
        slowdown: execution over the median execution alone of the same kind, bytes and group size.
        alone: executions alone that the medians are from.
    """

    slowdown: F64
    alone: int


def collective_pairs(graph: JobGraph, seen: Mask | None = None) -> CollectivePairs:
    """Executions of matched collectives that ran fully beside computation, or fully without.

    A collective runs beside computation where any of its members does.

    Args:
        graph: the job as recorded.
        seen: tasks that may be looked at, shape ``(n,)``; all by default.
    """
    comm = np.flatnonzero((graph.kind == TaskKind.COMM) & (graph.collective >= 0))
    comm = comm if seen is None else comm[seen[comm]]
    comm = comm[(devices(graph)[comm] >= 0) & (graph.dur_ns[comm] > 0)]
    comm = comm[graph.collectives.bytes[graph.collective[comm]] > 0]
    share = np.zeros(len(graph.collectives.kind))
    np.maximum.at(share, graph.collective[comm], _share_beside(graph, comm))
    share = share[graph.collective[comm]]
    like = _like(graph, comm)
    alone, beside = share < ALONE_BELOW, share > OVERLAPPED_ABOVE
    typical = np.full(int(like.max(initial=-1)) + 1, np.nan)
    for key in np.unique(like[beside]):
        times = graph.dur_ns[comm[alone & (like == key)]]
        typical[key] = np.median(times) if len(times) else np.nan
    known = beside & ~np.isnan(typical[like])
    slowdown = graph.dur_ns[comm[known]] / typical[like[known]]
    return CollectivePairs(slowdown, int((alone & np.isin(like, like[known])).sum()))


def fit_phi(pairs: CollectivePairs, prior: float) -> float:
    """``Interference.phi`` from a job's own collectives, or the prior where they are too few.

    Args:
        pairs: from :func:`collective_pairs`.
        prior: what is taken otherwise.
    """
    if min(len(pairs.slowdown), pairs.alone) < MIN_EACH:
        return prior
    return max(float(np.median(pairs.slowdown)) - 1.0, 0.0)


def _share_beside(graph: JobGraph, comm: I64) -> F64:
    """Share of each execution during which its rank computes, shape ``(k,)``."""
    share = np.zeros(len(comm))
    kernels = np.flatnonzero((graph.kind == TaskKind.KERNEL) & (devices(graph) >= 0))
    end = graph.measured_end_ns[comm]
    for rank in np.unique(graph.rank[comm]):
        mine, beside = graph.rank[comm] == rank, kernels[graph.rank[kernels] == rank]
        span = (end[mine] - graph.dur_ns[comm[mine]], end[mine])
        busy = integral(
            graph.measured_start_ns[beside], graph.measured_end_ns[beside],
            np.ones(len(beside)), span, capped=True,
        )  # fmt: skip
        share[mine] = busy / graph.dur_ns[comm[mine]]
    return share


def _like(graph: JobGraph, comm: I64) -> I64:
    """Number of each operation's kind, bytes and group size, shape ``(k,)``."""
    which, table = graph.collective[comm], graph.collectives
    size = np.array([len(group) for group in graph.groups] or [0])
    columns = np.stack([table.kind[which], table.bytes[which], size[table.group[which]]])
    _, number = np.unique(columns, axis=1, return_inverse=True)
    return number.reshape(-1).astype(np.int64)
