"""Bars and arrows of a two-rank collective whose times are worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from foretrace.replay.arrivals import arrivals
from foretrace.replay.engine import replay
from foretrace.replay.graph import (
    Collectives,
    EdgeKind,
    JobGraph,
    Lanes,
    StepMarks,
    TaskKind,
    Timeline,
)
from foretrace.replay.perfetto import viewer_arrays
from foretrace.traces.exporters.perfetto import write_perfetto
from foretrace.traces.schema import COLLECTIVE_KINDS

NAMES = ("cudaLaunchKernel", "gemm", "nccl", "join")
# (rank, lane, kind, dur, name, collective); lanes 0 and 2 are host threads
TASKS = (
    (0, 0, TaskKind.CALL, 10, 0, -1),
    (1, 2, TaskKind.CALL, 10, 0, -1),
    (1, 2, TaskKind.STALL, 40, 0, -1),
    (0, 1, TaskKind.KERNEL, 100, 1, -1),
    (1, 3, TaskKind.KERNEL, 300, 1, -1),
    (0, 1, TaskKind.ARRIVE, 0, 2, 0),
    (1, 3, TaskKind.ARRIVE, 0, 2, 0),
    (-1, -1, TaskKind.JOIN, 0, 3, 0),
    (0, 1, TaskKind.COMM, 50, 2, 0),
    (1, 3, TaskKind.COMM, 60, 2, 0),
)
# (source, target, kind)
EDGES = (
    (1, 2, EdgeKind.HOST_ORDER),
    (0, 3, EdgeKind.LAUNCH),
    (1, 4, EdgeKind.LAUNCH),
    (3, 5, EdgeKind.STREAM),
    (4, 6, EdgeKind.STREAM),
    (5, 7, EdgeKind.RENDEZVOUS),
    (6, 7, EdgeKind.RENDEZVOUS),
    (7, 8, EdgeKind.RENDEZVOUS),
    (7, 9, EdgeKind.RENDEZVOUS),
)


def make_graph() -> JobGraph:
    rank, lane, kind, dur, name, collective = (np.array(c) for c in zip(*TASKS, strict=True))
    edges = sorted(EDGES, key=lambda e: e[1])
    counts = np.bincount([e[1] for e in edges], minlength=len(TASKS))
    zeros = np.zeros(len(TASKS), np.int64)
    empty = np.zeros(0, np.int64)
    return JobGraph(
        rank=rank.astype(np.int32),
        lane=lane.astype(np.int32),
        kind=kind.astype(np.int8),
        dur_ns=dur.astype(np.int64),
        name=name.astype(np.int32),
        event=np.arange(len(TASKS)),
        collective=collective.astype(np.int32),
        step=zeros.astype(np.int32),
        measured_start_ns=zeros,
        measured_end_ns=zeros,
        pred_ptr=np.r_[0, np.cumsum(counts)],
        pred=np.array([e[0] for e in edges]),
        edge_kind=np.array([e[2] for e in edges], np.int8),
        edge_delay_ns=np.zeros(len(edges), np.int64),
        names=NAMES,
        lanes=Lanes(
            rank=np.array([0, 0, 1, 1], np.int32),
            device=np.array([-1, 0, -1, 0], np.int32),
            number=np.array([11, 7, 12, 7]),
        ),
        collectives=Collectives(
            kind=np.array([COLLECTIVE_KINDS.index("all_reduce")], np.int8),
            group=np.zeros(1, np.int32),
            bytes=np.array([1024]),
            confidence=np.ones(1, np.float32),
        ),
        groups=((0, 1),),
        steps=StepMarks(empty.astype(np.int32), empty.astype(np.int32), empty, empty),
    )


def rows_of(timelines: list[Timeline]) -> set[tuple[str, str, str, int, int]]:
    tracks, slices, _ = viewer_arrays(timelines)
    return {
        (
            tracks.processes[tracks.process[t]],
            tracks.name[t],
            slices.names[n],
            int(start),
            int(dur),
        )
        for t, n, start, dur in zip(
            slices.track, slices.name, slices.start_ns, slices.dur_ns, strict=True
        )
    }


def test_waiting_is_a_bar_inside_the_collective() -> None:
    assert rows_of([replay(make_graph())]) == {
        ("rank 0 replayed", "thread 11", "cudaLaunchKernel", 0, 10),
        ("rank 1 replayed", "thread 12", "cudaLaunchKernel", 0, 10),
        ("rank 1 replayed", "thread 12", "stall after cudaLaunchKernel", 10, 40),
        ("rank 0 replayed", "stream 7", "gemm", 0, 100),
        ("rank 1 replayed", "stream 7", "gemm", 0, 300),
        ("rank 0 replayed", "stream 7", "nccl", 100, 250),
        ("rank 0 replayed", "stream 7", "waiting for rank 1", 100, 200),
        ("rank 1 replayed", "stream 7", "nccl", 300, 60),
    }


def test_timelines_stand_side_by_side_and_begin_together() -> None:
    graph = make_graph()
    late = replay(graph, label="measured")
    late = Timeline(graph, late.start_ns + 10**15, late.end_ns + 10**15, late.bound, "measured")
    tracks, slices, _ = viewer_arrays([late, replay(graph)])
    assert tracks.processes == [
        "rank 0 measured",
        "rank 0 replayed",
        "rank 1 measured",
        "rank 1 replayed",
    ]
    both = rows_of([late, replay(graph)])
    assert {row[0].split()[2] for row in both} == {"measured", "replayed"}
    assert len(both) == len(slices) == 16
    assert min(start for *_, start, _ in both) == 0


def test_arrows_lead_from_launches_and_from_the_last_to_arrive() -> None:
    graph = make_graph()
    _, slices, flows = viewer_arrays([replay(graph), replay(graph)])
    seen = {
        (f.name, slices.names[slices.name[s]], slices.names[slices.name[t]])
        for f in flows
        for s, t in zip(f.source, f.target, strict=True)
    }
    assert seen == {
        ("launch", "cudaLaunchKernel", "gemm"),
        ("last to arrive", "nccl", "nccl"),
    }
    assert sum(len(f.source) for f in flows) == 2 * 3
    release = next(f for f in flows if f.name == "last to arrive")
    assert slices.start_ns[release.source].tolist() == [300]
    assert slices.start_ns[release.target].tolist() == [100]
    assert release.head_ns is not None
    assert release.head_ns.tolist() == [300]


def test_arrivals_pair_by_operation_and_rank() -> None:
    assert arrivals(make_graph()).tolist() == [-1] * 8 + [5, 6]


def test_args_tell_the_operation() -> None:
    _, slices, _ = viewer_arrays([replay(make_graph())])
    comm = [i for i, n in enumerate(slices.name) if slices.names[n] == "nccl"]
    assert [slices.args["ranks"][i] for i in comm] == ["all_reduce over ranks 0, 1"] * 2
    assert [slices.args["bytes"][i] for i in comm] == [1024, 1024]


def test_it_can_be_written(tmp_path: Path) -> None:
    tracks, slices, flows = viewer_arrays([replay(make_graph())])
    write_perfetto(tmp_path / "t.json.gz", tracks, slices, flows)
    assert (tmp_path / "t.json.gz").stat().st_size > 100
