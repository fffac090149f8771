"""Steps of jobs whose ranks are all laid out, with durations drawn anew for every execution."""

from __future__ import annotations

import numpy as np
from tests.replay.extrapolate.jobs import H100, timed

from foretrace.replay.engine import replay
from foretrace.replay.extrapolate.jitter import Jitter, variances
from foretrace.replay.extrapolate.job import extrapolate
from foretrace.replay.graph import TaskKind
from foretrace.replay.layout import Layout, stage_layers
from foretrace.replay.model import Model


def mean_jitter_ns(model: Model, layout: Layout, jitter: Jitter, steps: int) -> tuple[float, float]:
    """Mean step less the step without jitter over all ranks, and the error of that mean, ns."""
    made, layers = timed(model, layout), stage_layers(model, layout)
    graph = extrapolate(made, layout, H100, layers, whole=True).graph
    square = extrapolate(
        variances(made, jitter), layout, H100, layers, whole=True,
        prices=lambda ops, where: np.zeros(len(ops.kind)),
    ).graph  # fmt: skip
    assert np.array_equal(graph.pred, square.pred)
    rows = np.flatnonzero((square.dur_ns > 0) & (square.kind == TaskKind.KERNEL))
    spread = np.sqrt(square.dur_ns[rows].astype(float))
    rng = np.random.default_rng(1)
    ends = []
    for _ in range(steps):
        dur = graph.dur_ns.copy()
        dur[rows] += np.rint(spread * rng.standard_normal(len(rows))).astype(np.int64)
        ends.append(float(replay(graph, np.maximum(dur, 0)).end_ns.max()))
    plain = float(replay(graph).end_ns.max())
    return float(np.mean(ends)) - plain, float(np.std(ends) / np.sqrt(steps))
