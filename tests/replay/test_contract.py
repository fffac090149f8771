"""Reduced graphs: every kept task starts when it does in the whole graph, to the nanosecond."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.random_graphs import Edge, graph_of, job_graphs
from tests.replay.reference import simulate

from foretrace.replay.contract.kernel import WINDOW
from foretrace.replay.contract.reduce import reduced
from foretrace.replay.contract.segments import contract
from foretrace.replay.engine import replay, sort_tasks
from foretrace.replay.graph import EdgeKind, JobGraph, StepMarks, TaskKind
from foretrace.replay.timeline import step_windows


def edges_of(graph: JobGraph) -> list[Edge]:
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    columns = (graph.pred, target, graph.edge_kind, graph.edge_delay_ns)
    return list(zip(*(c.tolist() for c in columns), strict=True))


def of_rank_edges(graph: JobGraph) -> tuple[JobGraph, list[Edge]]:
    """The graph without edges between ranks, and those edges."""
    every = edges_of(graph)
    rank = graph.rank
    own = [e for e in every if rank[e[0]] == rank[e[1]]]
    alone = graph_of(graph.dur_ns.tolist(), own, graph.kind.tolist())
    return replace(alone, rank=rank), [e for e in every if rank[e[0]] != rank[e[1]]]


def solved(alone: JobGraph, cross: list[Edge], kept: np.ndarray) -> dict[int, int]:
    """Starts of the kept tasks from the reduced graph, by the reference simulator."""
    segments = contract(alone, kept)
    number = {int(t): i + 1 for i, t in enumerate(segments.task)}  # 0 is time zero
    target = np.repeat(np.arange(len(segments.task)), np.diff(segments.ptr))
    inner = [
        (int(s) + 1, int(t) + 1, int(EdgeKind.SEGMENT), int(w))
        for s, t, w in zip(segments.source, target, segments.weight_ns, strict=True)
    ]
    outer = [(number[a], number[b], kind, delay) for a, b, kind, delay in cross]
    small = graph_of([0, *alone.dur_ns[segments.task].tolist()], [*inner, *outer])
    starts = simulate(small)
    fast = replay(sort_tasks(small))
    assert dict(zip(fast.graph.event.tolist(), fast.start_ns.tolist(), strict=True)) == starts
    return {task: starts[i] for task, i in number.items()}


@given(job_graphs(), st.data())
def test_kept_tasks_start_as_in_the_whole_graph(graph: JobGraph, data: st.DataObject) -> None:
    graph = sort_tasks(graph)
    ranks = data.draw(st.lists(st.integers(0, 2), min_size=len(graph), max_size=len(graph)))
    graph = replace(graph, rank=np.array(ranks, np.int32))
    alone, cross = of_rank_edges(graph)
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(graph), max_size=len(graph))))
    kept = kept.astype(bool)
    kept[[end for edge in cross for end in edge[:2]]] = True
    truth = simulate(graph)
    assert solved(alone, cross, kept) == {int(t): truth[int(t)] for t in np.flatnonzero(kept)}


@given(job_graphs(smallest=1), st.data())
def test_delays_below_zero_never_reach_before_zero(graph: JobGraph, data: st.DataObject) -> None:
    graph = sort_tasks(graph)
    few = st.integers(-30, 5)
    delay = data.draw(st.lists(few, min_size=len(graph.pred), max_size=len(graph.pred)))
    graph = replace(graph, edge_delay_ns=np.array(delay, np.int64), rank=graph.rank * 0)
    kept = np.arange(len(graph)) % 2 == 0
    segments = contract(graph, kept)
    start = [0] * len(segments.task)
    for i in range(len(start)):
        for e in range(segments.ptr[i], segments.ptr[i + 1]):
            s = int(segments.source[e])
            start[i] = max(start[i], (start[s] if s >= 0 else 0) + int(segments.weight_ns[e]))
    assert start == replay(graph).start_ns[segments.task].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_paths_longer_than_what_is_remembered(seed: int) -> None:
    """More kept tasks on a rank than the window of paths, and tasks that reach far back."""
    random = np.random.default_rng(seed)
    n = 4 * WINDOW
    far = [(int(random.integers(0, t)), t) for t in range(1, n) for _ in range(2)]
    near = [(t - 1 - int(random.integers(0, min(3, t))), t) for t in range(1, n)]
    edges = [
        (a, b, int(random.choice([EdgeKind.STREAM, EdgeKind.LAUNCH])), int(random.integers(0, 9)))
        for a, b in [*far[:: 1 + 4 * seed], *near]
    ]
    graph = graph_of(random.integers(0, 50, n).tolist(), edges)
    graph = replace(graph, rank=graph.rank * 0)
    kept = random.random(n) < 0.5
    assert kept.sum() > WINDOW
    truth = replay(graph).start_ns
    assert solved(graph, [], kept) == {int(t): int(truth[t]) for t in np.flatnonzero(kept)}


def test_a_rank_by_hand() -> None:
    """A collective, two kernels of 10 and 20 side by side, and what comes behind both."""
    comm, a, b, arrive = range(4)
    graph = graph_of(
        [5, 10, 20, 0],
        [
            (comm, a, EdgeKind.EVENT, 1),
            (comm, b, EdgeKind.EVENT, 2),
            (a, arrive, EdgeKind.STREAM, 0),
            (b, arrive, EdgeKind.STREAM, 3),
        ],
    )
    segments = contract(replace(graph, rank=graph.rank * 0), np.array([True, False, False, True]))
    assert segments.task.tolist() == [comm, arrive]
    # Time zero to the collective; and from its start 5 + 2 + 20 + 3 by way of the longer kernel.
    assert segments.source.tolist() == [-1, 0]
    assert segments.weight_ns.tolist() == [0, 30]


def test_what_a_later_collective_hides_is_dropped() -> None:
    """Behind a second collective nothing can be waiting for the first one any more."""
    first, between, second, last = range(4)
    graph = graph_of(
        [1, 7, 1, 0],
        [
            (first, between, EdgeKind.EVENT, 0),
            (between, second, EdgeKind.EVENT, 0),
            (between, last, EdgeKind.STREAM, 0),
            (second, last, EdgeKind.EVENT, 0),
        ],
    )
    kept = np.array([True, False, True, True])
    segments = contract(replace(graph, rank=graph.rank * 0), kept)
    assert segments.ptr.tolist() == [0, 1, 2, 3]
    assert segments.source.tolist() == [-1, 0, 1]
    assert segments.weight_ns.tolist() == [0, 8, 1]


@given(job_graphs(smallest=2), st.data())
def test_steps_are_as_long_as_in_the_whole_graph(graph: JobGraph, data: st.DataObject) -> None:
    graph = sort_tasks(graph)
    n = len(graph)
    steps = data.draw(st.lists(st.integers(-1, 1), min_size=n, max_size=n))
    task = st.integers(0, n - 1)
    begin, end = (np.array(data.draw(st.lists(task, min_size=2, max_size=2))) for _ in range(2))
    marks = StepMarks(np.array([0, 1], np.int32), np.zeros(2, np.int32), begin, end)
    graph = replace(
        graph,
        rank=graph.rank * 0,
        step=np.array(steps, np.int32),
        steps=marks,
        collective=np.full(n, -1, np.int32),
        measured_end_ns=graph.measured_start_ns + graph.dur_ns,
    )
    small = reduced(graph)
    assert small.kind[0] == TaskKind.SKEW
    truth, found = step_windows(replay(graph)), step_windows(replay(small))
    assert found.start_ns.tolist() == truth.start_ns.tolist()
    assert found.end_ns.tolist() == truth.end_ns.tolist()
