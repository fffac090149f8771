"""The engine against a second implementation, and laws that any replay obeys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.random_graphs import edge_lists, graph_of, job_graphs
from tests.replay.reference import LAUNCHES, DeadlockError, simulate
from tests.replay.test_rates import shared_jobs

from foretrace.replay.engine import permuted, replay, replay_all, replay_each, sort_tasks
from foretrace.replay.graph import EdgeKind, JobGraph, Timeline
from foretrace.replay.scenario import parse
from foretrace.replay.selection import KIND_TASKS
from foretrace.replay.whatif import evaluate
from foretrace.traces.errors import GraphError


def starts(timeline: Timeline) -> dict[int, int]:
    """Start of each task by its lasting number."""
    numbers = timeline.graph.event.tolist()
    return dict(zip(numbers, timeline.start_ns.tolist(), strict=True))


@given(job_graphs())
def test_equals_the_reference(graph: JobGraph) -> None:
    timeline = replay(sort_tasks(graph))
    assert starts(timeline) == simulate(graph)
    assert (timeline.end_ns == timeline.start_ns + timeline.graph.dur_ns).all()


@pytest.mark.parametrize("kind", list(EdgeKind))
@given(st.data())
def test_each_kind_of_edge_alone_equals_the_reference(kind: EdgeKind, data: st.DataObject) -> None:
    order = list(range(data.draw(st.integers(2, 8))))
    edges = [(a, b, int(kind), delay) for a, b, _, delay in data.draw(edge_lists(order))]
    dur = data.draw(st.lists(st.integers(0, 2**40), min_size=len(order), max_size=len(order)))
    graph = graph_of(dur, edges)
    assert starts(replay(graph)) == simulate(graph)


@given(shared_jobs(longest=2**30))
def test_meetings_of_ranks_equal_the_reference(graph: JobGraph) -> None:
    """Arrivals of two ranks, their joins, transfers, kernels and host work, in any order."""
    assert starts(replay(graph)) == simulate(graph)


@given(job_graphs(), st.data())
def test_several_cost_vectors_equal_the_reference(graph: JobGraph, data: st.DataObject) -> None:
    graph = sort_tasks(graph)
    times = st.lists(st.integers(0, 2**50), min_size=len(graph), max_size=len(graph))
    costs = [np.array(data.draw(times), np.int64) for _ in range(data.draw(st.integers(1, 10)))]
    runs = list(replay_each(graph, ((str(i), dur) for i, dur in enumerate(costs))))
    assert len(runs) == len(costs)
    for run, dur in zip(runs, costs, strict=True):
        truth = simulate(graph, dur.tolist())
        assert run.start_ns.tolist() == [truth[task] for task in range(len(graph))]


@given(job_graphs(smallest=1), st.sampled_from(["x1", "+0us", "-0%", "/1"]))
def test_a_what_if_without_a_change_changes_nothing(graph: JobGraph, change: str) -> None:
    graph = sort_tasks(graph)
    kinds = [word for word, of in KIND_TASKS.items() if np.isin(graph.kind, of).any()]
    scenarios = [parse(f"kind:{kind}={change}") for kind in kinds]
    plain = replay(graph)
    for outcome in evaluate(graph, scenarios):
        assert (outcome.timeline.start_ns == plain.start_ns).all()
        assert (outcome.timeline.end_ns == plain.end_ns).all()
        assert (outcome.timeline.bound == plain.bound).all()
        assert outcome.before_ns == outcome.after_ns


@given(job_graphs(shuffled=False))
def test_each_start_is_what_its_binding_edge_allows(graph: JobGraph) -> None:
    timeline = replay(graph)
    for task, edge in enumerate(timeline.bound.tolist()):
        first, stop = graph.pred_ptr[task], graph.pred_ptr[task + 1]
        if first == stop:
            assert edge == -1
            assert timeline.start_ns[task] == 0
            continue
        assert first <= edge < stop
        source = graph.pred[edge]
        from_start = graph.edge_kind[edge] in LAUNCHES
        anchor = timeline.start_ns[source] if from_start else timeline.end_ns[source]
        assert timeline.start_ns[task] == anchor + graph.edge_delay_ns[edge]


@given(job_graphs(), st.data())
def test_longer_tasks_shorten_nothing(graph: JobGraph, data: st.DataObject) -> None:
    graph = sort_tasks(graph)
    more = data.draw(st.lists(st.integers(0, 9), min_size=len(graph), max_size=len(graph)))
    before, after = replay(graph), replay(graph, graph.dur_ns + np.array(more, np.int64))
    assert (after.start_ns >= before.start_ns).all()
    assert (after.end_ns >= before.end_ns).all()


@given(job_graphs())
def test_own_durations_change_nothing(graph: JobGraph) -> None:
    graph = sort_tasks(graph)
    plain, same = replay(graph), replay(graph, graph.dur_ns.copy())
    assert (plain.start_ns == same.start_ns).all()
    assert (plain.bound == same.bound).all()


@given(job_graphs(), st.data())
def test_order_of_tasks_changes_nothing(graph: JobGraph, data: st.DataObject) -> None:
    order = np.array(data.draw(st.permutations(range(len(graph)))), np.int64)
    assert starts(replay(sort_tasks(permuted(graph, order)))) == starts(replay(sort_tasks(graph)))


@given(job_graphs(), st.data())
def test_measured_times_change_nothing(graph: JobGraph, data: st.DataObject) -> None:
    graph = sort_tasks(graph)
    seed = data.draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed).integers(-(2**40), 2**40, (2, len(graph)))
    other = replace(graph, measured_start_ns=random[0], measured_end_ns=random[1])
    assert starts(replay(other)) == starts(replay(graph))


@given(job_graphs())
def test_sorting_puts_predecessors_first_and_keeps_all(graph: JobGraph) -> None:
    ordered = sort_tasks(graph)
    target = np.repeat(np.arange(len(ordered)), np.diff(ordered.pred_ptr))
    assert (ordered.pred < target).all()

    def edges(g: JobGraph) -> list[tuple[int, ...]]:
        behind = np.repeat(np.arange(len(g)), np.diff(g.pred_ptr))
        columns = (g.event[g.pred], g.event[behind], g.edge_kind, g.edge_delay_ns)
        return sorted(zip(*(c.tolist() for c in columns), strict=True))

    assert edges(ordered) == edges(graph)
    assert sorted(ordered.event.tolist()) == list(range(len(graph)))
    for column in ("rank", "kind", "dur_ns", "name", "measured_start_ns", "measured_end_ns"):
        assert (getattr(ordered, column) == getattr(graph, column)[ordered.event]).all()


@given(job_graphs(smallest=1), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_cycle_is_refused_and_named(graph: JobGraph, a: int, b: int) -> None:
    n = len(graph)
    a, b = a % n, b % n
    target = np.repeat(np.arange(n), np.diff(graph.pred_ptr)).tolist()
    edges = list(
        zip(graph.pred.tolist(), target, graph.edge_kind.tolist(), [0] * len(target), strict=True)
    )
    looped = graph_of(graph.dur_ns.tolist(), [*edges, (a, b, 0, 0), (b, a, 0, 0)])
    with pytest.raises(DeadlockError) as stuck:
        simulate(looped)
    with pytest.raises(GraphError) as error:
        sort_tasks(looped)
    text = str(error.value)
    assert "cycle" in text
    assert "\n" not in text
    named = {int(part.split("'")[0]) for part in text.split("task ")[1:]}
    assert named
    assert named <= stuck.value.args[0]


def test_names_of_a_cycle_are_those_on_it() -> None:
    # 0 -> 1 -> 2 -> 1, and 3 waits behind the cycle without being on it.
    graph = graph_of([1, 1, 1, 1], [(0, 1, 0, 0), (1, 2, 0, 0), (2, 1, 0, 0), (2, 3, 0, 0)])
    with pytest.raises(GraphError, match=r"'task 1'.*'task 2'|'task 2'.*'task 1'") as error:
        sort_tasks(graph)
    assert "task 3" not in str(error.value)
    assert "task 0" not in str(error.value)


def test_a_chain_by_hand() -> None:
    # A call of 50 launches a kernel 4 after its start; a wait of 3 follows both.
    graph = graph_of(
        [10, 50, 100, 3],
        [
            (0, 1, EdgeKind.HOST_ORDER, 0),
            (1, 2, EdgeKind.LAUNCH, 4),
            (1, 3, EdgeKind.HOST_ORDER, 0),
            (2, 3, EdgeKind.SYNC, 6),
        ],
    )
    assert replay(graph).start_ns.tolist() == [0, 10, 14, 120]
    assert replay(graph, np.array([10, 500, 100, 3])).start_ns.tolist() == [0, 10, 14, 510]


def test_of_equal_predecessors_the_first_decides() -> None:
    ties = [(0, 3, EdgeKind.STREAM, 5), (1, 3, EdgeKind.EVENT, 5), (2, 3, EdgeKind.EVENT, 5)]
    assert replay(graph_of([4, 5, 5, 1], ties)).bound.tolist() == [-1, -1, -1, 1]
    assert replay(graph_of([5, 5, 5, 1], ties)).bound.tolist() == [-1, -1, -1, 0]


def test_no_tasks() -> None:
    timeline = replay(graph_of([], []))
    assert len(timeline.start_ns) == len(timeline.bound) == 0


def test_several_cost_vectors() -> None:
    graph = graph_of([5, 7], [(0, 1, EdgeKind.STREAM, 1)])
    runs = replay_all(graph, {"as is": graph.dur_ns, "slow": graph.dur_ns * 10})
    assert {name: run.start_ns.tolist() for name, run in runs.items()} == {
        "as is": [0, 6],
        "slow": [0, 51],
    }
    assert {run.label for run in runs.values()} == {"as is", "slow"}


def test_unsorted_tasks_are_refused() -> None:
    # Given durations could not be told apart from those of the sorted tasks.
    graph = graph_of([5, 7], [(1, 0, EdgeKind.STREAM, 0)])
    with pytest.raises(GraphError, match="sort_tasks"):
        replay(graph, np.array([50, 70]))
    assert starts(replay(sort_tasks(graph))) == {1: 0, 0: 7}
