"""Host calls whose names alone do not say that they wait: memory, full queues, polling, stalls."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.replay.traces import COPY, MAIN, WORKER, Job, RankTrace, job

from foretrace.replay.accuracy import assess, sync_waiting
from foretrace.replay.graph import EdgeKind, TaskKind
from foretrace.replay.timeline import measured

CALL, KERNEL, STALL, SYNC = (
    TaskKind.CALL,
    TaskKind.KERNEL,
    TaskKind.STALL,
    TaskKind.SYNC,
)
QUERY = "cudaEventQuery"


@pytest.mark.parametrize("name", ["cudaFree", "cudaMalloc", "hipFree"])
def test_a_memory_call_waits_until_the_device_has_drained(tmp_path: Path, name: str) -> None:
    r = RankTrace()
    r.mark(1, 0, 1_000)
    r.kernel("k", 10, 10, 400)
    r.call(name, 100, 350)  # the kernel ends at 410; then the call takes 40 by itself
    r.kernel("after", 500, 500, 10)
    j = job(tmp_path, r)
    free, after = j.task(CALL, name), j.task(CALL, "launch after")
    assert j.names_before(free, EdgeKind.SYNC) == ["k"]
    assert (j.dur_us(free), j.start(free), j.start(after)) == (40, 410, 500)
    j.longer(j.task(KERNEL, "k"), 70)
    assert (j.start(free), j.start(after)) == (480, 570)
    j.longer(j.task(KERNEL, "k"), -400)
    assert (j.start(free), j.start(after)) == (100, 190)


def test_a_memory_call_that_returned_while_work_ran_waited_for_nothing(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 1_000)
    r.kernel("k", 10, 10, 400)
    r.call("cudaMalloc", 100, 50)
    r.kernel("after", 200, 410, 10)
    j = job(tmp_path, r)
    assert not j.tasks(CALL, "cudaMalloc")
    assert j.build.dropped == {"allocating call that returned while older work ran": 1}
    j.longer(j.task(KERNEL, "k"), 500)
    assert j.start(j.task(CALL, "launch after")) == 200


def full_queue(kernel_us: int = 100, count: int = 1_100, depth: int = 1_024) -> RankTrace:
    """Launches of 5 us; once ``depth`` are queued, each returns when an old kernel has ended."""
    r = RankTrace()
    end = [10 + kernel_us * (i + 1) for i in range(count)]
    at = 10.0
    for i in range(count):
        returns = max(at + 5, end[i - depth] if i >= depth else 0)
        call = r.call("cudaLaunchKernel", at, returns - at, MAIN)
        r.work(f"k{i}", end[i] - kernel_us, kernel_us, by=call)
        at = returns
    r.mark(1, 0, at + 10)
    return r


def test_a_launch_waits_for_room_in_a_full_queue(tmp_path: Path) -> None:
    j = job(tmp_path, full_queue())
    calls = j.tasks(CALL)
    assert not any(j.before(c, EdgeKind.QUEUE) for c in calls[:1_024])
    assert all(j.names_before(c, EdgeKind.QUEUE) for c in calls[1_080:])
    # Launch 1,090 returned when kernel 66 had ended, at 10 + 67 * 100.
    assert j.names_before(calls[1_090], EdgeKind.QUEUE) == ["k66"]
    assert j.start(calls[1_090]) == 6_710
    j.longer(j.task(KERNEL, "k30"), 1_000)
    assert j.start(calls[1_090]) == 7_710
    assert sum(sync_waiting(measured(j.graph))[1]) > 2_000_000
    assert abs(assess(j.build).steps[0].null_error) < 1e-3


def test_a_short_queue_blocks_nobody(tmp_path: Path) -> None:
    j = job(tmp_path, full_queue(count=400, depth=300))
    assert not any(j.before(c, EdgeKind.QUEUE) for c in j.tasks(CALL))


def spin(r: RankTrace, start: float, count: int, thread: int = MAIN) -> None:
    for i in range(count):
        r.call(QUERY, start + 10 * i, 4, thread)


def test_a_long_run_of_queries_outside_operators_is_a_wait(tmp_path: Path) -> None:
    r = RankTrace()
    r.quick_syncs(10)  # a blocking call costs 3 us
    r.mark(1, 0, 2_000)
    r.kernel("k", 300, 300, 400)
    spin(r, 310, 40)  # the last query begins at 700 and ends at 704
    r.kernel("after", 720, 720, 10)
    j = job(tmp_path, r)
    wait, after = j.task(SYNC, QUERY), j.task(CALL, "launch after")
    assert j.names_before(wait, EdgeKind.SYNC) == ["k"]
    assert j.start(after) == 720
    assert j.build.dropped == {"queries that spin: one wait each run": 39}
    j.longer(j.task(KERNEL, "k"), 250)
    assert j.start(after) == 970
    j.longer(j.task(KERNEL, "k"), -600)
    assert j.start(after) < 400


def test_a_thread_without_kernels_waits_for_those_of_others(tmp_path: Path) -> None:
    r = RankTrace()
    r.quick_syncs(10)
    r.mark(1, 0, 2_000)
    r.kernel("k", 300, 300, 400)
    copy = r.call("cudaMemcpyAsync", 301, 5, WORKER)
    r.work("Memcpy HtoD (Pinned -> Device)", 310, 20, COPY, copy, kind="memcpy")
    spin(r, 310, 40, thread=WORKER)
    r.op("next", 720, 10, thread=WORKER)
    j = job(tmp_path, r)
    assert j.names_before(j.task(SYNC, QUERY), EdgeKind.SYNC) == ["k"]


def test_queries_of_the_caching_allocator_are_host_work(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 2_000)
    r.kernel("k", 300, 300, 100)
    r.op("aten::empty", 309, 405)
    spin(r, 310, 40)
    r.kernel("after", 720, 720, 10)
    j = job(tmp_path, r)
    assert not j.tasks(SYNC)
    after = j.task(CALL, "launch after")
    j.longer(j.task(KERNEL, "k"), 5_000)
    assert j.start(after) == 720
    assert not j.build.dropped


def test_a_watchdog_is_background(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 2_000)
    r.kernel("k", 300, 300, 100)
    spin(r, 310, 40, thread=WORKER)
    r.kernel("after", 720, 720, 10)
    j = job(tmp_path, r)
    assert j.build.dropped == {"rows of watchdog threads: background": 40}
    assert WORKER not in j.graph.lanes.number.tolist()
    assert j.start(j.task(CALL, "launch after")) == 720


def test_a_thread_that_launches_nothing_waits_for_nothing(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 2_000)
    r.kernel("k", 300, 300, 100)
    spin(r, 310, 40, thread=WORKER)
    for i in range(40):
        r.op("load a batch", 800 + 10 * i, 9, thread=WORKER)
    j = job(tmp_path, r)
    assert not j.tasks(SYNC)
    assert WORKER in j.graph.lanes.number.tolist()


def late_return(tmp_path: Path) -> Job:
    """Ten device synchronisations that return 5 us after the kernel, the eighth one 705 us."""
    r = RankTrace()
    r.quick_syncs(0, count=10)
    at = 1_000.0
    for i in range(10):
        r.kernel(f"k{i}", at, at, 100)
        late = 700 if i == 7 else 0
        r.call("cudaDeviceSynchronize", at + 20, 85 + late)
        at += 1_000
    r.mark(1, 0, at)
    return job(tmp_path, r)


def test_a_thread_that_stays_in_a_synchronisation_stood_still(tmp_path: Path) -> None:
    j = late_return(tmp_path)
    assert [j.dur_us(s) for s in j.tasks(STALL)] == [700]
    assert len({j.dur_us(s) for s in j.tasks(SYNC)}) == 1
    (step,) = assess(j.build).steps
    assert (step.replayed_ns, step.unexplained_ns) == (step.measured_ns, 0)
    # The stall lies behind the wait: a longer kernel moves it, and it does not shrink.
    begin = j.start(j.task(CALL, "launch k8"))
    j.longer(j.task(KERNEL, "k7"), 150)
    assert j.start(j.task(CALL, "launch k8")) == begin + 150
