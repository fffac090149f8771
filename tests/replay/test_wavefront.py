"""Longest paths level by level against the compiled engine, on any graph without a cycle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.random_graphs import job_graphs

from foretrace.replay.engine import counts_from_start, permuted, replay
from foretrace.replay.graph import EdgeKind, JobGraph
from foretrace.replay.wavefront import by_level, ends_of_many, ranges
from foretrace.traces.errors import GraphError


def leveled(graph: JobGraph) -> tuple[JobGraph, np.ndarray]:
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    levels = by_level(len(graph), graph.pred, target)
    assert (levels.order[levels.number] == np.arange(len(graph))).all()
    return permuted(graph, levels.order), levels.ptr


@given(job_graphs(), st.lists(st.integers(0, 7), min_size=1, max_size=4))
def test_every_scenario_is_a_replay(graph: JobGraph, factors: list[int]) -> None:
    ends_only = np.where(counts_from_start(graph), EdgeKind.STREAM, graph.edge_kind)
    graph, ptr = leveled(replace(graph, edge_kind=ends_only.astype(np.int8)))
    dur = np.minimum(graph.dur_ns, 2**50)
    scale = np.array(factors)
    ends = ends_of_many(graph, ptr, lambda a, b: dur[a:b, None] * scale, len(scale))
    for i, factor in enumerate(factors):
        np.testing.assert_array_equal(ends[:, i], replay(graph, dur * factor).end_ns)


@given(job_graphs(smallest=1))
def test_a_level_depends_on_lower_ones_only(graph: JobGraph) -> None:
    graph, ptr = leveled(graph)
    level = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    assert (level[graph.pred] < level[target]).all()
    deepest = np.zeros(len(graph), np.int64)
    np.maximum.at(deepest, target, level[graph.pred] + 1)
    np.testing.assert_array_equal(deepest, level)


def test_a_cycle_is_an_error() -> None:
    with pytest.raises(GraphError, match="2 of 3 tasks wait for each other"):
        by_level(3, np.array([0, 1, 2]), np.array([1, 2, 1]))


def test_ranges() -> None:
    assert ranges(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
    assert ranges(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []
