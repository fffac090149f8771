"""A rank whose clock goes wrong in a real recording changes nothing that is reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.replay.real import RealSet, RealSets

from foretrace.replay.accuracy import assess
from foretrace.replay.align import Alignment
from foretrace.replay.build import Build, Recording, build_from_arrays

MS = 1_000_000
RANKS = {"a800": 5, "tp8": 3, "dlrm": 2}

each_set = pytest.mark.parametrize("name", list(RANKS))


def with_clock(recording: Recording, rank: int, by_ns: int, ppm: float = 0) -> Recording:
    """The recording of a rank whose clock is ahead, and runs too fast."""
    events, collectives = recording.tables[rank]
    origin = int(events.start.min())

    def ahead(time: np.ndarray) -> np.ndarray:
        return time + by_ns + np.rint((time - origin) * ppm * 1e-6).astype(np.int64)

    moved = replace(events, start=ahead(events.start), end=ahead(events.end))
    return replace(recording, tables={**recording.tables, rank: (moved, collectives)})


def worst_ns(rank: int, real: RealSet, moved: Recording, found: Alignment) -> int:
    """How far the rank's times end up from where they were without the error, at most."""
    right, wrong = real.recording.tables[rank][0], moved.tables[rank][0]
    before = real.build.alignment.correct(rank, right.end)
    after = found.correct(rank, wrong.end)
    return int(np.abs(after - before).max())


def check_unmoved(real: RealSet, built: Build) -> None:
    """Steps, waits and stalls are those of the right clocks: nobody became a straggler."""
    before, after = real.assessment, assess(built)
    residual = real.build.alignment.residual_ns
    assert abs(built.alignment.residual_ns - residual) <= residual
    assert not built.unmatched
    for old, new in zip(before.steps, after.steps, strict=True):
        assert abs(new.measured_ns - old.measured_ns) <= 2 * residual
        assert abs(new.replayed_ns - old.replayed_ns) <= 2 * residual + 1e-4 * old.replayed_ns
    for was, now in zip(before.ranks, after.ranks, strict=True):
        matches = len(real.recording.tables[was.rank][1].kind)
        assert abs(now.waiting_ns - was.waiting_ns) <= residual * matches
        assert abs(now.stall_ns - was.stall_ns) <= 0.02 * was.stall_ns + 2 * residual


@each_set
@pytest.mark.parametrize("by_ns", [5 * MS, -5 * MS])
def test_five_milliseconds_are_taken_out(real_sets: RealSets, name: str, by_ns: int) -> None:
    real, rank = real_sets.get(name), RANKS[name]
    moved = with_clock(real.recording, rank, by_ns)
    built = build_from_arrays(moved)
    assert worst_ns(rank, real, moved, built.alignment) <= real.build.alignment.residual_ns
    check_unmoved(real, built)


@each_set
@pytest.mark.parametrize("ppm", [50, -50])
def test_so_is_a_drift(real_sets: RealSets, name: str, ppm: float) -> None:
    real, rank = real_sets.get(name), RANKS[name]
    moved = with_clock(real.recording, rank, 5 * MS, ppm)
    built = build_from_arrays(moved)
    # The clocks before are an estimate too, as far off as this one.
    assert worst_ns(rank, real, moved, built.alignment) <= 2 * real.build.alignment.residual_ns
    check_unmoved(real, built)
