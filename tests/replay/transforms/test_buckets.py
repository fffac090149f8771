"""Gradient buckets: the transformed job against a machine that really runs the other buckets."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replay.machine import Op
from tests.replay.transforms.jobs import MB, ends_us, ran, step_us, transform

from foretrace.replay.engine import replay
from foretrace.replay.graph import EdgeKind, JobGraph, TaskKind
from foretrace.replay.transforms.edit import edges_of, joined, new_edges, rebuilt
from foretrace.replay.transforms.rebucket import pieces
from foretrace.traces.errors import ScenarioError

LATENCY = 20
AWAIT = [Op("await"), Op("kernel", 30), Op("sync")]


def bucket_us(size_mb: float) -> int:
    """10 us a megabyte behind the latency."""
    return round(LATENCY + 10 * size_mb)


def test_fused_buckets_are_launched_once_with_the_last(tmp_path: Path) -> None:
    def program(fused: bool, slow: int) -> list[Op]:
        first = [] if fused else [Op("collective", bucket_us(10))]
        last = bucket_us(40) if fused else bucket_us(30)
        return [Op("kernel", 50), *first, Op("kernel", 80 + slow), Op("collective", last), *AWAIT]

    old = ran(tmp_path / "old", [program(False, s) for s in (0, 25)], [10 * MB, 30 * MB]).graph
    truth = ran(tmp_path / "new", [program(True, s) for s in (0, 25)]).graph
    new = transform("buckets", fuse=2)(old)
    assert new.collectives.bytes.tolist() == [40 * MB]
    for rank in (0, 1):
        assert ends_us(new, TaskKind.COMM, rank) == ends_us(truth, TaskKind.COMM, rank)
        assert ends_us(new, TaskKind.KERNEL, rank) == ends_us(truth, TaskKind.KERNEL, rank)
    assert step_us(new) == step_us(truth)


def test_split_buckets_are_ready_with_their_own_gradients(tmp_path: Path) -> None:
    half, quarter = bucket_us(10), bucket_us(5)
    before = [
        Op("kernel", 100), Op("collective", bucket_us(10)),
        Op("kernel", 120), Op("kernel", 80), Op("collective", bucket_us(20)), *AWAIT,
    ]  # fmt: skip
    # The first bucket's pace is that of the second, 10 us a megabyte: all of its one kernel.
    after = [
        Op("kernel", 100), Op("collective", quarter), Op("collective", quarter),
        Op("kernel", 120), Op("collective", half), Op("kernel", 80), Op("collective", half), *AWAIT,
    ]  # fmt: skip
    old = ran(tmp_path / "old", [before, before], [10 * MB, 20 * MB]).graph
    truth = ran(tmp_path / "new", [after, after]).graph
    new = transform("buckets", split=2)(old)
    assert new.collectives.bytes.tolist() == [5 * MB, 5 * MB, 10 * MB, 10 * MB]
    for rank in (0, 1):
        assert ends_us(new, TaskKind.COMM, rank) == ends_us(truth, TaskKind.COMM, rank)
        assert ends_us(new, TaskKind.CALL, rank) == ends_us(truth, TaskKind.CALL, rank)
    assert step_us(new) == step_us(truth)


@given(
    st.lists(st.tuples(st.integers(20, 90), st.integers(20, 90), st.integers(1, 9)), min_size=3,
             max_size=6),
    st.integers(2, 4),
)  # fmt: skip
@settings(max_examples=15)
def test_any_fusing_equals_the_machine(buckets: list[tuple[int, int, int]], many: int) -> None:
    sizes = [size for _, _, size in buckets]
    if max(sizes) < 2 * min(sizes):
        sizes[0] = 2 * max(sizes)

    def program(rank: int, fused: int) -> list[Op]:
        ops, held = [], 0
        for i, bucket in enumerate(buckets):
            ops.append(Op("kernel", bucket[rank]))
            held += sizes[i]
            if (i + 1) % fused == 0 or i + 1 == len(buckets):
                ops.append(Op("collective", bucket_us(held)))
                held = 0
        return [*ops, *AWAIT]

    with tempfile.TemporaryDirectory() as folder:
        bytes_ = [s * MB for s in sizes]
        old = ran(Path(folder) / "a", [program(r, 1) for r in (0, 1)], bytes_).graph
        truth = ran(Path(folder) / "b", [program(r, many) for r in (0, 1)]).graph
    new = transform("buckets", fuse=many)(old)
    assert new.collectives.bytes.sum() == sum(sizes) * MB
    for rank in (0, 1):
        assert ends_us(new, TaskKind.COMM, rank) == ends_us(truth, TaskKind.COMM, rank)
    assert step_us(new) == step_us(truth)


@pytest.fixture(scope="module")
def backward(tmp_path_factory: pytest.TempPathFactory) -> JobGraph:
    """Four buckets behind kernels of one backward pass, on two ranks."""
    sizes = [4, 10, 25, 12]
    program = []
    for size in sizes:
        program += [Op("kernel", 7 * size), Op("kernel", 3 * size)]
        program += [Op("collective", bucket_us(size))]
    folder = tmp_path_factory.mktemp("backward")
    return ran(folder, [[*program, *AWAIT]] * 2, [s * MB for s in sizes]).graph


@given(st.integers(1, 60_000_000))
@settings(max_examples=40)
def test_bytes_and_time_on_the_wire_are_conserved(backward: JobGraph, size: int) -> None:
    size = max(size, 300_000)
    new = transform("buckets", size=f"{size}B")(backward)
    assert new.collectives.bytes.sum() == backward.collectives.bytes.sum()
    assert new.collectives.bytes[:-1].tolist() == [size] * (len(new.collectives.bytes) - 1)
    old_time = backward.dur_ns[backward.kind == TaskKind.COMM].sum()
    new_comm = new.dur_ns[new.kind == TaskKind.COMM]
    more = (len(new_comm) - 8) * LATENCY * 1_000
    assert abs(int(new_comm.sum()) - int(old_time) - more) <= len(new_comm)
    for kind in (TaskKind.ARRIVE, TaskKind.COMM, TaskKind.JOIN):
        ranks = 1 if kind == TaskKind.JOIN else 2
        assert (new.kind == kind).sum() == ranks * len(new.collectives.bytes)
    assert (np.sort(new.collective[new.kind == TaskKind.JOIN])).tolist() == list(
        range(len(new.collectives.bytes))
    )


@given(st.integers(2, 6))
@settings(max_examples=5)
def test_the_host_loses_no_work(backward: JobGraph, many: int) -> None:
    new = transform("buckets", split=many)(backward)
    host = (TaskKind.HOST, TaskKind.STALL)
    for kind in host:
        assert new.dur_ns[new.kind == kind].sum() == backward.dur_ns[backward.kind == kind].sum()
    calls = (new.kind == TaskKind.CALL).sum() - (backward.kind == TaskKind.CALL).sum()
    assert calls == 2 * 4 * (many - 1)


def test_unchanged_buckets_leave_the_graph_alone(backward: JobGraph) -> None:
    for fields in ({"split": 1}, {"fuse": 1}, {"factor": 1.0}):
        assert transform("buckets", **fields)(backward) is backward


def test_operations_that_need_each_other_are_refused(tmp_path: Path) -> None:
    program = [
        Op("kernel", 50), Op("collective", 40), Op("await"), Op("kernel", 60),
        Op("collective", 60), *AWAIT,
    ]  # fmt: skip
    graph = ran(tmp_path, [program, program], [2 * MB, 4 * MB]).graph
    with pytest.raises(ScenarioError, match=r"depends on itself after this change; .{0,80}$"):
        transform("buckets", fuse=2)(graph)


def test_unknown_sizes_are_refused(tmp_path: Path) -> None:
    program = [Op("kernel", 50), Op("collective", 40), *AWAIT]
    graph = ran(tmp_path, [program, program]).graph
    with pytest.raises(ScenarioError, match="does not say how large 2 of 2"):
        transform("buckets", split=2)(graph)
    with pytest.raises(ScenarioError, match="exactly one"):
        transform("buckets")


@pytest.mark.parametrize("fields", [{"size": "1B"}, {"factor": 1e-6}, {"split": 1_000_000}])
def test_too_many_buckets_are_refused_at_once(
    backward: JobGraph, fields: dict[str, object]
) -> None:
    with pytest.raises(ScenarioError, match="at most 10,000 are possible"):
        transform("buckets", **fields)(backward)


def test_one_size_needs_a_latency(tmp_path: Path) -> None:
    program = [Op("kernel", 60), Op("collective", 50), *AWAIT]
    graph = ran(tmp_path, [program, program], [3 * MB]).graph
    with pytest.raises(ScenarioError, match="per_operation"):
        transform("buckets", split=2)(graph)
    new = transform("buckets", split=3, per_operation="20us")(graph)
    assert sorted(new.dur_ns[new.kind == TaskKind.COMM].tolist()) == [30_000] * 6


def test_what_waits_for_an_old_bucket_waits_for_all_its_parts(backward: JobGraph) -> None:
    new = transform("buckets", size="20MB")(backward)
    timeline = replay(new)
    comm = np.flatnonzero(new.kind == TaskKind.COMM)
    for task in np.flatnonzero((new.kind == TaskKind.SYNC) & (new.rank == 0)).tolist():
        mine = comm[new.rank[comm] == 0]
        assert timeline.end_ns[task] >= timeline.end_ns[mine].max()
    kinds = new.edge_kind[np.isin(new.pred, comm)]
    assert (kinds == EdgeKind.EVENT).any()


def test_gradients_of_the_host_are_ready_inside_its_work(tmp_path: Path) -> None:
    # Nothing runs on the device: the host computes, 10 us a megabyte, and launches.
    before = [
        Op("work", 100), Op("collective", bucket_us(10)),
        Op("work", 200), Op("collective", bucket_us(20)), Op("sync"),
    ]  # fmt: skip
    small, large = Op("collective", bucket_us(5)), Op("collective", bucket_us(10))
    after = [
        Op("work", 50), small, Op("work", 50), small, Op("work", 100), large, Op("work", 100),
        large, Op("sync"),
    ]  # fmt: skip
    old = ran(tmp_path / "old", [before, before], [10 * MB, 20 * MB]).graph
    truth = ran(tmp_path / "new", [after, after]).graph
    new = transform("buckets", split=2)(old)
    for rank in (0, 1):
        assert ends_us(new, TaskKind.COMM, rank) == ends_us(truth, TaskKind.COMM, rank)
        assert ends_us(new, TaskKind.CALL, rank) == ends_us(truth, TaskKind.CALL, rank)
    assert step_us(new) == step_us(truth)


def test_a_guessed_wait_does_not_forbid_larger_buckets(tmp_path: Path) -> None:
    program = [
        Op("kernel", 50), Op("collective", bucket_us(5)), Op("work", 70), Op("kernel", 60),
        Op("collective", bucket_us(10)), *AWAIT,
    ]  # fmt: skip
    graph = ran(tmp_path, [program, program], [5 * MB, 10 * MB]).graph
    first = np.flatnonzero((graph.kind == TaskKind.COMM) & (graph.collective == 0))
    waits = [
        np.flatnonzero((graph.kind == TaskKind.HOST) & (graph.rank == rank) & (graph.dur_ns > 0))
        for rank in graph.rank[first]
    ]
    target = np.array([tasks[np.argmax(graph.dur_ns[tasks])] for tasks in waits])
    guessed = joined(edges_of(graph), new_edges(first, target, EdgeKind.SYNC))
    held = rebuilt(graph, guessed, "test")
    assert step_us(held) > step_us(graph)
    new = transform("buckets", fuse=2)(held)
    assert step_us(new) == step_us(transform("buckets", fuse=2)(graph))


def test_pieces_by_hand() -> None:
    cut = pieces(np.array([10, 30]), np.array([5, 20, 30]))
    assert cut.new.tolist() == [0, 1, 1, 2]
    assert cut.old.tolist() == [0, 0, 1, 1]
    assert cut.share.tolist() == [0.5, 0.5, 0.5, 0.5]
