"""Kernels that communicate without any record of a collective: weak rendezvous, or counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.replay.traces import COMPUTE, RankTrace, job

from foretrace.replay.graph import EdgeKind, TaskKind

DISPATCH = "void deep_ep::intranode::dispatch<4>(int)"
PUSH = "multimem_all_reduce_kernel"
COMM, KERNEL = TaskKind.COMM, TaskKind.KERNEL


def rank(number: int, name: str, arrivals: list[float], ends: list[float]) -> RankTrace:
    """Kernels of one name between computation, on the stream of the computation."""
    r = RankTrace(rank=number)
    r.mark(1, 0, 90)
    at = 0.0
    for i, (arrive, end) in enumerate(zip(arrivals, ends, strict=True)):
        r.kernel(f"before {i}", 2 * i, at, arrive - at)
        by = r.call("launch", 2 * i + 1, 1)
        work = r.work(name, arrive, end - arrive, COMPUTE, by)
        kind = "all_to_all" if "dispatch" in name else "all_reduce"
        r.operation(kind, work, source="kernel")
        at = end
    r.kernel("after", 80, at, 10)
    return r


@pytest.mark.parametrize("name", [DISPATCH, PUSH])
def test_they_meet_by_order(tmp_path: Path, name: str) -> None:
    ends = [150.0, 350.0, 550.0, 750.0, 950.0]
    first = rank(0, name, [e - 50 for e in ends], ends)
    second = rank(1, name, [e - 20 for e in ends], ends)  # always the last one to come
    j = job(tmp_path, first, second)
    assert {round(float(c), 1) for c in j.graph.collectives.confidence} == {0.4}
    edges = j.graph.edge_kind == EdgeKind.RENDEZVOUS
    own = j.build.origins.confidence[edges]
    assert {round(float(c), 1) for c in own} == {0.4, 1.0}  # its own arrival is sure
    assert j.build.dropped == {"kernels that communicate without a record": 10}
    assert {j.dur_us(t) for t in j.tasks(COMM)} == {20}
    late = j.task(KERNEL, "before 4", rank=1)
    j.longer(late, 100)
    assert [j.start(j.task(KERNEL, "after", rank=r)) for r in (0, 1)] == [1_050, 1_050]


def test_one_that_left_before_the_other_came_did_not_wait(tmp_path: Path) -> None:
    ends = [150.0, 350.0, 550.0, 750.0, 950.0]
    first = rank(0, DISPATCH, [e - 50 for e in ends], ends)
    second = rank(1, DISPATCH, [e + 10 for e in ends], [e + 40 for e in ends])
    j = job(tmp_path, first, second)
    j.longer(j.task(KERNEL, "before 4", rank=1), 500)
    assert j.start(j.task(KERNEL, "after", rank=0)) == 950


def test_they_are_no_anchors_of_clocks(tmp_path: Path) -> None:
    ends = [150.0, 350.0, 550.0, 750.0, 950.0]
    first = rank(0, DISPATCH, [e - 50 for e in ends], ends)
    second = rank(1, DISPATCH, [e - 30 for e in ends], [e + 9 for e in ends])
    assert job(tmp_path, first, second).build.alignment.anchors == 0


def test_a_rank_alone_says_how_many_it_has(tmp_path: Path) -> None:
    j = job(tmp_path, rank(0, DISPATCH, [100.0, 300.0], [150.0, 350.0]))
    assert j.build.unmatched == {0: 2}
    assert j.build.dropped == {"kernels that communicate without a record": 2}
