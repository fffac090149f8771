"""A rank whose clock goes wrong in a real recording changes nothing that is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.replay.real import RealSets

from foretrace.replay.accuracy import assess
from foretrace.replay.build import Recording, build_from_arrays

MS = 1_000_000


def with_clock(recording: Recording, rank: int, by_ns: int) -> Recording:
    events, collectives = recording.tables[rank]
    moved = replace(events, start=events.start + by_ns, end=events.end + by_ns)
    return replace(recording, tables={**recording.tables, rank: (moved, collectives)})


@pytest.mark.parametrize(("name", "rank"), [("a800", 5), ("tp8", 3), ("dlrm", 2)])
@pytest.mark.parametrize("by_ns", [5 * MS, -5 * MS])
def test_five_milliseconds_are_taken_out(
    real_sets: RealSets, name: str, rank: int, by_ns: int
) -> None:
    real = real_sets.get(name)
    before = real.assessment
    after = assess(build_from_arrays(with_clock(real.recording, rank, by_ns)))
    alignment, known = after.build.alignment, real.build.alignment
    moved = alignment.offset_ns[rank] - known.offset_ns[rank]
    assert abs(moved + by_ns) <= known.residual_ns
    assert abs(alignment.residual_ns - known.residual_ns) <= known.residual_ns
    assert not after.build.unmatched
    for old, new in zip(before.steps, after.steps, strict=True):
        assert abs(new.measured_ns - old.measured_ns) <= known.residual_ns
        assert abs(new.replayed_ns - old.replayed_ns) <= known.residual_ns
    for was, now in zip(before.ranks, after.ranks, strict=True):
        matches = len(real.recording.tables[was.rank][1].kind)
        assert abs(now.waiting_ns - was.waiting_ns) <= known.residual_ns * matches
