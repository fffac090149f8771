"""Constants of launches, streams, events and synchronisations: from slack that was put there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.traces import US, Job, RankTrace, job

from foretrace.replay.accuracy import assess
from foretrace.replay.build.constants import Constant
from foretrace.replay.build.slacks import MIN_SAMPLES, low_percentile
from foretrace.replay.graph import EdgeKind, TaskKind

KERNEL, CALL, SYNC = TaskKind.KERNEL, TaskKind.CALL, TaskKind.SYNC


def launches(slack: list[float], rank: int = 0) -> RankTrace:
    """Kernels on an idle stream, each so long after its call began."""
    r = RankTrace(rank=rank)
    for i, late in enumerate(slack):
        r.kernel("k", 1_000 * i + 10, 1_000 * i + 10 + late, 20)
    r.mark(1, 0, 1_000 * len(slack))
    return r


def constant(j: Job, edge: EdgeKind, target: TaskKind, rank: int = 0) -> Constant:
    return next(c for c in j.build.constants if (c.edge, c.target, c.rank) == (edge, target, rank))


def test_a_launch_latency_is_found(tmp_path: Path) -> None:
    j = job(tmp_path, launches([7.5] * 40))
    found = constant(j, EdgeKind.LAUNCH, KERNEL)
    assert (found.delay_ns, found.samples, found.outliers, found.pooled) == (7_500, 40, 0, False)
    assert j.start(j.tasks(KERNEL)[3]) == 3_017.5


def test_unexplained_lateness_is_no_constant(tmp_path: Path) -> None:
    # A tenth of the kernels start 300 us late for no reason: that must stay visible.
    j = job(tmp_path, launches([300 if i % 10 == 9 else 6 for i in range(200)]))
    found = constant(j, EdgeKind.LAUNCH, KERNEL)
    assert found.outliers == 20
    assert 6_000 <= found.delay_ns < 40_000
    assert j.start(j.tasks(KERNEL)[9]) < 9_010 + 40


def test_a_rank_with_few_samples_borrows(tmp_path: Path) -> None:
    few = MIN_SAMPLES - 1
    j = job(tmp_path, launches([6] * 100, 0), launches([90] * few, 1))
    assert constant(j, EdgeKind.LAUNCH, KERNEL, rank=0).delay_ns == 6 * US
    borrowed = constant(j, EdgeKind.LAUNCH, KERNEL, rank=1)
    assert (borrowed.delay_ns, borrowed.pooled, borrowed.samples) == (6 * US, True, 100 + few)


def test_a_rank_with_enough_samples_has_its_own(tmp_path: Path) -> None:
    j = job(tmp_path, launches([6] * 50, 0), launches([90] * 50, 1))
    delays = [constant(j, EdgeKind.LAUNCH, KERNEL, rank=r).delay_ns for r in (0, 1)]
    assert delays == [6 * US, 90 * US]


def test_the_gap_between_kernels_of_a_stream(tmp_path: Path) -> None:
    # All launched early; 1.5 us between one kernel's end and the next one's begin.
    r = RankTrace()
    for i in range(60):
        r.kernel("k", 10 * i, 10 + 101.5 * i, 100)
    r.mark(1, 0, 600)
    j = job(tmp_path, r)
    assert constant(j, EdgeKind.STREAM, KERNEL).delay_ns == 1_500
    first, last = j.tasks(KERNEL)[0], j.tasks(KERNEL)[-1]
    assert j.start(last) - j.start(first) == 59 * 101.5


def gaps(own_us: float) -> RankTrace:
    """A busy stream: "big" starts ``own_us`` after the kernel before it, all others 1.5 us."""
    r = RankTrace()
    at = 100.0
    for i in range(120):
        name, gap = ("big", own_us) if i % 4 == 3 else ("k", 1.5)
        at += gap
        r.kernel(name, 0.5 * i, at, 100)
        at += 100
    r.mark(1, 0, 99)
    return r


def test_a_kernel_has_a_gap_of_its_own(tmp_path: Path) -> None:
    j = job(tmp_path, gaps(7.5))
    big, small = j.tasks(KERNEL, "big"), j.tasks(KERNEL, "k")
    assert j.start(big[-1]) - j.start(small[0]) == 30 * 107.5 + 89 * 101.5
    (step,) = assess(j.build).steps
    assert step.unexplained_ns < 1_500


def test_a_gap_too_long_for_a_kernel_stays_unexplained(tmp_path: Path) -> None:
    (step,) = assess(job(tmp_path, gaps(307.5)).build).steps
    assert step.unexplained_ns == pytest.approx(30 * 306_000, rel=0.02)


def test_only_the_deciding_predecessor_teaches(tmp_path: Path) -> None:
    # Half of the kernels wait for their stream, half for their launch; each kind has its own.
    r = RankTrace()
    for i in range(40):
        at = 1_000 * i
        r.kernel("long", at, at + 8, 400)
        r.kernel("next", at + 20, at + 410, 50)
    r.mark(1, 0, 40_000)
    j = job(tmp_path, r)
    assert constant(j, EdgeKind.LAUNCH, KERNEL).delay_ns == 8_000
    assert constant(j, EdgeKind.STREAM, KERNEL).delay_ns == 2_000


def test_the_wake_up_after_a_synchronisation(tmp_path: Path) -> None:
    # Calls that find nothing to wait for cost 3 us; those that wait return 9 us after the kernel.
    r = RankTrace()
    r.quick_syncs(0, count=50)
    for i in range(30):
        at = 1_000 * (i + 1)
        r.kernel("k", at, at, 300)
        r.call("cudaDeviceSynchronize", at + 10, 290 + 9)
    r.mark(1, 0, 32_000)
    j = job(tmp_path, r)
    assert {j.dur_us(s) for s in j.tasks(SYNC)} == {3}
    assert constant(j, EdgeKind.SYNC, SYNC).delay_ns == 6_000
    assert j.end(j.tasks(SYNC)[-1]) == 30_000 + 309


@given(st.lists(st.integers(-(10**6), 10**9), max_size=200))
def test_never_negative_and_within_the_samples(slack: list[int]) -> None:
    delay = low_percentile(np.array(slack, np.int64))
    assert delay >= 0
    assert delay <= max(0, *slack, 0)


@pytest.mark.parametrize("true_ns", [700, 1_300, 1_500, 1_750])
def test_ticks_of_the_clock_are_averaged_out(true_ns: int) -> None:
    # Both ends are recorded in whole microseconds: single samples say 0, 1 or 2 us.
    rng = np.random.default_rng(1)
    begin = rng.integers(0, 10**9, 4_000)
    ticks = (begin + true_ns) // 1_000 * 1_000 - begin // 1_000 * 1_000
    assert len(set(ticks.tolist())) == 2
    assert abs(low_percentile(ticks) - true_ns) < 80
