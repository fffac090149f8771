"""What an assessment says of a replay: errors, unexplained time and the null replay, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.random_graphs import edge_lists, graph_of
from tests.replay.reference import simulate
from tests.replay.traces import COMM, US, WORKER, RankTrace, job

from foretrace.replay.accuracy import (
    Assessment,
    assess,
    collective_waiting,
    null_graph,
    start_errors,
    sync_waiting,
    unexplained,
)
from foretrace.replay.align import align
from foretrace.replay.build import Build
from foretrace.replay.build.rules import EdgeOrigins
from foretrace.replay.engine import replay, sort_tasks
from foretrace.replay.graph import EdgeKind, JobGraph, StepMarks, TaskKind
from foretrace.replay.timeline import measured, step_windows


def of_graph(graph: JobGraph) -> Assessment:
    none = np.zeros(0, np.int64)
    alone = align(np.zeros(1, np.int64), none.astype(np.int32), none)
    none_known = EdgeOrigins(none.astype(np.int8), none.astype(np.float32))
    return assess(Build(graph, alone, (), {}, {}, none_known, {}))


def prompt(r: RankTrace, count: int = 30) -> None:
    """Kernels that start with their launches, so that the constant of a launch is 0."""
    for i in range(count):
        r.kernel(f"prompt {i}", 10 * i, 10 * i, 4, stream=8)


def test_a_late_kernel_is_unexplained(tmp_path: Path) -> None:
    r = RankTrace()
    prompt(r)
    r.mark(1, 0, 420)
    r.kernel("late", 400, 470, 200)
    r.kernel("next", 410, 670, 50)
    j = job(tmp_path, r)
    slack = unexplained(j.graph)
    late, following = j.task(TaskKind.KERNEL, "late"), j.task(TaskKind.KERNEL, "next")
    assert (slack[late], slack[following]) == (70 * US, 0)
    a = assess(j.build)
    step = a.steps[0]
    assert (step.measured_ns, step.replayed_ns) == (720 * US, 650 * US)
    assert (step.unexplained_ns, step.unexplained_early_ns) == (70 * US, 0)
    assert step.error == pytest.approx(-70 / 720)
    assert a.ranks[0].late_ns == 70 * US
    error = start_errors(a.timeline, measured(j.graph))
    assert (error[late], error[following]) == (-70 * US, -70 * US)
    assert a.ranks[0].start_error_ns == 0  # two of 32


def test_lateness_that_leaves_the_critical_path_is_still_told(tmp_path: Path) -> None:
    # Without its unexplained 500 us the kernel does not decide the replayed step any more.
    r = RankTrace()
    prompt(r)
    r.mark(1, 0, 500)
    r.kernel("late", 400, 900, 20)
    step = assess(job(tmp_path, r).build).steps[0]
    assert (step.measured_ns, step.replayed_ns) == (920 * US, 500 * US)
    assert step.unexplained_ns >= 420 * US


@st.composite
def late_graphs(draw: st.DrawFn) -> JobGraph:
    """A step of random tasks, some of which were recorded late for no reason."""
    n = draw(st.integers(1, 12))
    inner = draw(edge_lists(list(range(1, n + 1))))
    begin, end = 0, n + 1
    fixed = [(begin, t, EdgeKind.HOST_ORDER, 0) for t in range(1, n + 1)]
    fixed += [(t, end, EdgeKind.MARK, 0) for t in range(1, n + 1)]
    dur = [0, *draw(st.lists(st.integers(0, 50), min_size=n, max_size=n)), 0]
    late = [0, *draw(st.lists(st.sampled_from([0, 0, 7, 90]), min_size=n, max_size=n)), 0]
    kinds = [TaskKind.MARK, *[TaskKind.KERNEL] * n, TaskKind.MARK]
    graph = graph_of(dur, [*fixed, *inner], [int(k) for k in kinds])
    # As recorded: the same job with the lateness as a task of its own before each task.
    m = n + 2
    edges = [(s, t + m, k, d) for s, t, k, d in [*fixed, *inner]]
    slow = graph_of(dur + late, [*edges, *((t + m, t, EdgeKind.STREAM, 0) for t in range(m))])
    start = np.array([at for _, at in sorted(simulate(slow).items())])[:m]
    marks = StepMarks(*(np.array([v], t) for v, t in (
        (1, np.int32), (0, np.int32), (begin, np.int64), (end, np.int64))))  # fmt: skip
    from dataclasses import replace

    return sort_tasks(
        replace(graph, measured_start_ns=start, measured_end_ns=start + dur, steps=marks)
    )


@given(late_graphs())
def test_what_is_unexplained_covers_the_error(graph: JobGraph) -> None:
    """A step cannot be shorter in the replay by more than its unexplained lateness."""
    step = of_graph(graph).steps[0]
    assert step.unexplained_early_ns == 0
    assert 0 <= step.measured_ns - step.replayed_ns <= step.unexplained_ns


def two_ranks() -> list[RankTrace]:
    """Rank 0 waits 300 us in an all-reduce; both wait for it in a synchronisation."""
    result = []
    for rank, busy in ((0, 100), (1, 400)):
        r = RankTrace(rank=rank, groups=[(0, 1)])
        r.quick_syncs(0)
        r.mark(1, 0, 1_200)
        r.kernel("before", 300, 300, busy, stream=COMM)
        by = r.call("launch", 310, 5)
        work = r.work("ncclDevKernel_AllReduce", 300 + busy, 450 - busy, COMM, by)
        r.operation("all_reduce", work, group=0, seq=1)
        r.call("cudaDeviceSynchronize", 380, 370 + 3)
        r.kernel("after", 800, 800, 20)
        result.append(r)
    return result


def test_waits_by_hand(tmp_path: Path) -> None:
    j = job(tmp_path, *two_ranks())
    for timeline in (j.replayed(), measured(j.graph)):
        comm, waited = collective_waiting(timeline)
        assert dict(zip(j.graph.rank[comm].tolist(), waited.tolist(), strict=True)) == {
            0: 300 * US, 1: 0}  # fmt: skip
        sync, waited = sync_waiting(timeline)
        long = waited > 0
        assert waited[long].tolist() == [370 * US, 370 * US]
        assert sorted(j.graph.rank[sync[long]].tolist()) == [0, 1]


def test_the_null_replay_knows_no_other_rank(tmp_path: Path) -> None:
    j = job(tmp_path, *two_ranks())
    graph = null_graph(j.graph)
    assert step_windows(replay(graph)).dur_ns.tolist() == [1_200 * US]
    comm = {int(graph.rank[t]): t for t in j.tasks(TaskKind.COMM)}
    assert [graph.dur_ns[comm[r]] / US for r in (0, 1)] == [350, 50]
    slower = graph.dur_ns.copy()
    slower[j.task(TaskKind.KERNEL, "before", rank=1)] += 5_000 * US
    run = replay(graph, slower)
    assert run.start_ns[comm[0]] == replay(graph).start_ns[comm[0]]
    assert run.start_ns[j.task(TaskKind.CALL, "launch after", rank=1)] == 800 * US


def test_the_null_replay_freezes_waits_for_host_communication(tmp_path: Path) -> None:
    # The main thread waits inside C++, which leaves no row, for an all-reduce of gloo.
    r = RankTrace()
    r.mark(1, 0, 1_000)
    call = r.op("c10d::allreduce_", 100, 20)
    work = r.add("annotation", "gloo:all_reduce", 110, 690, thread=WORKER)
    r.operation("all_reduce", work, call)
    r.op("optimizer", 805, 150)
    j = job(tmp_path, r)
    assert step_windows(replay(j.graph)).dur_ns[0] == pytest.approx(1_000 * US, abs=10 * US)
    assert step_windows(replay(null_graph(j.graph))).dur_ns.tolist() == [1_000 * US]


def test_how_much_of_the_critical_path_is_copied_host_time(tmp_path: Path) -> None:
    # 400 us of host time, then a kernel of 600 us.
    r = RankTrace()
    r.mark(1, 0, 500)
    r.kernel("k", 400, 400, 600)
    step = assess(job(tmp_path, r).build).steps[0]
    assert step.path_ns == {
        "compute": 600 * US, "communication": 0, "copy": 0, "host": 400 * US, "stall": 0,
        "idle": 0, "skew": 0}  # fmt: skip
    assert step.copied_host == pytest.approx(0.4)
