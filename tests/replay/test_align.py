"""One clock for all ranks: offsets that were put there are found again."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.replay.align import Alignment, align

MS, US = 1_000_000, 1_000
DAY = 86_400 * 10**9


def recorded(
    rng: np.random.Generator, groups: list[tuple[int, ...]], count: int, noise_ns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Members of ``count`` operations of each group on true clocks: CSR, ranks, ends."""
    ptr, rank, end = [0], [], []
    for _ in range(count):
        for g in groups:
            common = int(rng.integers(0, 2_000 * MS)) + 20_000 * DAY
            rank += list(g)
            end += [common + int(rng.integers(-noise_ns, noise_ns + 1)) for _ in g]
            ptr.append(len(rank))
    return np.array(ptr, np.int64), np.array(rank, np.int32), np.array(end, np.int64)


def off(rank: np.ndarray, end: np.ndarray, offset: dict[int, int]) -> np.ndarray:
    """The ends on clocks that go ahead by ``offset``."""
    return end + np.array([offset[int(r)] for r in rank], np.int64)


def expected(offset: dict[int, int]) -> dict[int, int]:
    """What must be added to each rank's times to come to the lowest rank's clock."""
    base = offset[min(offset)]
    return {r: base - o for r, o in offset.items()}


def near(found: dict[int, int], offset: dict[int, int], tolerance: int) -> bool:
    return all(abs(found[r] - e) <= tolerance for r, e in expected(offset).items())


def test_exact_clocks_need_nothing() -> None:
    ptr, rank, end = recorded(np.random.default_rng(0), [(0, 1, 2, 3)], 20, 0)
    result = align(ptr, rank, end)
    assert result.offset_ns == {0: 0, 1: 0, 2: 0, 3: 0}
    assert result.residual_ns == 0
    assert result.anchors == 20


@settings(max_examples=25)
@given(
    st.integers(2, 8),
    st.integers(0, 40 * US),
    st.integers(0, 2**32 - 1),
)
def test_offsets_of_milliseconds_are_found_to_within_the_residual(
    world: int, noise_ns: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pairs = [(r, (r + 1) % world) for r in range(world - 1)]
    groups = [tuple(range(world)), *pairs]
    ptr, rank, end = recorded(rng, groups, 40, noise_ns)
    offset = {r: int(rng.integers(-5 * MS, 5 * MS)) for r in range(world)}
    result = align(ptr, rank, off(rank, end, offset))
    assert near(result.offset_ns, offset, 2 * result.residual_ns + 2)
    assert result.residual_ns <= noise_ns + 1
    assert set(result.rank_residual_ns) == set(range(world))


def test_some_late_leavers_do_not_pull_the_clock() -> None:
    # One in ten of rank 1's ends is 3 ms late.
    rng = np.random.default_rng(2)
    ptr, rank, end = recorded(rng, [(0, 1, 2)], 100, 10 * US)
    late = np.flatnonzero(rank == 1)[::10]
    end[late] += 3 * MS
    offset = {0: 0, 1: 2 * MS, 2: -4 * MS}
    result = align(ptr, rank, off(rank, end, offset))
    assert near(result.offset_ns, offset, 10 * US)
    assert result.residual_ns < 10 * US


def test_two_groups_share_a_rank() -> None:
    rng = np.random.default_rng(3)
    ptr, rank, end = recorded(rng, [(0, 1), (1, 2), (2, 3)], 50, 5 * US)
    offset = {0: 3 * MS, 1: -2 * MS, 2: 5 * MS, 3: -5 * MS}
    result = align(ptr, rank, off(rank, end, offset))
    assert near(result.offset_ns, offset, 5 * US)


def test_groups_that_share_nobody_are_right_within_themselves() -> None:
    # Nothing compares ranks 0, 1 with ranks 2, 3: each half keeps a clock of its own.
    rng = np.random.default_rng(4)
    ptr, rank, end = recorded(rng, [(0, 1), (2, 3)], 50, 5 * US)
    offset = {0: 0, 1: 4 * MS, 2: -3 * MS, 3: 1 * MS}
    found = align(ptr, rank, off(rank, end, offset)).offset_ns
    assert abs((found[1] - found[0]) - (-4 * MS)) < 5 * US
    assert abs((found[3] - found[2]) - (-4 * MS)) < 5 * US


def test_halves_without_a_common_rank_are_not_moved_against_each_other() -> None:
    """With equal clocks there is nothing to correct, whatever is connected."""
    rng = np.random.default_rng(5)
    ptr, rank, end = recorded(rng, [(0, 1), (2, 3)], 50, 5 * US)
    found = align(ptr, rank, end).offset_ns
    assert max(abs(o) for o in found.values()) < 10 * US


def test_a_wrong_clock_in_one_half_does_not_move_the_other() -> None:
    rng = np.random.default_rng(5)
    ptr, rank, end = recorded(rng, [(0, 1), (2, 3)], 50, 5 * US)
    found = align(ptr, rank, off(rank, end, {0: 0, 1: 4 * MS, 2: 0, 3: 0})).offset_ns
    assert abs(found[1] + 4 * MS) < 10 * US
    assert max(abs(found[2]), abs(found[3])) < 10 * US


@pytest.mark.parametrize("ranks", [[], [0]])
def test_nothing_to_compare(ranks: list[int]) -> None:
    count = 3 * len(ranks)
    ptr = np.arange(count + 1)
    result = align(ptr, np.array(ranks * 3, np.int32), np.arange(count) * MS)
    assert result.offset_ns == dict.fromkeys(ranks, 0)
    assert result.residual_ns == -1


def test_one_collective_is_enough_for_an_offset() -> None:
    ptr, rank = np.array([0, 2]), np.array([0, 1], np.int32)
    result = align(ptr, rank, np.array([10 * MS, 15 * MS]))
    assert result.offset_ns == {0: 0, 1: -5 * MS}


def test_times_since_the_epoch_keep_their_nanoseconds() -> None:
    rng = np.random.default_rng(6)
    ptr, rank, end = recorded(rng, [(0, 1)], 30, 0)
    result = align(ptr, rank, off(rank, end, {0: 0, 1: 12_345}))
    assert result.offset_ns == {0: 0, 1: -12_345}


def spreads(result: Alignment, ptr: np.ndarray, rank: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How far the corrected ends of each operation lie apart, ns."""
    corrected = end.copy()
    for r in np.unique(rank):
        corrected[rank == r] = result.correct(int(r), end[rank == r])
    return np.array([np.ptp(corrected[a:b]) for a, b in pairwise(ptr)])


@pytest.mark.parametrize("ppm", [-50.0, 20.0, 300.0])
def test_a_drift_is_found_and_taken_out(ppm: float) -> None:
    # Over the two seconds the clock of rank 1 gains or loses 40 us and more; noise is 2 us.
    rng = np.random.default_rng(8)
    ptr, rank, end = recorded(rng, [(0, 1, 2)], 200, 2 * US)
    begin = int(end.min())
    gained = np.rint((end - begin) * ppm * 1e-6).astype(np.int64)
    wrong = off(rank, end + np.where(rank == 1, gained, 0), {0: 0, 1: 3 * MS, 2: 0})
    result = align(ptr, rank, wrong)
    assert result.drift_ppm[1] == pytest.approx(-ppm, abs=1)
    assert spreads(result, ptr, rank, wrong).max() <= 5 * US
    assert result.residual_ns <= 2 * US
    assert abs(result.drift_ppm.get(2, 0)) < 1


def test_steady_clocks_do_not_drift() -> None:
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        ptr, rank, end = recorded(rng, [(0, 1, 2, 3)], 60, 15 * US)
        found += bool(align(ptr, rank, end).drift_ppm)
    assert found == 0


def test_few_meetings_show_no_drift() -> None:
    # Three operations: a slope through them would be noise.
    rng = np.random.default_rng(9)
    ptr, rank, end = recorded(rng, [(0, 1)], 3, 15 * US)
    assert not align(ptr, rank, end).drift_ppm


@given(st.integers(-5 * MS, 5 * MS), st.lists(st.integers(0, 2**60), min_size=1, max_size=20))
def test_without_drift_a_correction_is_the_offset(offset: int, times: list[int]) -> None:
    alignment = Alignment({3: offset}, {}, 0, -1, {}, 0)
    time = np.array(times, np.int64)
    assert (alignment.correct(3, time) == time + offset).all()
    assert (alignment.correct(4, time) == time).all()
