"""Typical steps and hot experts, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.replay.transforms.jobs import transform

from foretrace.replay.engine import replay
from foretrace.replay.graph import JobGraph, TaskKind
from foretrace.replay.timeline import step_windows
from foretrace.replay.transforms.hot_expert import HotExpert
from foretrace.replay.transforms.program import Program
from foretrace.traces.errors import ScenarioError

EXECUTIONS = [(10, 30), (31, 11), (12, 70)]  # of both ranks, by step
WORK = [(5, 100), (6, 100), (40, 100)]


def job(steps: int = 3) -> JobGraph:
    """Two ranks that work and all-reduce; in the last step both are late by some accident."""
    program = Program()
    for step in range(steps):
        reduce = program.operation("all_reduce", (0, 1), 8)
        for rank in range(2):
            program.begin(rank, step)
            program.work(rank, "work", WORK[step][rank])
            program.post(rank, reduce, 0, EXECUTIONS[step][rank])
            program.wait(rank, reduce)
            program.end(rank)
    return program.graph()


def durations(graph: JobGraph, kind: TaskKind, rank: int) -> list[int]:
    return graph.dur_ns[(graph.kind == kind) & (graph.rank == rank)].tolist()


def test_work_takes_its_median_and_collectives_that_of_the_typical_step() -> None:
    new = transform("typical")(job())
    assert durations(new, TaskKind.HOST, 0) == [6, 6, 6]
    # The slowest members took 30, 31 and 70: the second step is typical, with both members.
    assert durations(new, TaskKind.COMM, 0) == [31, 31, 31]
    assert durations(new, TaskKind.COMM, 1) == [11, 11, 11]
    assert step_windows(replay(new)).end_ns.tolist() == [131, 242, 353]


def test_typical_again_changes_nothing_and_a_lone_step_is_its_own() -> None:
    once = transform("typical")(job())
    assert np.array_equal(transform("typical")(once).dur_ns, once.dur_ns)
    assert np.array_equal(transform("typical")(job(1)).dur_ns, job(1).dur_ns)


def test_stalls_go() -> None:
    graph = job()
    kind = graph.kind.copy()
    kind[(graph.kind == TaskKind.HOST) & (graph.rank == 0)] = TaskKind.STALL
    stalled = replace(graph, kind=kind)
    assert durations(transform("typical")(stalled), TaskKind.STALL, 0) == [0, 0, 0]


def experts() -> JobGraph:
    """Four ranks: an all-to-all of 400 bytes each, then the experts' work, one step."""
    program = Program()
    exchange = program.operation("all_to_all", (0, 1, 2, 3), 400)
    for rank in range(4):
        program.begin(rank, 0)
        program.post(rank, exchange, 0, 350 + rank)
        program.wait(rank, exchange)
        program.work(rank, "expert", 1000)
        program.end(rank)
    return program.graph()


def hot(share: float, rank: int = 2) -> JobGraph:
    change = HotExpert(rank=rank, share=share, bytes_per_s=1e9, experts="name:expert")
    return change(experts())


def test_a_hot_expert_works_longer_and_its_link_carries_more() -> None:
    new = hot(0.7)
    # 70% of the 400 bytes of each of three others, at a byte a nanosecond.
    assert [durations(new, TaskKind.COMM, r) for r in range(4)] == [[840]] * 4
    assert [durations(new, TaskKind.HOST, r) for r in range(4)] == [[400], [400], [2800], [400]]


def test_an_even_share_changes_nothing() -> None:
    assert np.array_equal(hot(0.25).dur_ns, experts().dur_ns)


def test_shares_and_ranks_that_cannot_be_are_refused() -> None:
    with pytest.raises(ScenarioError, match="less than an even one"):
        hot(0.2)
    with pytest.raises(ScenarioError, match="rank 9 is no member"):
        hot(0.5, rank=9)
