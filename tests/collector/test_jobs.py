"""Real gloo jobs of several processes, recorded and read back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.collector.runner import Finished, run_job

from foretrace import TraceSet

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

WORLD = 4


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    job = run_job("calls", WORLD, tmp_path_factory.mktemp("calls"))
    assert job.status == [0] * WORLD, job.said
    return job


def rows_of(job: Finished, rank: int) -> list[dict[str, Any]]:
    trace = TraceSet.open(job.out / "run.trace")
    groups = trace.info(rank).groups
    table = trace.collectives(rank).to_pylist()
    return [row | {"ranks": groups[row["group"]].ranks} for row in table]


def truth_of(job: Finished, rank: int) -> list[dict[str, Any]]:
    return json.loads((job.out / f"truth-{rank}.json").read_text())


@pytest.mark.parametrize("rank", range(WORLD))
def test_every_call_is_there_with_what_it_moved(calls: Finished, rank: int) -> None:
    expected = truth_of(calls, rank)
    rows = rows_of(calls, rank)
    steps = 2
    per_step = len(rows) // steps
    assert len(rows) == steps * per_step
    for step in range(steps):
        mine = rows[step * per_step :][: len(expected)]
        for row, true in zip(mine, expected, strict=True):
            assert row["kind"] == true["kind"]
            assert (row["bytes_in"], row["bytes_out"]) == (true["in"], true["out"]), row
            assert row["peer"] == true["peer"], row
            assert row["ranks"] == true["ranks"], row
            assert row["dtype"] == true.get("dtype", "Float")
            splits = None if true["splits"] is None else tuple(true["splits"])
            given = (row["in_splits"], row["out_splits"])
            assert given == ((None, None) if splits is None else splits)
            assert row["source"] == "hook"


def test_ddp_buckets_follow(calls: Finished) -> None:
    """What DDP sends in C++, after the calls made from Python."""
    rows = rows_of(calls, 0)
    ddp = rows[len(truth_of(calls, 0)) : len(rows) // 2]
    assert {row["kind"] for row in ddp} == {"all_reduce"}
    assert len(ddp) > 1
    assert sum(row["bytes_in"] for row in ddp) == 4 * 4 * (64 * 64 + 64)
    names = TraceSet.open(calls.out / "run.trace").events(0, ["name"])["name"].to_pylist()
    assert {names[row["wait_event"]] for row in ddp} == {"foretrace::implied_wait"}


def test_members_agree_on_sequence_numbers(calls: Finished) -> None:
    """The n-th collective of a group is the same operation on every member."""
    seen: dict[tuple[Any, ...], set[tuple[str, int]]] = {}
    for rank in range(WORLD):
        for row in rows_of(calls, rank):
            if not row["p2p"]:
                key = (*row["ranks"], row["seq"])
                size = max(row["bytes_in"], row["bytes_out"])
                rooted = row["kind"] in ("gather", "scatter", "all_to_all")
                seen.setdefault(key, set()).add((row["kind"], 0 if rooted else size))
    assert len(seen) > 20
    assert all(len(kinds) == 1 for kinds in seen.values()), seen


def test_sends_meet_receives(calls: Finished) -> None:
    sent, received = {}, {}
    for rank in range(WORLD):
        for row in rows_of(calls, rank):
            group = tuple(row["ranks"])
            if row["kind"] == "send":
                sent[group, rank, row["peer"], row["seq"]] = row["bytes_in"]
            if row["kind"] == "recv":
                received[group, row["peer"], rank, row["seq"]] = row["bytes_out"]
    assert sent == received
    assert len(sent) == 2 * (WORLD + 2)


@pytest.mark.parametrize("rank", range(WORLD))
def test_rows_point_to_the_events_of_their_call(calls: Finished, rank: int) -> None:
    events = TraceSet.open(calls.out / "run.trace").events(rank)
    name = events["name"].to_pylist()
    start = np.asarray(events["start_ns"].to_numpy())
    end = start + np.asarray(events["dur_ns"].to_numpy())
    thread = events["thread"].to_pylist()
    for row in rows_of(calls, rank):
        call, work, wait = (row[f"{what}_event"] for what in ("call", "work", "wait"))
        assert name[call].startswith("c10d::")
        assert name[work] == f"gloo:{row['kind']}", row
        assert start[call] <= start[work]
        if row["p2p"]:
            assert thread[work] == thread[call]
        else:
            assert thread[work] != thread[call]
        assert wait >= 0, row
        assert end[wait] >= start[call]
        assert thread[wait] == thread[call]
        if name[wait] == "foretrace::wait" and row["p2p"]:
            assert math.isclose(end[work], end[wait], abs_tol=10**6)
    for column in ("call_event", "work_event"):
        used = [row[column] for row in rows_of(calls, rank)]
        assert len(used) == len(set(used))


def test_the_set_says_what_it_knows(calls: Finished) -> None:
    trace = TraceSet.open(calls.out / "run.trace")
    assert trace.ranks == list(range(WORLD))
    assert (trace.problems, trace.steps) == ([], [2, 3])
    info = trace.info(2)
    assert (info.rank_from, info.backend, info.world_size) == ("collector", "gloo", WORLD)
    assert (info.detail, info.layout) == ("full", {"tp": 2})
    assert [0, 2] in [g.ranks for g in info.groups]
    assert list(range(WORLD)) in [g.ranks for g in info.groups]
    assert info.labels["who"] == "test"
    assert float(info.labels["overhead.hook_step_ms"]) > 0
    assert info.clock_offset_ns == 0  # all on one host
    assert len(info.clock_samples) == 2
    assert {"torch", "python", "foretrace"} <= set(info.versions)
    assert sorted(p.name for p in (calls.out / "run.trace").iterdir()) == [
        "manifest.json",
        *(f"rank={rank:05d}" for rank in range(WORLD)),
    ]


def test_one_line_tells_what_it_cost(calls: Finished) -> None:
    (line,) = calls.lines
    assert f"{WORLD} of {WORLD} ranks, steps 2-3" in line
    assert "hooks" in line
    assert "stopped in" in line


def test_full_and_light_ranks_make_one_set(tmp_path: Path) -> None:
    job = run_job("mixed", 3, tmp_path)
    assert job.status == [0, 0, 0], job.said
    trace = TraceSet.open(tmp_path / "run.trace")
    assert (trace.ranks, trace.missing_ranks, trace.steps) == ([0, 1], [2], [1, 2])
    assert [trace.info(rank).detail for rank in (0, 1)] == ["full", "light"]
    assert trace.info(1).layout == {"dp": 3}
    same = ("kind", "seq", "bytes_out", "dtype", "group_size", "group_key")
    full, light = (trace.collectives(rank, same).to_pylist() for rank in (0, 1))
    assert full == light
    assert len(light) == 2 * (len(light) // 2) > 2
    events = trace.events(1).to_pylist()
    assert {e["name"] for e in events if e["kind"] == "host_op"} == {"c10d::allreduce_"}
    for row in trace.collectives(1).to_pylist():
        work, wait = events[row["work_event"]], events[row["wait_event"]]
        assert work["name"] == "gloo:all_reduce"
        assert work["dur_ns"] >= 0
        assert wait["name"].startswith("foretrace::")
    assert len(trace.events(0)) > 10 * len(events)


def test_a_killed_rank_leaves_the_others_usable(tmp_path: Path) -> None:
    job = run_job("killed", 2, tmp_path)
    assert job.status == [0, -9], job.said
    trace = TraceSet.open(tmp_path / "run.trace")
    assert (trace.ranks, trace.missing_ranks, trace.steps) == ([0], [1], [1, 2])
    assert trace.problems == []
    (line,) = job.lines
    assert "1 of 2 ranks" in line
    assert "missing" in line


def test_a_killed_reference_rank_takes_no_data_of_others_with_it(tmp_path: Path) -> None:
    job = run_job("killed_reference", 2, tmp_path)
    assert job.status == [-9, 0], job.said
    trace = TraceSet.open(tmp_path / "run.trace")
    assert (trace.ranks, trace.missing_ranks, trace.steps) == ([1], [0], [1, 2])
    assert trace.problems == []
    # Which call meets the dead store first is a matter of chance.
    lost = ("no line to the other ranks", "no clock samples")
    assert any(text in line for line in job.lines for text in lost), job.said


def test_a_trigger_on_one_rank_starts_all_at_the_same_step(tmp_path: Path) -> None:
    job = run_job("triggered", 2, tmp_path)
    assert job.status == [0, 0], job.said
    trace = TraceSet.open(tmp_path / "run.trace")
    assert trace.ranks == [0, 1]
    numbers = [[step.step for step in trace.info(rank).steps] for rank in trace.ranks]
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) == 2
    assert numbers[0][0] > 3
