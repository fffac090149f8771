"""Which operations of several ranks are one: by identity, never by bare position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.replay.traces import COMM, Job, RankTrace, job

from foretrace.replay.graph import TaskKind

Op = tuple[str, float, dict[str, Any]]
"""Kind, end of its kernel in us, and what the collectives table says beside that."""


def ranks(operations: list[list[Op]], groups: list[list[tuple[int, ...]]]) -> list[RankTrace]:
    """Each rank's communication kernels of 20 us, one after another."""
    result = []
    for rank, (ops, known) in enumerate(zip(operations, groups, strict=True)):
        r = RankTrace(rank=rank, groups=known)
        r.mark(1, 0, 1_000_000)
        for i, (kind, end, values) in enumerate(ops):
            by = r.call("launch", 2 * i, 1)
            work = r.work(f"nccl {rank}.{i}", end - 20, 20, values.pop("stream", COMM), by)
            r.operation(kind, work, **values)
        result.append(r)
    return result


def matched(j: Job) -> list[list[str]]:
    """Names of the kernels of each match, e.g. ``["0.0", "1.0"]``."""
    g = j.graph
    arrivals = j.tasks(TaskKind.ARRIVE)
    numbers = sorted({int(g.collective[t]) for t in arrivals} - {-1})
    names = [[g.names[g.name[t]] for t in arrivals if g.collective[t] == n] for n in numbers]
    return sorted(sorted(n.removeprefix("nccl ") for n in one) for one in names)


def confidences(j: Job) -> set[float]:
    return {round(float(c), 2) for c in j.graph.collectives.confidence}


def test_by_communicator_id(tmp_path: Path) -> None:
    # Two communicators whose operations the two ranks see in a different order.
    a, b = {"comm_id": 0xAB12}, {"comm_id": 0xFFFF_0000_0000_0001, "stream": COMM + 1}
    j = job(tmp_path, *ranks([
        [("all_reduce", 100, {**a, "seq": 1}), ("all_reduce", 200, {**b, "seq": 1})],
        [("all_reduce", 202, {**b, "seq": 1}), ("all_reduce", 103, {**a, "seq": 1})],
    ], [[], []]))  # fmt: skip
    assert matched(j) == [["0.0", "1.1"], ["0.1", "1.0"]]
    assert confidences(j) == {1}


def test_by_ranks_and_sequence(tmp_path: Path) -> None:
    # Rank 0 is in two groups; its group 0 is rank 2's group 1.
    g01, g02 = (0, 1), (0, 2)
    j = job(tmp_path, *ranks([
        [("all_reduce", 100, {"group": 0, "seq": 7}), ("all_reduce", 200, {"group": 1, "seq": 7})],
        [("all_reduce", 100, {"group": 0, "seq": 7})],
        [("all_reduce", 200, {"group": 1, "seq": 7})],
    ], [[g01, g02], [g01], [(2, 3), g02]]))  # fmt: skip
    assert matched(j) == [["0.0", "1.0"], ["0.1", "2.0"]]
    assert {j.graph.groups[i] for i in j.graph.collectives.group.tolist()} == {g01, g02}


def windows_apart(by_seq: bool) -> tuple[list[list[Op]], list[list[tuple[int, ...]]]]:
    """Rank 1's window begins one collective later than rank 0's and ends one later."""
    kinds = ["all_gather", "reduce_scatter", "all_reduce", "all_gather", "all_gather", "all_reduce"]
    ends = [100, 230, 270, 460, 500, 720]
    ops: list[list[Op]] = [[], []]
    for i, (kind, end) in enumerate(zip(kinds, ends, strict=True)):
        values = {"group": 0, **({"seq": 41 + i} if by_seq else {})}
        if i < 5:
            ops[0].append((kind, end, dict(values)))
        if i > 0:
            ops[1].append((kind, end + 3, dict(values)))
    return ops, [[(0, 1)], [(0, 1)]]


@pytest.mark.parametrize("by_seq", [True, False])
def test_windows_that_start_one_collective_apart(tmp_path: Path, by_seq: bool) -> None:
    j = job(tmp_path, *ranks(*windows_apart(by_seq)))
    assert matched(j) == [[f"0.{i + 1}", f"1.{i}"] for i in range(4)]
    assert j.build.unmatched == {0: 1, 1: 1}
    assert confidences(j) == ({1} if by_seq else {0.9})


def test_windows_apart_when_all_operations_are_alike(tmp_path: Path) -> None:
    # Only when they happened tells which is which: 130, 40, 190, 40 and 220 us apart.
    ops, groups = windows_apart(by_seq=False)
    alike: list[list[Op]] = [[("all_reduce", end, v) for _, end, v in one] for one in ops]
    j = job(tmp_path, *ranks(alike, groups))
    assert matched(j) == [[f"0.{i + 1}", f"1.{i}"] for i in range(4)]


def test_operations_of_unlike_kinds_are_never_one(tmp_path: Path) -> None:
    # Rank 1's record of the all-gather was lost in the middle of the window.
    kinds = ["all_reduce", "all_gather", "reduce_scatter", "all_reduce", "all_reduce"]
    ends = [100, 200, 350, 410, 600]
    whole: list[Op] = [(k, e, {"group": 0}) for k, e in zip(kinds, ends, strict=True)]
    holed: list[Op] = [(k, e, {"group": 0}) for k, e, _ in [whole[0], *whole[2:]]]
    j = job(tmp_path, *ranks([whole, holed], [[(0, 1)]] * 2))
    kind_of = {f"0.{i}": k for i, (k, _, _) in enumerate(whole)}
    kind_of |= {f"1.{i}": k for i, (k, _, _) in enumerate(holed)}
    assert all(len({kind_of[m] for m in one}) == 1 for one in matched(j))
    assert j.build.unmatched[0] >= 1


def test_an_operation_without_its_kernel_is_left_out(tmp_path: Path) -> None:
    # Rank 1's second kernel ran beyond the end of the recording.
    first: list[Op] = [("all_reduce", e, {"group": 0, "seq": s}) for s, e in ((1, 100), (2, 400))]
    traces = ranks([first, [("all_reduce", 100, {"group": 0, "seq": 1})]], [[(0, 1)]] * 2)
    traces[1].operation("all_reduce", None, group=0, seq=2)
    traces[1].kernel("last", 20, 5_000, 10)
    j = job(tmp_path, *traces)
    assert matched(j) == [["0.0", "1.0"]]
    assert j.build.alignment.offset_ns == {0: 0, 1: 0}


def test_the_ranks_own_handles_of_a_group_may_differ(tmp_path: Path) -> None:
    # A pointer means nothing to another rank; the members do.
    ops: list[list[Op]] = [
        [("all_reduce", 100, {"group": 0, "seq": 1, "group_key": key})] for key in ("1f00", "2e40")
    ]
    j = job(tmp_path, *ranks(ops, [[(0, 1)]] * 2))
    assert matched(j) == [["0.0", "1.0"]]


def test_two_groups_of_the_same_ranks(tmp_path: Path) -> None:
    # Data-parallel and default group of one job: the names tell them apart.
    ops: list[list[Op]] = [[
        ("all_reduce", 100 + shift, {"group": 0, "seq": 5, "group_key": "default"}),
        ("all_reduce", 200 + shift, {"group": 1, "seq": 5, "group_key": "dp"}),
    ] for shift in (0, 2)]  # fmt: skip
    ops[1].reverse()
    j = job(tmp_path, *ranks(ops, [[(0, 1), (0, 1)]] * 2))
    assert matched(j) == [["0.0", "1.1"], ["0.1", "1.0"]]


def test_what_no_other_rank_knows_is_listed(tmp_path: Path) -> None:
    shared, missed = {"comm_id": 5, "seq": 1}, {"comm_id": 5, "seq": 2}
    j = job(tmp_path, *ranks([
        [("all_reduce", 100, shared), ("all_reduce", 200, {"comm_id": 6})],
        [("all_reduce", 100, shared), ("all_reduce", 150, missed)],
    ], [[], []]))  # fmt: skip
    assert matched(j) == [["0.0", "1.0"]]
    assert j.build.unmatched == {0: 1, 1: 1}


def test_rows_of_a_match_carry_its_number(tmp_path: Path) -> None:
    j = job(tmp_path, *ranks(*windows_apart(by_seq=True)))
    g = j.graph
    for number in range(len(g.collectives.kind)):
        kinds = sorted(g.kind[g.collective == number].tolist())
        assert kinds == sorted([TaskKind.ARRIVE] * 2 + [TaskKind.COMM] * 2 + [TaskKind.JOIN])
    assert isinstance(g.names, tuple)


def test_sizes_and_groups_of_matches(tmp_path: Path) -> None:
    ops: list[list[Op]] = [
        [("all_gather", 100, {"group": 0, "seq": 1, "bytes_in": b, "bytes_out": 64})]
        for b in (32, 96)
    ]
    j = job(tmp_path, *ranks(ops, [[(0, 1)]] * 2))
    c = j.graph.collectives
    assert c.bytes.tolist() == [96]
    assert j.graph.groups[int(c.group[0])] == (0, 1)
