"""Ranks of one host: one clock, and work that goes on while a host thread communicates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.replay.traces import WORKER, RankTrace, job

from foretrace.replay.graph import TaskKind
from foretrace.traces.store import RankTables


class Sampled(RankTrace):
    """A rank whose clock the collector compared with the reference's: one and the same."""

    samples = ([5, 0, 0], [900, 0, 0])

    def tables(self, world_size: int) -> RankTables:
        tables = super().tables(world_size)
        info = msgspec.structs.replace(tables.info, host="a", clock_samples=list(self.samples))
        return replace(tables, info=info)


class OtherHost(Sampled):
    """One whose clock is known to within 20 us only."""

    samples = ([5, 7_000, 40_000], [900, 7_000, 40_000])


def ring(kind: type[RankTrace]) -> list[RankTrace]:
    """All-reduces that rank 1 always leaves 5 ms after rank 0, as the last one of a ring may."""
    ranks = []
    for rank in range(2):
        r = kind(rank=rank, groups=[(0, 1)])
        r.mark(1, 0, 100_000)
        for n in range(4):
            begin = 1_000 + 20_000 * n
            call = r.op("c10d::allreduce_", begin, 10)
            end = begin + 10_000 + 5_000 * rank
            work = r.add("annotation", "gloo:all_reduce", begin + 10, end - begin, thread=WORKER)
            wait = r.op("wait", begin + 20, end - begin - 10)
            r.operation("all_reduce", work, call, wait, group=0, seq=n)
        ranks.append(r)
    return ranks


@pytest.mark.parametrize(
    ("kind", "offset_us"), [(Sampled, 0), (OtherHost, -5_000), (RankTrace, -5_000)]
)
def test_ends_of_a_ring_move_no_clock_that_is_known(
    tmp_path: Path, kind: type[RankTrace], offset_us: int
) -> None:
    built = job(tmp_path, *ring(kind)).build
    assert built.alignment.offset_ns[1] == offset_us * 1_000


@pytest.mark.parametrize("recorded_wait", [True, False])
def test_work_beyond_an_operation_that_is_waited_for_later_is_work(
    tmp_path: Path, recorded_wait: bool
) -> None:
    """A kernel of 400 us holds the end of an all-reduce; the wait for that comes behind it."""
    r = RankTrace(groups=[(0,)])
    r.mark(1, 0, 2_000)
    call = r.op("c10d::allreduce_", 100, 10)
    work = r.add("annotation", "gloo:all_reduce", 110, 390, thread=WORKER)
    r.op("kernel", 150, 400)
    wait = r.op("wait", 600, 5) if recorded_wait else None
    r.operation("all_reduce", work, call, wait, group=0, seq=1)
    j = job(tmp_path, r)
    own = sum(j.dur_us(t) for t in j.tasks(TaskKind.HOST, "kernel"))
    # Without a record a wait inside the kernel's row is the likelier story.
    assert own == pytest.approx(400, abs=1) if recorded_wait else own < 100
