"""Host time: what is usual between two events, and what is a stall on top of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.traces import Job, RankTrace, job

from foretrace.replay.build.gaps import MIN_SAMPLES, MIN_STALL_NS, typical_gaps
from foretrace.replay.graph import TaskKind

HOST, STALL, CALL, MARK = TaskKind.HOST, TaskKind.STALL, TaskKind.CALL, TaskKind.MARK
USUAL, SLOW = 30, 300


def loop(gaps: list[float], rank: int = 0) -> RankTrace:
    """Launches of 5 us one after another, with these pauses behind them."""
    r = RankTrace(rank=rank)
    at = 10.0
    for gap in gaps:
        by = r.call("cudaLaunchKernel", at, 5)
        r.work("k", at, 4, by=by)
        at += 5 + gap
    by = r.call("cudaLaunchKernel", at, 5)
    r.work("k", at, 4, by=by)
    r.mark(1, 0, at + 15)
    return r


def host_after(j: Job, call: int) -> list[tuple[str, float]]:
    """Kind and length of what the thread does behind a call until its next one."""
    g = j.graph
    follows = {j.before(t)[0]: t for t in [*j.tasks(HOST), *j.tasks(STALL)]}
    result = []
    while call in follows:
        call = follows[call]
        result.append((TaskKind(g.kind[call]).name, j.dur_us(call)))
    return result


def test_a_rare_long_pause_is_a_stall_of_the_excess(tmp_path: Path) -> None:
    gaps: list[float] = [USUAL] * 10
    gaps[4] = SLOW
    j = job(tmp_path, loop(gaps))
    calls = j.tasks(CALL)
    assert host_after(j, calls[3]) == [("HOST", USUAL)]
    assert host_after(j, calls[4]) == [("HOST", USUAL), ("STALL", SLOW - USUAL)]
    assert [j.dur_us(t) for t in j.tasks(STALL)] == [SLOW - USUAL]
    # As recorded, the stall is in the replay; without it all that follows moves up.
    assert j.start(calls[10]) == 10 + 10 * 35 + 270
    j.longer(j.tasks(STALL)[0], -270)
    assert j.start(calls[10]) == 10 + 10 * 35


def test_below_eight_samples_nothing_is_usual(tmp_path: Path) -> None:
    gaps: list[float] = [USUAL] * (MIN_SAMPLES - 2)
    j = job(tmp_path, loop([*gaps, SLOW]))
    assert not j.tasks(STALL)
    assert host_after(j, j.tasks(CALL)[MIN_SAMPLES - 2]) == [("HOST", SLOW)]


def test_what_is_usual_is_pooled_over_ranks(tmp_path: Path) -> None:
    ranks = [loop([USUAL] * 3, 0), loop([USUAL] * 4, 1), loop([USUAL, SLOW, USUAL], 2)]
    j = job(tmp_path, *ranks)
    assert [(j.graph.rank[t], j.dur_us(t)) for t in j.tasks(STALL)] == [(2, SLOW - USUAL)]


def test_ordinary_variation_is_work(tmp_path: Path) -> None:
    j = job(tmp_path, loop([26, 28, 30, 32, 34, 27, 29, 31, 33, 45, 49]))
    assert not j.tasks(STALL)


def test_a_slow_call_stalls_too(tmp_path: Path) -> None:
    # A launch that takes 400 us once: 395 of them are no cost of a launch.
    r = RankTrace()
    at = 10.0
    for i in range(12):
        took = 400 if i == 6 else 5
        by = r.call("cudaLaunchKernel", at, took)
        r.work("k", at, 4, by=by)
        at += took + USUAL
    r.mark(1, 0, at)
    j = job(tmp_path, r)
    assert {j.dur_us(c) for c in j.tasks(CALL)} == {5}
    assert [j.dur_us(t) for t in j.tasks(STALL)] == [395]
    assert j.start(j.tasks(MARK)[1]) == at


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**9)), max_size=60))
def test_typical_gaps_against_plain_medians(samples: list[tuple[int, int]]) -> None:
    pair = np.array([p for p, _ in samples], np.int64)
    gap = np.array([g for _, g in samples], np.int64)
    half = len(samples) // 2
    found = typical_gaps([(pair[:half], gap[:half]), (pair[half:], gap[half:])])
    expected = {}
    for p in range(4):
        mine = sorted(g for q, g in samples if q == p)
        if len(mine) >= 8:
            median = mine[len(mine) // 2]
            spread = sorted(abs(g - median) for g in mine)[len(mine) // 2]
            expected[p] = (median, int(median + int(6 * 1.4826 * spread)))
    assert found.pair.tolist() == list(expected)
    assert list(zip(found.median_ns.tolist(), found.fence_ns.tolist(), strict=True)) == list(
        expected.values()
    )
    excess = found.excess(pair, gap)
    for (p, g), e in zip(samples, excess.tolist(), strict=True):
        median, fence = expected.get(p, (g, g))
        stalled = g > fence and g - median >= MIN_STALL_NS
        assert e == (g - median if stalled else 0)
