"""Derivatives of the step time against replays with slightly other durations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.random_graphs import edge_lists, graph_of
from tests.replay.test_slack import with_step

from foretrace.replay.boundedby import bounded_by
from foretrace.replay.engine import replay
from foretrace.replay.graph import JobGraph, TaskKind
from foretrace.replay.sensitivity import contributions, sensitivity
from foretrace.replay.slack import closing_tasks
from foretrace.replay.taskclasses import classify, name_prefix
from foretrace.traces.errors import ScenarioError

FINE = 10**6
"""Durations and delays are multiples of this, so that chains differ by more than small changes."""

KINDS = [int(k) for k in (TaskKind.HOST, TaskKind.CALL, TaskKind.KERNEL, TaskKind.COMM)]


@st.composite
def coarse_graphs(draw: st.DrawFn) -> JobGraph:
    n = draw(st.integers(2, 14))
    edges = [(a, b, kind, FINE * delay) for a, b, kind, delay in draw(edge_lists(list(range(n))))]
    dur = [FINE * d for d in draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))]
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=n, max_size=n))
    for mark in (0, n - 1):
        dur[mark], kinds[mark] = 0, int(TaskKind.MARK)
    return with_step(graph_of(dur, edges, kinds))


def length(graph: JobGraph, dur: np.ndarray) -> int:
    timeline = replay(graph, dur)
    return int(
        timeline.end_ns[closing_tasks(timeline)].max() - timeline.start_ns[graph.steps.begin].min()
    )


@given(coarse_graphs(), st.sampled_from(["kind", "rank", "layer"]))
def test_derivatives_are_those_of_replays(graph: JobGraph, by: str) -> None:
    found = sensitivity(replay(graph), by)
    assert found.total_ns == length(graph, graph.dur_ns)
    classes = classify(graph, by)
    for i, name in enumerate(classes.names):
        mine = np.where(classes.label == i, graph.dur_ns // FINE, 0)
        grown = length(graph, graph.dur_ns + mine) - found.total_ns
        shrunk = found.total_ns - length(graph, graph.dur_ns - mine)
        at = found.names.index(name) if name in found.names else -1
        assert grown * FINE == (found.grows_ns[at] if at >= 0 else 0)
        assert shrunk * FINE == (found.saves_ns[at] if at >= 0 else 0)


@given(coarse_graphs(), st.sampled_from(["kind", "rank"]))
def test_classes_and_constants_make_up_one_path(graph: JobGraph, by: str) -> None:
    timeline = replay(graph)
    found = sensitivity(timeline, by)
    on_path = contributions(timeline, by)
    assert sum(on_path.values()) + found.constant_ns == found.total_ns
    for name, time in on_path.items():
        at = found.names.index(name)
        assert found.saves_ns[at] <= time <= found.grows_ns[at]
    bound = bounded_by(timeline)
    assert 0 <= bound.rank_share <= 1


def test_name_prefixes() -> None:
    assert name_prefix("model.layers.3.mlp", 2) == "model.layers"
    assert name_prefix("void at::native::vectorized<4, float>(int)", 2) == "at::native"
    assert name_prefix("aten::mm", 2) == "aten::mm"
    assert name_prefix("Memcpy DtoH (Device -> Pinned)", 1) == "Memcpy DtoH"
    assert name_prefix("(host stall)", 2) == "(host stall)"


def test_more_classes_than_one_pass_holds() -> None:
    n = 80
    chain = [(i, i + 1, 0, 0) for i in range(n - 1)]
    graph = with_step(graph_of([i + 1 for i in range(n)], chain))
    found = sensitivity(replay(graph), "layer")
    assert found.names[:2] == ("task 79", "task 78")
    assert found.grows_ns.tolist() == sorted(range(1, n + 1), reverse=True)
    assert (found.saves_ns == found.grows_ns).all()


def test_collectives_are_told_apart_by_group() -> None:
    from tests.replay.test_whatif import GRAPH

    classes = classify(GRAPH, "collective")
    assert classes.names == ("all_reduce 0-1", "send_recv 1,5", "without a counterpart")
    assert set(classes.label[GRAPH.kind != TaskKind.COMM].tolist()) == {-1}
    assert classes.label[GRAPH.kind == TaskKind.COMM].tolist() == [0, 0, 1]


def test_no_such_class() -> None:
    graph = replace(with_step(graph_of([1], [])))
    with pytest.raises(ScenarioError, match="sorted by kind, rank, layer, collective"):
        sensitivity(replay(graph), "colour")
