"""Communication tables: by hand, and equal to the kernels they come from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.analysis.graphs import GraphBuilder, two_ranks
from tests.analysis.random_graphs import timelines

from foretrace.analysis.communication import bus_factor, communication, labels, operations
from foretrace.replay.graph import EdgeKind, TaskKind, Timeline


@pytest.mark.parametrize(
    ("kind", "size", "factor"),
    [
        ("all_reduce", 8, 1.75),
        ("all_reduce", 2, 1.0),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("gather", 4, 0.75),
        ("send_recv", 2, 1.0),
    ],
)
def test_bus_factors(kind: str, size: int, factor: float) -> None:
    assert bus_factor(kind, size) == factor


def test_no_factor_where_nothing_is_moved_or_nothing_is_known() -> None:
    for kind, size in (("barrier", 8), ("unknown", 8), ("all_reduce", 0)):
        assert math.isnan(bus_factor(kind, size))


def four_ranks() -> GraphBuilder:
    """Two all-gathers of 4,000 B and one of unknown size among four ranks, and a lone kernel."""
    b = GraphBuilder(groups=[(0, 1, 2, 3), (0, 1)])
    call = {r: b.task(TaskKind.CALL, r, 10 * (r + 1), stream=1) for r in range(4)}
    late = {r: [(call[r], EdgeKind.HOST_ORDER)] for r in call}
    first = b.collective("all_gather", 0, late, {0: 80, 1: 90, 2: 100, 3: 100}, size_bytes=4_000)
    after = {r: [(t, EdgeKind.STREAM)] for r, t in first.items()}
    second = b.collective("all_gather", 0, after, 50, size_bytes=4_000)
    after = {r: [(t, EdgeKind.STREAM)] for r, t in second.items()}
    b.collective("all_gather", 0, after, 30)
    b.task(TaskKind.COMM, 2, 70, (second[2], EdgeKind.STREAM), name="ncclDevKernel_Broadcast_RING")
    return b


def test_by_hand() -> None:
    table = communication(four_ranks().replayed())
    gather = table[table["kind"] == "all_gather"].iloc[0]
    assert (gather["group"], gather["ranks"], gather["count"]) == (0, (0, 1, 2, 3), 3)
    # Arrivals at 10, 20, 30, 40: waits of 30, 20, 10, 0. The first ends at 120, 130, 140, 140,
    # so the second waits 20 and 10 more.
    assert gather["wait_ns"] == 60 + 30
    assert gather["exec_ns"] == 370 + 200 + 120
    assert gather["time_ns"] == 100 + 50 + 30
    assert gather["bytes"] == 8_000
    # Only the operations of known size count: 8,000 B in 150 ns.
    assert gather["algbw_GBps"] == pytest.approx(8_000 / 150)
    assert gather["busbw_GBps"] == pytest.approx(8_000 / 150 * 0.75)


def test_lone_kernels_are_labelled_by_their_names() -> None:
    table = communication(four_ranks().replayed())
    alone = table[table["kind"] == "broadcast"].iloc[0]
    assert (alone["group"], alone["ranks"], alone["bytes"]) == (-1, (), -1)
    assert (alone["wait_ns"], alone["exec_ns"]) == (0, 70)
    assert math.isnan(alone["busbw_GBps"])


def test_by_size_splits_rows() -> None:
    table = communication(four_ranks().replayed(), by_size=True)
    gather = table[table["kind"] == "all_gather"].set_index("size_bytes")
    assert gather["count"].to_dict() == {4_000: 2, -1: 1}
    assert gather["bytes"].to_dict() == {4_000: 8_000, -1: -1}


def test_costliest_first() -> None:
    table = communication(four_ranks().replayed())
    cost = (table["wait_ns"] + table["exec_ns"]).tolist()
    assert cost == sorted(cost, reverse=True)


def test_no_communication_gives_an_empty_table() -> None:
    b = GraphBuilder()
    b.task(TaskKind.KERNEL, 0, 10)
    table = communication(b.replayed())
    assert len(table) == 0
    assert "busbw_GBps" in table.columns


@given(timelines())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_adds_up_to_the_kernels(timeline: Timeline) -> None:
    graph = timeline.graph
    comm = graph.kind == TaskKind.COMM
    kernels = int((timeline.end_ns - timeline.start_ns)[comm].sum())
    table = communication(timeline)
    assert table["exec_ns"].sum() == kernels
    assert table["count"].sum() == len(np.unique(graph.collective[comm]))
    ops = operations(timeline)
    assert (ops.time_ns <= ops.exec_ns).all()
    assert (labels(graph).kind[comm] >= 0).all()


def test_waiting_and_execution_are_the_measured_kernel() -> None:
    timeline = two_ranks(steps=3).replayed()
    table = communication(timeline)
    assert table["wait_ns"].sum() == 3 * 30
    assert table["exec_ns"].sum() == 3 * 36
