"""The bundled sample: what a demo and a first look rely on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretrace import TraceSet

SAMPLE = Path(__file__).resolve().parents[2] / "traces" / "sample" / "gpt-dp2pp2.trace"


@pytest.fixture(scope="module")
def sample() -> TraceSet:
    return TraceSet.open(SAMPLE)


def rows_of(sample: TraceSet, rank: int) -> list[dict[str, Any]]:
    groups = sample.info(rank).groups
    rows = sample.collectives(rank).to_pylist()
    return [row | {"ranks": tuple(groups[row["group"]].ranks)} for row in rows]


def test_it_is_whole_and_small(sample: TraceSet) -> None:
    assert (sample.ranks, sample.problems, sample.steps) == ([0, 1, 2, 3], [], [2, 3, 4])
    assert sum(p.stat().st_size for p in SAMPLE.rglob("*") if p.is_file()) < 1_500_000
    for rank in sample.ranks:
        info = sample.info(rank)
        assert (info.layout, info.backend, info.detail) == ({"dp": 2, "pp": 2}, "gloo", "full")
        assert (info.source, info.rank_from) == ("foretrace.collector", "collector")
        assert info.dropped == []


def test_every_operation_is_linked_to_its_events(sample: TraceSet) -> None:
    for rank in sample.ranks:
        rows = rows_of(sample, rank)
        assert len(rows) == 3 * 12  # a step: 8 sends and receives, 4 buckets of gradients
        for row in rows:
            assert row["source"] == "hook"
            assert min(row["call_event"], row["work_event"], row["wait_event"]) >= 0


def test_sends_meet_receives_and_members_agree(sample: TraceSet) -> None:
    sent, received, reduced = {}, {}, {}
    for rank in sample.ranks:
        for row in rows_of(sample, rank):
            if row["kind"] == "send":
                sent[rank, row["peer"], row["seq"]] = row["bytes_in"]
            elif row["kind"] == "recv":
                received[row["peer"], rank, row["seq"]] = row["bytes_out"]
            else:
                key = row["ranks"], row["seq"]
                reduced.setdefault(key, []).append((row["kind"], row["bytes_in"]))
    assert sent == received
    assert set(sent.values()) == {4 * 64 * 128 * 4}  # batch, length, width, bytes
    assert {ranks for ranks, _ in reduced} == {(0, 2), (1, 3)}
    assert all(len(both) == 2 and both[0] == both[1] for both in reduced.values())


def test_steps_of_all_ranks_overlap(sample: TraceSet) -> None:
    """All on one host, so the clocks are one."""
    for number in range(3):
        marks = [sample.info(rank).steps[number] for rank in sample.ranks]
        assert max(m.start_ns for m in marks) < min(m.end_ns for m in marks)
