"""Host order, launches and what was launched before the window; starts worked out by hand."""

from __future__ import annotations

from pathlib import Path

from tests.replay.traces import AUTOGRAD, COPY, MAIN, RankTrace, job

from foretrace.replay.graph import EdgeKind, TaskKind

CALL, HOST, KERNEL, MARK, SKEW = (
    TaskKind.CALL,
    TaskKind.HOST,
    TaskKind.KERNEL,
    TaskKind.MARK,
    TaskKind.SKEW,
)


def test_a_thread_does_one_thing_after_another(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 200)
    r.op("add", 10, 90)
    r.kernel("a", 20, 20, 4)
    r.kernel("b", 60, 60, 4)
    j = job(tmp_path, r)
    calls = [j.task(CALL, f"launch {k}") for k in "ab"]
    assert [j.start(c) for c in calls] == [20, 60]
    begin, end = j.tasks(MARK)
    assert (j.start(begin), j.start(end)) == (0, 200)
    # 0-20 before the first launch, 25-60 between the two, 65-200 after the second.
    assert [j.dur_us(t) for t in j.tasks(HOST)] == [20, 35, 135]
    j.longer(calls[0], 7).longer(j.tasks(HOST)[1], 100)
    assert [j.start(c) for c in calls] == [20, 60 + 7 + 100]
    assert j.start(end) == 200 + 107


def test_threads_do_not_wait_for_each_other(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 100)
    r.kernel("a", 10, 10, 4)
    r.kernel("b", 30, 30, 4, stream=COPY, thread=AUTOGRAD)
    r.kernel("c", 50, 50, 4, stream=COPY, thread=AUTOGRAD)
    j = job(tmp_path, r)
    j.longer(j.task(CALL, "launch a"), 500)
    assert j.start(j.task(CALL, "launch b")) == 30
    assert j.start(j.task(CALL, "launch c")) == 50
    j.longer(j.task(CALL, "launch b"), 8)
    assert j.start(j.task(CALL, "launch c")) == 58


def test_each_thread_enters_the_window_when_it_did(tmp_path: Path) -> None:
    first, second = RankTrace(rank=0), RankTrace(rank=1)
    for r, late in ((first, 0), (second, 130)):
        r.mark(1, 1_000 + late, 1_500 + late)
        r.kernel("a", 1_010 + late, 1_010 + late, 4)
    first.kernel("b", 1_040, 1_040, 4, stream=COPY, thread=AUTOGRAD)
    j = job(tmp_path, first, second)
    assert {j.graph.rank[t]: j.start(t) for t in j.tasks(CALL, "launch a")} == {0: 10, 1: 140}
    assert j.start(j.task(CALL, "launch b")) == 40
    assert sorted(j.dur_us(t) for t in j.tasks(SKEW)) == [0, 40, 130]


def test_a_kernel_counts_from_the_begin_of_its_launch(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 200)
    slow = r.call("slow launch", 20, 50)
    r.work("k", 25, 30, by=slow)
    j = job(tmp_path, r)
    kernel, call = j.task(KERNEL, "k"), j.task(CALL, "slow launch")
    assert j.before(kernel, EdgeKind.LAUNCH) == [call]
    assert j.start(kernel) == 25  # while the call still runs
    j.longer(call, 400)
    assert j.start(kernel) == 25
    j.longer(j.tasks(HOST)[0], 40)
    assert j.start(kernel) == 65


def test_one_graph_launch_starts_many_kernels(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 300)
    launch = r.call("cudaGraphLaunch", 20, 10)
    r.work("g1", 20, 40, by=launch)
    r.work("g2", 60, 40, by=launch)
    r.work("g3", 100, 40, by=launch)
    r.work("g4", 20, 70, stream=COPY, by=launch)
    j = job(tmp_path, r)
    call = j.task(CALL)
    kernels = [j.task(KERNEL, f"g{i}") for i in (1, 2, 3, 4)]
    assert all(j.before(k, EdgeKind.LAUNCH) == [call] for k in kernels)
    j.longer(j.tasks(HOST)[0], 15)
    assert [j.start(k) for k in kernels] == [35, 75, 115, 35]
    j.longer(kernels[1], 5)
    assert [j.start(k) for k in kernels] == [35, 75, 120, 35]


def test_work_launched_before_the_window(tmp_path: Path) -> None:
    # The queue is full of kernels whose launches were not recorded.
    r = RankTrace()
    r.mark(1, 0, 300)
    r.work("old 1", 40, 100)
    r.work("old 2", 140, 60)
    r.work("old 3", 90, 10, stream=COPY)
    r.kernel("new", 20, 200, 30)
    j = job(tmp_path, r)
    old = [j.task(KERNEL, f"old {i}") for i in (1, 2, 3)]
    assert [j.start(k) for k in old] == [40, 140, 90]
    assert j.start(j.task(KERNEL, "new")) == 200
    assert all(not j.before(k, EdgeKind.LAUNCH) for k in old)
    # They enter the window with their streams, whatever the host does ...
    j.longer(j.tasks(HOST)[0], 50)
    assert [j.start(k) for k in old] == [40, 140, 90]
    assert j.start(j.task(KERNEL, "new")) == 200
    # ... and keep their streams' order.
    j.longer(old[0], 25)
    assert [j.start(k) for k in old] == [40, 165, 90]
    assert j.start(j.task(KERNEL, "new")) == 225


def test_head_of_a_stream_enters_without_any_delay(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 9_000)
    r.work("old", 100, 50)
    for i in range(30):  # kernels follow each other on this stream after 10 us
        r.kernel(f"k{i}", 10 + i, 160 + 60 * i, 50)
    j = job(tmp_path, r)
    assert j.start(j.task(KERNEL, "k0")) == 160
    assert j.start(j.task(KERNEL, "old")) == 100


def test_a_launch_blocked_by_a_full_queue_holds_no_waiting(tmp_path: Path) -> None:
    # 1100 launches of 5 us each, kernels of 100 us: once 1024 are queued each launch returns
    # only when an old kernel has ended.
    r = RankTrace()
    depth, kernel_us = 1_024, 100
    end = [10 + kernel_us * (i + 1) for i in range(1_100)]
    at = 10.0
    for i in range(1_100):
        returns = max(at + 5, end[i - depth] if i >= depth else 0)
        call = r.call("cudaLaunchKernel", at, returns - at, MAIN)
        r.work("k", end[i] - kernel_us, kernel_us, by=call)
        at = returns
    r.mark(1, 0, at + 10)
    j = job(tmp_path, r)
    assert max(j.dur_us(c) for c in j.tasks(CALL)) == 5


def test_threads_of_a_long_recording_are_kept_apart(tmp_path: Path) -> None:
    # Times of several seconds, so that thread numbers times lengths leave 32 bits.
    r = RankTrace()
    r.mark(1, 0, 4_000_000)
    for thread in range(1, 9):
        r.kernel(f"early {thread}", 10 * thread, 10 * thread, 4, stream=thread, thread=thread)
        at = 3_999_000 + 10 * thread
        r.kernel(f"late {thread}", at, at, 4, stream=thread, thread=thread)
    j = job(tmp_path, r)
    for thread in range(1, 9):
        assert j.start(j.task(CALL, f"launch late {thread}")) == 3_999_000 + 10 * thread
    j.longer(j.task(CALL, "launch early 3"), 50)
    late = [j.start(j.task(CALL, f"launch late {t}")) - 3_999_000 for t in range(1, 9)]
    assert late == [10, 20, 80, 40, 50, 60, 70, 80]
