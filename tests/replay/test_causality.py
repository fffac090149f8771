"""Clocks of ranks that meet in messages only."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.replay.traces import COMM, US, Job, RankTrace, job


def pipeline(off_us: float, messages: int = 12, small_send: float = 0) -> list[RankTrace]:
    """Two stages that exchange messages; rank 1's clock is ahead by ``off_us``.

    Rank 0 sends the even messages, rank 1 the odd ones; the receiver comes 300 us before its
    sender, both leave 80 us after it. With ``small_send`` the sender leaves so much earlier.
    """
    stages = [RankTrace(rank=r, groups=[(0, 1)]) for r in (0, 1)]
    for r, off in zip(stages, (0, off_us), strict=True):
        r.mark(1, off, off + 100)
        for i in range(messages):
            at = 10_000 + 2_000 * i + off
            sends = i % 2 == r.rank
            arrive = at if sends else at - 300
            end = at + 80 - (small_send if sends else 0)
            by = r.call("launch", off + 5 * i, 2)
            work = r.work("ncclDevKernel_SendRecv", arrive, end - arrive, COMM, by)
            kind = "send" if sends else "recv"
            r.operation(kind, work, group=0, seq=i, p2p=True, peer=1 - r.rank)
    return stages


def offset(j: Job) -> float:
    return j.build.alignment.offset_ns.get(1, 0) / US


@pytest.mark.parametrize("off_us", [5_000, -5_000, 700])
def test_an_offset_is_found(tmp_path: Path, off_us: float) -> None:
    assert offset(job(tmp_path, *pipeline(off_us))) == -off_us


def test_small_sends_that_leave_early_cancel_out(tmp_path: Path) -> None:
    assert offset(job(tmp_path, *pipeline(5_000, small_send=60))) == -5_000


def test_clocks_that_agree_are_left_alone(tmp_path: Path) -> None:
    assert offset(job(tmp_path, *pipeline(100))) == 0


def test_a_few_messages_say_nothing(tmp_path: Path) -> None:
    assert offset(job(tmp_path, *pipeline(5_000, messages=4))) == 0


def test_a_wrong_clock_makes_no_straggler(tmp_path: Path) -> None:
    right, wrong = (job(tmp_path / n, *pipeline(o)) for n, o in (("a", 0), ("b", 5_000)))
    assert (right.graph.dur_ns == wrong.graph.dur_ns).all()
