"""Hook rows over profiler events: each small trace with the links it must give."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collector.tables import (
    MAIN,
    OTHER,
    WORKER,
    call,
    collectives,
    column,
    events,
    kernel,
    launch,
    note,
    op,
    recording,
    starts_at,
)

from foretrace.collector.overlay import join_groups, overlay
from foretrace.collector.spool import Group, Recording, Wait
from foretrace.traces.manifest import GroupInfo


def laid_over(
    table: pa.Table, given: Recording, *imported: dict[str, Any]
) -> tuple[pa.Table, pa.Table]:
    return overlay(table, collectives(*imported), given, [0, 1])


def test_gloo_collectives_run_in_the_order_of_issue_on_other_threads() -> None:
    table = events(
        op("c10d::allreduce_", 100, 110),
        op("c10d::allreduce_", 200, 210),
        op("c10d::allreduce_", 300, 310),
        note("gloo:all_reduce", 105, 400, thread=WORKER),
        note("gloo:all_reduce", 205, 260, thread=OTHER),
        note("gloo:all_reduce", 305, 500, thread=OTHER),
        note("ProfilerStep#0", 0, 1000),
    )
    hooks = recording(*(call(i, "allreduce_", 100 * i + 101, 100 * i + 109) for i in range(3)))
    _, found = laid_over(table, hooks)
    assert starts_at(table, column(found, "call_event")) == [100, 200, 300]
    assert starts_at(table, column(found, "work_event")) == [105, 205, 305]
    assert column(found, "source") == ["hook"] * 3
    assert column(found, "group_rank") == [1, 1, 1]


def test_groups_that_run_at_the_same_time_keep_their_own_threads() -> None:
    """Group 1's second call starts to run before group 0's first is through."""
    table = events(
        *(op("c10d::allreduce_", start, start + 5) for start in (100, 110, 120, 130, 140)),
        note("gloo:all_reduce", 106, 900, thread=WORKER),
        note("gloo:all_reduce", 116, 150, thread=OTHER),
        note("gloo:all_reduce", 150, 160, thread=OTHER),
        note("gloo:all_reduce", 900, 950, thread=WORKER),
        note("gloo:all_reduce", 160, 170, thread=OTHER),
    )
    groups = [0, 1, 0, 1, 1]
    hooks = recording(
        *(
            call(i, "allreduce_", 100 + 10 * i + 1, 100 + 10 * i + 4, group=g)
            for i, g in enumerate(groups)
        )
    )
    _, found = laid_over(table, hooks)
    assert starts_at(table, column(found, "work_event")) == [106, 116, 900, 150, 160]


def test_a_work_whose_call_came_before_the_window_is_not_taken() -> None:
    table = events(
        note("gloo:all_reduce", 50, 90, thread=WORKER),
        op("c10d::allreduce_", 100, 110),
        note("gloo:all_reduce", 105, 190, thread=WORKER),
    )
    before = {"kind": "all_reduce", "work_event": 0, "source": "gloo", "group": 1}
    _, found = laid_over(table, recording(call(0, "allreduce_", 101, 109)), before)
    assert starts_at(table, column(found, "work_event")) == [50, 105]
    assert column(found, "source") == ["gloo", "hook"]


def test_sends_and_receives_are_annotated_inside_their_call() -> None:
    table = events(
        op("c10d::send", 100, 110),
        note("gloo:send", 105, 400),
        op("c10d::recv_", 120, 130),
        note("gloo:recv", 125, 390),
        op("foretrace::wait", 200, 400),
        op("foretrace::wait", 401, 402),
    )
    hooks = recording(
        call(4, "send", 101, 109, peer=3),
        call(5, "recv_", 121, 129, peer=3),
        waits=[Wait(5, MAIN, 202, 399, True), Wait(4, MAIN, 401, 402, True)],
    )
    marked, found = laid_over(table, hooks)
    assert starts_at(table, column(found, "work_event")) == [105, 125]
    assert starts_at(table, column(found, "wait_event")) == [401, 200]
    assert column(found, "p2p") == [True, True]
    assert column(found, "peer") == [3, 3]
    kinds = dict(zip(column(marked, "name"), column(marked, "kind"), strict=True))
    assert kinds["foretrace::wait"] == "annotation"
    assert kinds["c10d::send"] == "host_op"


def test_calls_the_profiler_missed_keep_their_sizes() -> None:
    table = events(op("c10d::allreduce_", 100_000, 100_010), op("aten::mm", 300_000, 300_010))
    hooks = recording(
        call(0, "allreduce_", 100_001, 100_009), call(1, "allreduce_", 500_000, 500_009)
    )
    _, found = laid_over(table, hooks)
    assert column(found, "call_event") == [0, -1]
    assert column(found, "bytes_in") == [8, 8]


def nccl_batch() -> tuple[pa.Table, dict[str, Any]]:
    """A batch of a send and a receive: one kernel, launched after both calls."""
    table = events(
        op("c10d::send", 100, 110),
        op("c10d::recv_", 120, 130),
        op("record_param_comms", 140, 150),
        launch(145, 9),
        kernel("ncclDevKernel_SendRecv", 200, 260, 9),
    )
    fused = {
        "kind": "send_recv",
        "p2p": True,
        "call_event": 2,
        "work_event": 4,
        "comm_id": 77,
        "source": "kernel",
    }
    return table, fused


def test_calls_of_a_batch_share_the_fused_kernel() -> None:
    table, fused = nccl_batch()
    hooks = recording(
        call(0, "send", 101, 109, peer=3, bytes_out=0), call(1, "recv_", 121, 129, peer=0)
    )
    _, found = laid_over(table, hooks, fused)
    assert column(found, "kind") == ["send", "recv"]
    assert starts_at(table, column(found, "work_event")) == [200, 200]
    assert column(found, "peer") == [3, 0]
    assert column(found, "comm_id") == [77, 77]


def test_a_kernel_of_a_collective_keeps_what_only_it_knows() -> None:
    table = events(
        op("c10d::allreduce_", 100, 140),
        op("record_param_comms", 110, 130),
        launch(115, 9),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 200, 260, 9),
        op("foretrace::wait", 300, 340),
        op("record_param_comms", 310, 330),
    )
    imported = {
        "kind": "all_reduce",
        "call_event": 1,
        "work_event": 3,
        "bytes_in": 1,
        "comm_id": 5,
        "seq": 4711,
        "source": "kernel",
    }
    hooks = recording(
        call(0, "allreduce_", 101, 139, bytes_in=64, seq=3),
        waits=[Wait(0, MAIN, 302, 339, True)],
    )
    _, found = laid_over(table, hooks, imported)
    (row,) = found.to_pylist()
    assert starts_at(table, [row["call_event"], row["work_event"]]) == [110, 200]
    assert starts_at(table, [row["wait_event"]]) == [310]  # the profiler's own row of the wait
    assert (row["bytes_in"], row["seq"], row["comm_id"], row["source"]) == (64, 3, 5, "hook")


def test_without_a_hook_imported_rows_stay_and_join_the_known_groups() -> None:
    table, fused = nccl_batch()
    _, found = laid_over(table, recording(hook="refused"), fused | {"group": 1})
    (row,) = found.to_pylist()
    assert (row["kind"], row["group"], row["source"]) == ("send_recv", 1, "kernel")


def test_buckets_of_a_backward_pass_get_the_wait_that_follows_from_their_ends() -> None:
    """Two buckets; the reducer is held up by the second alone, from 160 to 300."""
    table = events(
        note("ProfilerStep#3", 0, 1000, step=3),
        op("c10d::allreduce_", 100, 110, step=3),
        note("gloo:all_reduce", 105, 130, thread=WORKER, step=3),
        op("c10d::allreduce_", 140, 150, step=3),
        note("gloo:all_reduce", 145, 300, thread=OTHER, step=3),
        op("aten::as_strided", 155, 160, step=3),
        op("aten::copy_", 310, 320, step=3),
    )
    silent = {"backward": 5, "from_python": False}
    hooks = recording(
        call(0, "allreduce_", 101, 109, **silent), call(1, "allreduce_", 141, 149, **silent)
    )
    marked, found = laid_over(table, hooks)
    waits = column(found, "wait_event")
    rows = [marked.slice(row, 1).to_pylist()[0] for row in waits]
    assert [(r["name"], r["start_ns"], r["dur_ns"]) for r in rows] == [
        ("foretrace::implied_wait", 149, 0),
        ("foretrace::implied_wait", 160, 140),
    ]
    assert {(r["kind"], r["thread"], r["step"]) for r in rows} == {("annotation", MAIN, 3)}
    assert len(marked) == len(table) + 2
    assert column(marked, "start_ns") == sorted(column(marked, "start_ns"))
    assert starts_at(marked, column(found, "call_event")) == [100, 140]
    assert starts_at(marked, column(found, "work_event")) == [105, 145]


def test_a_bucket_that_was_there_in_time_holds_nobody_up() -> None:
    table = events(
        op("c10d::allreduce_", 100, 110),
        note("gloo:all_reduce", 105, 200, thread=WORKER),
        op("aten::mm", 120, 400),
    )
    hooks = recording(call(0, "allreduce_", 101, 109, backward=5, from_python=False))
    marked, found = laid_over(table, hooks)
    (row,) = column(found, "wait_event")
    assert column(marked, "dur_ns")[row] == 0


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(0, 10))
def test_every_call_finds_its_own_row_whatever_the_spacing(gaps: list[int], lag: int) -> None:
    """Rows of 10 us each; the hook's clock lags behind by less than it may."""
    starts = [1000 * sum(gaps[: i + 1]) + 10_000 * i for i in range(len(gaps))]
    table = events(*(op("c10d::barrier", s, s + 10_000) for s in starts))
    hooks = recording(*(call(i, "barrier", s + 100 * lag, s + 9_000) for i, s in enumerate(starts)))
    _, found = laid_over(table, hooks)
    assert starts_at(table, column(found, "call_event")) == starts
    # One call missing on the hook's side must not shift the others.
    rest = [i for i in range(len(starts)) if i != len(starts) // 2]
    fewer = recording(*(hooks.calls[i] for i in rest))
    _, found = laid_over(table, fewer)
    assert starts_at(table, column(found, "call_event")) == [starts[i] for i in rest]


def test_groups_of_both_sources_are_joined_by_name() -> None:
    recorded = [Group("0", "default_pg", [0, 1]), Group("7", "mesh_dp", [1])]
    imported = [
        GroupInfo(name="7", ranks=[1]),
        GroupInfo(name="9", size=64),
        GroupInfo(name="0", ranks=[0, 1]),
    ]
    joined, group_of = join_groups(recorded, imported)
    assert [g.name for g in joined] == ["0", "7", "9"]
    assert group_of == [1, 2, 0]
    assert [g.size for g in joined] == [2, 1, 64]


def test_no_calls_and_no_events_of_ours() -> None:
    table = events(op("aten::mm", 0, 10))
    marked, found = laid_over(table, recording())
    assert marked.equals(table)
    assert len(found) == 0


@pytest.mark.parametrize("several", [1, 2])
def test_bytes_are_not_counted_twice(several: int) -> None:
    """A call with two kernels keeps the kernels' own sizes."""
    kernels = [kernel("ncclDevKernel_Broadcast", 200 + i, 260 + i, 9 + i) for i in range(several)]
    table = events(
        op("c10d::allgather_", 100, 140),
        op("record_param_comms", 110, 130),
        *(launch(115 + 3 * i, 9 + i) for i in range(several)),
        *kernels,
    )
    imported = [
        {"call_event": 1, "work_event": 2 + several + i, "bytes_in": 5, "source": "kernel"}
        for i in range(several)
    ]
    hooks = recording(call(0, "allgather_", 101, 139, bytes_in=10))
    _, found = laid_over(table, hooks, *imported)
    assert sum(column(found, "bytes_in")) == 10
