"""Where each execution of a collective or message on a rank began to wait: its arrival."""

from __future__ import annotations

import numpy as np

from foretrace.replay.graph import I64, JobGraph, TaskKind


def arrivals(graph: JobGraph) -> I64:
    """The ARRIVE task of each COMM task on its rank, -1 elsewhere, shape ``(n,)``.

    It is the arrival that the execution follows at once or, where only the last arrival of all
    ranks stands between them, the rank's arrival at the same operation.
    """
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    own = (graph.kind[target] == TaskKind.COMM) & (graph.kind[graph.pred] == TaskKind.ARRIVE)
    own &= graph.rank[target] == graph.rank[graph.pred]
    found = np.full(len(graph), -1, np.int64)
    found[target[own]] = graph.pred[own]
    known = graph.collective >= 0
    comm = np.flatnonzero((graph.kind == TaskKind.COMM) & known & (found < 0))
    arrive = np.flatnonzero((graph.kind == TaskKind.ARRIVE) & known)
    if not (len(comm) and len(arrive)):
        return found
    width = int(graph.rank.max(initial=0)) + 1
    key = graph.collective.astype(np.int64) * width + graph.rank
    arrive = arrive[np.argsort(key[arrive], kind="stable")]
    place = np.minimum(np.searchsorted(key[arrive], key[comm]), len(arrive) - 1)
    nearest = arrive[place]
    found[comm] = np.where(key[nearest] == key[comm], nearest, -1)
    return found
