"""Jobs put together from instructions, with times worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.replay.engine import replay
from foretrace.replay.graph import JobGraph, TaskKind
from foretrace.replay.timeline import step_windows
from foretrace.replay.transforms.program import Program
from foretrace.traces.errors import GraphError


def ends(graph: JobGraph) -> list[int]:
    return step_windows(replay(graph)).end_ns.tolist()


def test_a_collective_waits_for_its_last_member_and_overlaps_with_work() -> None:
    program = Program()
    operation = program.operation("all_reduce", (0, 1), 1000)
    for rank, work in ((0, 100), (1, 300)):
        program.begin(rank, 0)
        program.work(rank, "before", work)
        program.post(rank, operation, 10, 50)
        program.work(rank, "beside", 20)
        program.wait(rank, operation, 1)
        program.end(rank)
    graph = program.graph()
    # Rank 1 posts at 310, the operation ends at 360, the wait costs 1.
    assert ends(graph) == [361]
    comm = replay(graph).start_ns[graph.kind == TaskKind.COMM]
    assert comm.tolist() == [310, 310]
    assert graph.collectives.bytes.tolist() == [1000]
    assert graph.groups == ((0, 1),)


def test_operations_of_a_group_run_one_after_another_and_messages_beside() -> None:
    program = Program()
    program.begin(0, 0)
    reduces = [program.operation("all_reduce", (0,), 1) for _ in range(2)]
    for one in reduces:
        program.post(0, one, 0, 70)
    for one in reduces:
        program.wait(0, one)
    program.end(0)
    assert ends(program.graph()) == [140]

    program = Program()
    there, back = program.operation("send", (0, 1), 1), program.operation("send", (1, 0), 1)
    for rank, (mine, other) in enumerate(((there, back), (back, there))):
        program.begin(rank, 0)
        program.post(rank, mine, 5, 1)
        program.post(rank, other, 5, 40)
        program.wait(rank, mine)
        program.wait(rank, other)
        program.end(rank)
    graph = program.graph()
    assert ends(graph) == [50]  # both receives begin at 10
    names = np.array(graph.names)[graph.name[graph.kind == TaskKind.COMM]]
    assert sorted(names.tolist()) == ["recv", "recv", "send", "send"]


def test_ranks_that_wait_for_each_other_in_a_circle_are_an_error() -> None:
    program = Program()
    first, second = (program.operation("send", ends, 1) for ends in ((0, 1), (1, 0)))
    for rank, order in enumerate(((first, second), (second, first))):
        for one in order:
            program.post(rank, one, 0, 1)
            program.wait(rank, one)
    with pytest.raises(GraphError, match="cycle"):
        program.graph()
