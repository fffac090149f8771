"""Transforms that change what waits for what, against jobs worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replay.machine import Machine, Op
from tests.replay.traces import COMM, RankTrace, job
from tests.replay.transforms.jobs import MB, ends_us, ran, step_us, transform

from foretrace.replay.build import build_graph
from foretrace.replay.engine import replay
from foretrace.replay.graph import EdgeKind, JobGraph, TaskKind
from foretrace.replay.timeline import step_time, step_windows
from foretrace.traces.errors import ScenarioError
from foretrace.traces.store import TraceSet

SAMPLE = Path(__file__).resolve().parents[3] / "traces/sample/gpt-dp2pp2.trace"
WORK = (TaskKind.KERNEL, TaskKind.MEMCPY, TaskKind.MEMSET, TaskKind.COMM)


def overlapping(graph: JobGraph) -> int:
    """Time that communication and other device work of a rank share, ns."""
    timeline, shared = replay(graph), 0
    work = np.flatnonzero(np.isin(graph.kind, WORK))
    for a in work[graph.kind[work] == TaskKind.COMM].tolist():
        for b in work[(graph.rank[work] == graph.rank[a]) & (graph.kind[work] != TaskKind.COMM)]:
            first = max(timeline.start_ns[a], timeline.start_ns[b])
            shared += max(0, int(min(timeline.end_ns[a], timeline.end_ns[b]) - first))
    return shared


PROGRAM = st.lists(
    st.tuples(st.sampled_from(["kernel", "kernel", "collective", "await"]), st.integers(10, 90)),
    min_size=3,
    max_size=9,
)


@given(PROGRAM, st.integers(0, 60))
@settings(max_examples=20)
def test_no_overlap_means_none(
    tmp_path_factory: pytest.TempPathFactory, ops: list[tuple[str, int]], slow: int
) -> None:
    ops = [("kernel", 15), ("collective", 50), *ops]
    programs = [
        [*(Op(w, us + (more if w == "kernel" else 0)) for w, us in ops), Op("sync")]
        for more in (0, slow)
    ]
    graph = ran(tmp_path_factory.mktemp("overlap"), programs).graph
    new = transform("overlap", mode="none")(graph)
    assert overlapping(new) == 0
    assert step_us(new) >= step_us(graph)
    assert new.dur_ns.sum() == graph.dur_ns.sum()
    assert step_us(transform("overlap", mode="perfect")(graph)) <= step_us(graph)


def test_overlap_by_hand(tmp_path: Path) -> None:
    # Kernels of 100 and 80, an all-reduce of 60 behind the first, a kernel of 30 that needs it.
    program = [
        Op("kernel", 100), Op("collective", 60), Op("kernel", 80), Op("await"), Op("kernel", 30),
        Op("sync"),
    ]  # fmt: skip
    graph = ran(tmp_path, [program, program]).graph
    assert ends_us(graph, TaskKind.KERNEL, 0) == [100, 180, 210]
    serial = transform("overlap")(graph)
    assert ends_us(serial, TaskKind.COMM, 0) in ([160], [240])
    assert ends_us(serial, TaskKind.KERNEL, 0)[-1] == 270
    longer = transform("scale", select="comm", factor=4.0)(graph)
    assert ends_us(longer, TaskKind.KERNEL, 0) == [100, 180, 370]
    perfect = transform("overlap", mode="perfect")(longer)
    assert ends_us(perfect, TaskKind.KERNEL, 0) == [100, 180, 210]
    assert step_us(perfect) >= 340, "the step still ends with the communication"


def test_cuda_graphs_leave_one_launch(tmp_path: Path) -> None:
    # The host takes 15 us for each kernel of 2 us, twice four of them around a blocking call.
    phase = [Op("kernel", 2)] * 4
    program = [*phase, Op("sync"), *phase, Op("sync")]
    machine = Machine([program], [0], pause=10)
    graph = job(tmp_path, *machine.traces()).graph
    new = transform("cuda_graphs")(graph)
    ends = ends_us(new, TaskKind.KERNEL, 0)
    assert ends[:4] == [2, 7, 9, 11], "the others come with the end of the launch of 5 us"
    assert [round(b - ends[4], 3) for b in ends[4:]] == [0, 5, 7, 9]
    assert step_us(new) < step_us(graph) - 60
    quick = transform("cuda_graphs", launch="1us")(graph)
    assert ends_us(quick, TaskKind.KERNEL, 0)[:4] == [2, 4, 6, 8]
    with pytest.raises(ScenarioError, match="no two tasks"):
        transform("cuda_graphs", select="kernel:kernel 0.0")(graph)


def test_cuda_graphs_cut_gaps_between_kernels(tmp_path: Path) -> None:
    r = RankTrace(rank=0)
    at, calls = 100.0, [r.call("launch", 10.0 * i, 5) for i in range(30)]
    for i, call in enumerate(calls):
        at = max(at, 10.0 * i + 5)
        r.work(f"k{i}", at, 20, 7, call)
        at += 24  # a gap of 4 us
    r.mark(1, 0, 305)
    graph = job(tmp_path, r).graph
    new = transform("cuda_graphs")(graph)
    stream = np.flatnonzero(graph.edge_kind == EdgeKind.STREAM)
    assert set(graph.edge_delay_ns[stream].tolist()) == {4_000}
    assert set(new.edge_delay_ns[stream].tolist()) == {1_000}
    assert new.pred is graph.pred


def test_fused_kernels_run_as_one(tmp_path: Path) -> None:
    program = [
        Op("kernel", 10), Op("kernel", 20), Op("kernel", 30), Op("collective", 40), Op("await"),
        Op("kernel", 50), Op("kernel", 60), Op("sync"),
    ]  # fmt: skip
    graph = ran(tmp_path, [program, program]).graph
    new = transform("fuse", select="compute", keep=0.5)(graph)
    kernels = (new.kind == TaskKind.KERNEL) & (new.rank == 0)
    assert sorted(new.dur_ns[kernels].tolist()) == [0, 0, 0, 30_000, 55_000]
    first = ends_us(new, TaskKind.KERNEL, 0)
    assert first[:3] == [30, 30, 30]
    pairs = transform("fuse", select="compute", most=2)(graph)
    dur = sorted(pairs.dur_ns[(pairs.kind == TaskKind.KERNEL) & (pairs.rank == 0)].tolist())
    assert dur == [0, 0, 30_000, 30_000, 110_000]
    with pytest.raises(ScenarioError, match="no two kernels"):
        transform("fuse", select="kernel:kernel 0.0")(graph)


def test_fusing_holds_up_nothing_that_waits_for_a_kernel(tmp_path: Path) -> None:
    # The collective needs the first two kernels only; fused with the others it would come late.
    program = [
        Op("kernel", 10), Op("kernel", 20), Op("collective", 40), Op("kernel", 300),
        Op("kernel", 50), Op("await"), Op("kernel", 60), Op("sync"),
    ]  # fmt: skip
    graph = ran(tmp_path, [program, program]).graph
    for most in (0, 2, 3, 4):
        new = transform("fuse", select="compute", most=most)(graph)
        assert ends_us(new, TaskKind.COMM, 0) == ends_us(graph, TaskKind.COMM, 0) == [70]
        assert step_us(new) <= step_us(graph)


def test_no_overlap_without_a_device_is_with_the_host() -> None:
    graph = build_graph(TraceSet.open(SAMPLE))
    assert not (graph.lanes.device >= 0).any()
    new = transform("overlap", mode="none")(graph)
    timeline = replay(new)
    for rank in range(4):
        comm, host = (
            np.flatnonzero((new.kind == kind) & (new.rank == rank) & (new.dur_ns > 0))
            for kind in (TaskKind.COMM, TaskKind.HOST)
        )
        # No computation is under way while the rank's communication moves data.
        begins, ends = np.sort(timeline.start_ns[host]), np.sort(timeline.end_ns[host])
        under_way = np.searchsorted(begins, timeline.end_ns[comm]) - np.searchsorted(
            ends, timeline.start_ns[comm], side="right"
        )
        assert not under_way.any()
    assert step_time(step_windows(timeline)) > step_time(step_windows(replay(graph)))


def test_dropped_and_doubled_dependencies(tmp_path: Path) -> None:
    programs = [[Op("kernel", us), Op("collective", 40), Op("sync")] for us in (50, 200)]
    graph = ran(tmp_path, programs).graph
    assert ends_us(graph, TaskKind.COMM, 0) == [240]
    alone = transform("dependency", edge="rendezvous", select="comm,rank:0")(graph)
    assert ends_us(alone, TaskKind.COMM, 0) == [40], "nothing precedes it any more"
    late = transform(
        "dependency", edge="event", after="compute,rank:1", action="duplicate", delay="15us"
    )(graph)
    assert ends_us(late, TaskKind.COMM, 0) == [255]
    assert len(late.pred) == len(graph.pred) + 1
    with pytest.raises(ScenarioError, match="no peer dependency"):
        transform("dependency", edge="peer")(graph)
    with pytest.raises(ScenarioError, match="one of host_order, thread, launch"):
        transform("dependency", edge="lunch")


def two_ready_operations() -> list[RankTrace]:
    """Two ranks; all-reduces of 300 and 50 us are ready together, the second is needed first."""
    ranks = []
    for number in (0, 1):
        r = RankTrace(rank=number, groups=[(0, 1)])
        first, second = r.call("call a", 0, 5), r.call("call b", 5, 5)
        a = r.work("reduce a", 10, 300, COMM, first)
        b = r.work("reduce b", 310, 50, COMM, second)
        urgent = r.call("launch c", 10, 5)
        event = r.op("record_param_comms", 8, 1)
        later = r.call("launch d", 20, 5)
        done = r.op("record_param_comms", 17, 1)
        r.work("needs b", 360, 500, 7, urgent)
        r.work("needs a", 860, 10, 7, later)
        r.operation("all_reduce", a, first, done, group=0, seq=0, bytes_in=30 * MB,
                    bytes_out=30 * MB)  # fmt: skip
        r.operation("all_reduce", b, second, event, group=0, seq=1, bytes_in=5 * MB,
                    bytes_out=5 * MB)  # fmt: skip
        r.mark(1, 0, 30)
        ranks.append(r)
    return ranks


def test_what_is_needed_first_goes_first(tmp_path: Path) -> None:
    graph = job(tmp_path, *two_ready_operations()).graph
    base = replay(graph)
    for order in ("need", "small"):
        new = transform("priority", order=order)(_together(graph))
        assert ends_us(new, TaskKind.COMM, 0) == pytest.approx([55, 355], abs=11)
        assert ends_us(new, TaskKind.KERNEL, 0)[-1] < base.end_ns.max() / 1_000 - 250
    same = _together(graph)
    assert transform("priority", order="large")(same) is same


def _together(graph: JobGraph) -> JobGraph:
    """Both operations may begin at once: their stream is busy until both are launched."""
    first = np.flatnonzero((graph.kind == TaskKind.ARRIVE) & (graph.collective == 0))
    delay = graph.edge_delay_ns.copy()
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    delay[np.isin(target, first) & (graph.edge_kind == EdgeKind.LAUNCH)] += 5_000
    return replace(graph, edge_delay_ns=delay)


@given(PROGRAM, st.integers(0, 60), st.sampled_from(["need", "small", "large"]))
@settings(max_examples=20)
def test_any_order_runs_all_work_once(
    tmp_path_factory: pytest.TempPathFactory, ops: list[tuple[str, int]], slow: int, order: str
) -> None:
    ops = [("kernel", 15), ("collective", 50), *ops]
    programs = [
        [*(Op(w, us + (more if w == "kernel" else 0)) for w, us in ops), Op("sync")]
        for more in (0, slow)
    ]
    sizes = [us * MB for what, us in ops if what == "collective"]
    graph = ran(tmp_path_factory.mktemp("order"), programs, sizes).graph
    new = transform("priority", order=order)(graph)
    assert new.dur_ns.sum() == graph.dur_ns.sum()
    timeline = replay(new)
    for rank in (0, 1):  # one after the other on their stream
        comm = np.flatnonzero((new.kind == TaskKind.COMM) & (new.rank == rank))
        comm = comm[np.argsort(timeline.start_ns[comm])]
        assert (timeline.start_ns[comm][1:] >= timeline.end_ns[comm][:-1]).all()
    for collective in range(len(new.collectives.kind)):
        mine = (new.kind == TaskKind.COMM) & (new.collective == collective)
        arrive = (new.kind == TaskKind.ARRIVE) & (new.collective == collective)
        assert (timeline.start_ns[mine] >= timeline.start_ns[arrive].max()).all()
