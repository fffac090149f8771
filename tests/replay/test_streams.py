"""Order on one stream, kernels that overlap on it, and devices of one rank."""

from __future__ import annotations

from pathlib import Path

from tests.replay.traces import COPY, RankTrace, job

from foretrace.replay.graph import EdgeKind, TaskKind

KERNEL, MEMCPY, MEMSET = TaskKind.KERNEL, TaskKind.MEMCPY, TaskKind.MEMSET


def test_a_stream_does_one_thing_after_another(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 50)
    r.kernel("k1", 10, 10, 100)
    fill = r.call("cudaMemsetAsync", 16, 4)
    r.work("Memset (Device)", 110, 10, by=fill, kind="memset")
    r.kernel("k2", 22, 120, 30)
    r.kernel("other", 30, 30, 20, stream=COPY)
    j = job(tmp_path, r)
    k1, fill_task, k2 = j.task(KERNEL, "k1"), j.task(MEMSET), j.task(KERNEL, "k2")
    assert [j.start(t) for t in (k1, fill_task, k2)] == [10, 110, 120]
    assert j.before(k2, EdgeKind.STREAM) == [fill_task]
    j.longer(k1, 33)
    assert [j.start(t) for t in (k1, fill_task, k2)] == [10, 143, 153]
    assert j.start(j.task(KERNEL, "other")) == 30


def test_rows_that_overlap_by_the_clock_alone_stay_in_order(tmp_path: Path) -> None:
    # Whole microseconds: the second row seems to begin 1 us before the first has ended.
    r = RankTrace()
    r.mark(1, 0, 50)
    r.kernel("k1", 10, 10, 101)
    r.kernel("k2", 16, 110, 50)
    j = job(tmp_path, r)
    assert j.before(j.task(KERNEL, "k2"), EdgeKind.STREAM) == [j.task(KERNEL, "k1")]
    assert not j.build.dropped
    j.longer(j.task(KERNEL, "k1"), 40)
    assert j.start(j.task(KERNEL, "k2")) == 151


def overlapping() -> RankTrace:
    """k3 begins while k2 runs (programmatic dependent launch); k4 follows when both are done."""
    r = RankTrace()
    r.mark(1, 0, 50)
    r.kernel("k1", 0, 0, 100)
    r.kernel("k2", 6, 100, 200)
    r.kernel("k3", 12, 150, 30)
    r.kernel("k4", 18, 300, 50)
    return r


def test_overlap_on_one_stream_is_kept_and_counted(tmp_path: Path) -> None:
    j = job(tmp_path, overlapping())
    assert [(why, n) for why, n in j.build.dropped.items() if "overlap" in why and n == 1]
    k2, k3 = j.task(KERNEL, "k2"), j.task(KERNEL, "k3")
    assert k2 not in j.before(k3, EdgeKind.STREAM)
    assert j.start(k3) < j.end(k2)
    j.longer(k2, 1_000)
    assert j.start(k3) <= 150  # it does not wait for k2's end


def test_an_overlapping_kernel_still_follows_what_came_before_its_neighbour(tmp_path: Path) -> None:
    j = job(tmp_path, overlapping())
    j.longer(j.task(KERNEL, "k1"), 500)
    assert j.start(j.task(KERNEL, "k2")) == 600
    assert j.start(j.task(KERNEL, "k3")) >= 600  # never before k2 has begun


def test_the_kernel_after_an_overlap_waits_for_both(tmp_path: Path) -> None:
    j = job(tmp_path, overlapping())
    j.longer(j.task(KERNEL, "k2"), 70)
    assert j.start(j.task(KERNEL, "k4")) == 370


def test_streams_of_one_number_on_two_devices_are_two_streams(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 50)
    r.kernel("on 0", 10, 10, 100, device=0)
    r.kernel("on 1", 16, 16, 100, device=1)
    r.kernel("then 0", 22, 110, 10, device=0)
    j = job(tmp_path, r)
    j.longer(j.task(KERNEL, "on 1"), 1_000)
    assert j.start(j.task(KERNEL, "then 0")) == 110
    j.longer(j.task(KERNEL, "on 0"), 5)
    assert j.start(j.task(KERNEL, "then 0")) == 115
