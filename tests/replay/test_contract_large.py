"""The replay of large recordings against the plain one: equal to the nanosecond."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.replay.machine import Machine, Op
from tests.replay.real import SOURCES, RealSets
from tests.replay.traces import RankTrace, write

from foretrace.replay.accuracy import collective_waiting, null_graph
from foretrace.replay.build import build, context
from foretrace.replay.contract.large import LargeReplay, replay_large
from foretrace.replay.engine import replay
from foretrace.replay.graph import TaskKind, Timeline
from foretrace.replay.timeline import StepWindows, step_windows
from foretrace.traces.errors import GraphError
from foretrace.traces.store import TraceSet


@pytest.fixture
def here() -> Executor:
    """Works in this process, so that what a test patches holds."""
    return ThreadPoolExecutor(1)


def machine() -> Machine:
    program = [
        Op("kernel", 40), Op("record"), Op("collective", 30), Op("kernel", 25), Op("await"),
        Op("kernel", 15), Op("work", 20), Op("collective", 10), Op("await"), Op("sync"),
        Op("kernel", 30), Op("collective", 20), Op("item", 5),
    ]  # fmt: skip
    slow = {(1, 0): 200, (2, 3): 90, (0, 5): 60}
    return Machine([list(program) for _ in range(4)], [0, 30, 10, 70], pause=4, longer=slow)


def facts(timeline: Timeline, kinds: tuple[TaskKind, ...]) -> list[tuple[object, ...]]:
    """Everything about the matched tasks of some kinds, in an order of its own."""
    graph = timeline.graph
    task = np.flatnonzero(np.isin(graph.kind, kinds) & (graph.collective >= 0) & (graph.rank >= 0))
    columns = (
        graph.rank, graph.event, graph.kind, graph.collective, graph.step, graph.dur_ns,
        timeline.start_ns, timeline.end_ns, graph.measured_start_ns, graph.measured_end_ns,
    )  # fmt: skip
    names = [graph.names[n] for n in graph.name[task]]
    return sorted(zip(*(c[task].tolist() for c in columns), names, strict=True))


def same_steps(a: StepWindows, b: StepWindows) -> bool:
    return all(
        (getattr(a, name) == getattr(b, name)).all() for name in ("step", "start_ns", "end_ns")
    )


def check_equal(large: LargeReplay, trace: TraceSet) -> None:
    """Communication, steps, null replay, waiting, stalls, and the expanded ranks."""
    plain = build(trace)
    graph = plain.graph
    timeline = replay(graph)
    both = (TaskKind.ARRIVE, TaskKind.COMM)
    assert facts(large.timeline, both) == facts(timeline, both)
    assert same_steps(step_windows(large.timeline), step_windows(timeline))
    assert same_steps(large.null, step_windows(replay(null_graph(graph))))
    assert large.tasks == len(graph)
    assert large.edges == len(graph.pred)
    assert (large.dropped, large.unmatched) == (plain.dropped, plain.unmatched)
    assert large.alignment == plain.alignment
    waiting = [sorted(collective_waiting(t)[1].tolist()) for t in (large.timeline, timeline)]
    assert waiting[0] == waiting[1]
    stall = graph.kind == TaskKind.STALL
    stalls = [int(graph.dur_ns[stall & (graph.rank == r)].sum()) for r in large.ranks]
    assert large.stall_ns.tolist() == stalls
    if large.expanded is not None:
        check_expanded(large.expanded, timeline)


def check_expanded(found: Timeline, timeline: Timeline) -> None:
    ranks = np.unique(found.graph.rank[found.graph.rank >= 0])
    assert len(ranks)
    for rank in ranks:
        rows = [every_task(t, int(rank)) for t in (found, timeline)]
        assert rows[0] == rows[1]


def every_task(timeline: Timeline, rank: int) -> list[tuple[object, ...]]:
    graph = timeline.graph
    task = np.flatnonzero(graph.rank == rank)
    columns = (graph.event, graph.kind, graph.collective, graph.dur_ns, timeline.start_ns)
    names = [graph.names[n] for n in graph.name[task]]
    lanes = graph.lanes.number[graph.lane[task]].tolist()
    return sorted(zip(*(c[task].tolist() for c in columns), names, lanes, strict=True))


@pytest.mark.parametrize("pool", [1, 3, 64])
def test_a_small_job(
    tmp_path: Path, here: Executor, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "POOL_RANKS", pool)
    trace = write(tmp_path / "m.trace", *machine().traces())
    check_equal(replay_large(trace, expand=(0, 3), executor=here), trace)


def test_processes_of_its_own(tmp_path: Path) -> None:
    trace = write(tmp_path / "m.trace", *machine().traces())
    check_equal(replay_large(trace), trace)


def test_some_ranks_only(tmp_path: Path, here: Executor) -> None:
    trace = write(tmp_path / "m.trace", *machine().traces())
    large = replay_large(trace, ranks=[0, 2], executor=here)
    assert large.ranks == (0, 2)
    both = (TaskKind.ARRIVE, TaskKind.COMM)
    assert facts(large.timeline, both) == facts(replay(build(trace, [0, 2]).graph), both)


def test_steps_that_the_manifest_does_not_know(tmp_path: Path, here: Executor) -> None:
    """Whether a job has steps is for its rows to say."""
    ranks = []
    for rank in range(2):
        r = RankTrace(rank, groups=[(0, 1)])
        r.mark(4, 0, 300)
        r.quick_syncs(400)
        r.kernel("k", 10 + 20 * rank, 20 + 20 * rank, 40)
        ranks.append(r)
    for r in ranks:
        r.marks.clear()
    trace = write(tmp_path / "m.trace", *ranks)
    assert not trace.steps
    check_equal(replay_large(trace, executor=here), trace)


def test_nothing_to_replay(tmp_path: Path, here: Executor) -> None:
    trace = write(tmp_path / "m.trace", RankTrace(0), RankTrace(1))
    with pytest.raises(GraphError, match="no events"):
        replay_large(trace, executor=here)


@pytest.mark.parametrize("name", SOURCES)
def test_real_recordings(
    real_sets: RealSets, name: str, here: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "POOL_RANKS", 3)
    real_sets.get(name)
    trace = TraceSet.open(real_sets.target / f"{name}.trace")
    check_equal(replay_large(trace, expand=(1, 4), executor=here), trace)
