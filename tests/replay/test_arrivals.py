"""Arrivals are found behind an edge of their own and behind the last arrival of all ranks."""

from __future__ import annotations

import numpy as np
from tests.replay.extrapolate.jobs import DENSE, job

from foretrace.replay.arrivals import arrivals
from foretrace.replay.graph import TaskKind


def test_executions_behind_the_last_arrival_of_all() -> None:
    slow = np.ones(4)
    slow[1] = 1.5
    graph = job(DENSE, tp=4, slow=slow).graph
    met = np.flatnonzero((graph.kind == TaskKind.COMM) & np.isin(
        graph.collective, graph.collective[graph.kind == TaskKind.ARRIVE]))  # fmt: skip
    found = arrivals(graph)
    assert len(met)
    assert (found[met] >= 0).all()
    assert np.array_equal(graph.rank[found[met]], graph.rank[met])
    assert np.array_equal(graph.collective[found[met]], graph.collective[met])
    assert (np.delete(found, met) == -1).all()
