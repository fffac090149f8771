"""The breakdown: known by hand, exact, and equal to a count nanosecond by nanosecond."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import HealthCheck, given, settings
from tests.analysis.graphs import two_ranks
from tests.analysis.random_graphs import timelines
from tests.analysis.reference import Rank

from foretrace.analysis.activity import Activity
from foretrace.analysis.breakdown import (
    COLUMNS,
    breakdown,
    communication_breakdown,
    step_pieces,
    waits,
)
from foretrace.replay.graph import Timeline
from foretrace.replay.timeline import step_windows

IDLE_CAUSES = [name for name in COLUMNS.values() if name.startswith("idle_")]
SUMMANDS = ["compute_ns", "exposed_communication_ns", "copy_ns", "idle_ns"]


def test_two_ranks_by_hand() -> None:
    table = breakdown(two_ranks().replayed()).set_index("rank")
    # 12 ns until the first kernel, 30 ns until rank 1 arrives, 3 ns before the copy.
    assert table.loc[0].to_dict() == {
        "step": 0,
        "total_ns": 93,
        "compute_ns": 20,
        "exposed_communication_ns": 18,
        "hidden_communication_ns": 0,
        "copy_ns": 10,
        "idle_ns": 45,
        "idle_rank_ns": 30,
        "idle_host_ns": 12,
        "idle_stall_ns": 0,
        "idle_dependency_ns": 3,
        "idle_unexplained_ns": 0,
        "idle_no_work_ns": 0,
    }
    # Of the 10 ns between gemm and arrival 8 lie in the stall and 2 are the launch latency.
    idle = table.loc[1, IDLE_CAUSES].to_dict()
    assert {k: v for k, v in idle.items() if v} == {
        "idle_host_ns": 14,
        "idle_stall_ns": 8,
        "idle_dependency_ns": 3,
    }


def test_who_is_waited_for_and_where() -> None:
    table = waits(two_ranks(steps=2).replayed())
    rows = table.to_dict("records")
    assert rows == [
        {
            "rank": 0,
            "step": step,
            "waits_for": 1,
            "kind": "all_reduce",
            "group": 0,
            "idle_ns": 30,
        }
        for step in (0, 1)
    ]


def test_every_step_has_its_row() -> None:
    table = breakdown(two_ranks(steps=3).replayed())
    assert table[["rank", "step"]].to_numpy().tolist() == [
        [rank, step] for step in range(3) for rank in (0, 1)
    ]
    assert (table["total_ns"] == 93).all()


@given(timelines())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_adds_up_exactly(timeline: Timeline) -> None:
    table = breakdown(timeline)
    windows = step_windows(timeline)
    length = dict(zip(windows.step.tolist(), windows.dur_ns.tolist(), strict=True))
    assert (table[SUMMANDS].sum(axis=1) == table["total_ns"]).all()
    assert (table[IDLE_CAUSES].sum(axis=1) == table["idle_ns"]).all()
    assert (table["total_ns"] == table["step"].map(length)).all()
    assert (table.drop(columns=["rank", "step"]) >= 0).all(axis=None)
    comm = communication_breakdown(timeline)
    assert comm["exposed_ns"].sum() == table["exposed_communication_ns"].sum()
    assert comm["hidden_ns"].sum() == table["hidden_communication_ns"].sum()
    assert waits(timeline)["idle_ns"].sum() == table["idle_rank_ns"].sum()


@given(timelines())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_equals_a_count_of_nanoseconds(timeline: Timeline) -> None:
    cut = step_pieces(timeline)
    end = int(timeline.end_ns[timeline.graph.rank >= 0].max())
    for step, low, high in cut.windows:
        for rank in cut.ranks.tolist():
            slow = Rank(timeline, rank)
            expected = Counter(slow.at(ns, end) for ns in range(low, high))
            mine = (cut.step == step) & (cut.pieces.rank == rank)
            found: Counter[tuple[Activity, int, int]] = Counter()
            for row in np.flatnonzero(mine):
                p = cut.pieces
                key = (Activity(p.activity[row]), int(p.culprit[row]), int(p.hidden[row]))
                found[key] += int(p.end_ns[row] - p.start_ns[row])
            assert found == expected
