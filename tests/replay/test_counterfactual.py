"""Waits that were cut out of a recording are found again by the replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.replay.real import RealSets
from tests.replay.traces import COMM, US, RankTrace, write

from foretrace.replay.build import Recording, build_from_arrays, read
from foretrace.replay.counterfactual import recover_waits, waiting, without_waits
from foretrace.replay.graph import TaskKind
from foretrace.replay.timeline import measured


@pytest.mark.parametrize(("name", "rank"), [("a800", 3), ("tp8", 1), ("dlrm", 6)])
def test_one_rank_of_each_real_job(real_sets: RealSets, name: str, rank: int) -> None:
    real = real_sets.get(name)
    found = recover_waits(real.recording, real.build, rank)
    assert found.measured_ns > 2_000 * US
    assert abs(found.error) < 0.10


@pytest.mark.parametrize(("name", "rank"), [("a800", 3), ("tp8", 1)])
def test_the_cut_recording_holds_no_waits(real_sets: RealSets, name: str, rank: int) -> None:
    # Otherwise finding them again would be no wonder.
    real = real_sets.get(name)
    events, collectives = real.recording.tables[rank]
    cut = without_waits(events, real.build, rank)
    work = collectives.work[collectives.work >= 0]
    g = real.build.graph
    executed = g.dur_ns[(g.kind == TaskKind.COMM) & (g.rank == rank)].sum()
    assert (cut.end - cut.start)[work].sum() == executed
    host = events.is_host
    before = events.end[host].max() - events.start[host].min()
    after = cut.end[host].max() - cut.start[host].min()
    in_calls = waiting(measured(g), rank) - int((events.end - events.start)[work].sum() - executed)
    assert before - after >= 0.9 * in_calls
    assert (cut.end >= cut.start).all()


def two_ranks() -> list[RankTrace]:
    """Rank 0 waits 300 us in an all-reduce and 370 us in a synchronisation behind it."""
    result = []
    for rank, busy in ((0, 100), (1, 400)):
        r = RankTrace(rank=rank, groups=[(0, 1)])
        r.quick_syncs(0)
        r.mark(1, 0, 1_200)
        r.kernel("before", 300, 300, busy, stream=COMM)
        by = r.call("launch", 310, 5)
        work = r.work("ncclDevKernel_AllReduce", 300 + busy, 450 - busy, COMM, by)
        r.operation("all_reduce", work, group=0, seq=1)
        r.call("cudaDeviceSynchronize", 380, 370 + 3)
        r.kernel("after", 800, 800, 20)
        result.append(r)
    return result


def recording(tmp_path: Path) -> Recording:
    return read(write(tmp_path / "job.trace", *two_ranks()))


def test_by_hand(tmp_path: Path) -> None:
    job = recording(tmp_path)
    built = build_from_arrays(job)
    assert waiting(measured(built.graph), 0) == (300 + 370) * US
    assert waiting(measured(built.graph), 1) == 370 * US
    for rank in (0, 1):
        found = recover_waits(job, built, rank)
        assert found.recovered_ns == found.measured_ns


def test_cut_by_hand(tmp_path: Path) -> None:
    job = recording(tmp_path)
    cut = without_waits(job.tables[0][0], build_from_arrays(job), 0)
    names = job.names.names()
    rows = {names[n]: i for i, n in enumerate(cut.name)}
    zero = cut.start.min()

    def span(name: str) -> tuple[float, float]:
        row = rows[name]
        return (cut.start[row] - zero) / US, (cut.end[row] - zero) / US

    assert span("ncclDevKernel_AllReduce") == (700, 750)
    assert span("cudaDeviceSynchronize") == (380, 383)
    assert span("launch after") == (430, 435)  # 370 us earlier than recorded
    assert span("before") == (300, 400)


def test_other_ranks_stay_as_they_are(tmp_path: Path) -> None:
    job = recording(tmp_path)
    events = job.tables[1][0]
    moved = replace(events, start=events.start.copy(), end=events.end.copy())
    recover_waits(job, build_from_arrays(job), 0)
    assert (moved.start == job.tables[1][0].start).all()
    assert (moved.end == job.tables[1][0].end).all()
