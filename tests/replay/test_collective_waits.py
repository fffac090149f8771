"""What a collective waits for on its own rank and who waits for it, without recorded events."""

from __future__ import annotations

from pathlib import Path

from tests.replay.traces import AUTOGRAD, COMM, COPY, MAIN, Job, RankTrace, Row, job

from foretrace.replay.graph import EdgeKind, TaskKind

KERNEL, ARRIVE, COMMUNICATE = TaskKind.KERNEL, TaskKind.ARRIVE, TaskKind.COMM
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def all_reduce(
    r: RankTrace, call: float, start: float, dur: float, thread: int = MAIN, wait: Row | None = None
) -> None:
    """An all-reduce: a call of 10 us that launches it at its end."""
    record = r.op("record_param_comms", call, 10, thread)
    by = r.call("launch nccl", call + 5, 5, thread)
    work = r.work(NCCL, start, dur, COMM, by)
    r.operation("all_reduce", work, record, wait)


def producers(j: Job) -> list[str]:
    return j.names_before(j.task(ARRIVE), EdgeKind.EVENT)


def consumers(j: Job, name: str) -> list[str]:
    return j.names_before(j.task(KERNEL, name), EdgeKind.EVENT)


def test_between_its_producer_and_its_consumer(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 100)
    r.kernel("old", 0, 0, 10)
    r.kernel("gradient", 8, 10, 190)
    all_reduce(r, 20, 200, 100, wait=r.op("record_param_comms", 60, 4))
    r.kernel("meanwhile", 40, 200, 30)
    r.kernel("optimizer", 70, 300, 50)
    r.kernel("next", 80, 350, 50)
    j = job(tmp_path, r)
    comm, optimizer = j.task(COMMUNICATE), j.task(KERNEL, "optimizer")
    assert producers(j) == ["gradient"]
    assert consumers(j, "optimizer") == [NCCL]
    assert not consumers(j, "meanwhile")
    assert not consumers(j, "next")
    assert (j.start(comm), j.start(optimizer)) == (200, 300)
    j.longer(j.task(KERNEL, "gradient"), 40)
    assert (j.start(comm), j.start(optimizer)) == (240, 340)
    j.longer(j.task(KERNEL, "meanwhile"), 100)  # ends at 370, behind the collective
    assert (j.start(comm), j.start(optimizer)) == (240, 370)


def test_nobody_waits_before_the_wait(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 100)
    r.kernel("gradient", 0, 0, 50)
    all_reduce(r, 20, 50, 500)
    r.kernel("next", 40, 50, 50)
    j = job(tmp_path, r)
    assert not consumers(j, "next")
    j.longer(j.task(COMMUNICATE), 1_000)
    assert j.start(j.task(KERNEL, "next")) == 50


def test_the_other_thread_filled_the_stream(tmp_path: Path) -> None:
    # Autograd launches the gradients, the main thread the collective over them.
    r = RankTrace()
    r.mark(1, 0, 400)
    r.kernel("forward", 0, 0, 10)
    r.kernel("gradient", 20, 20, 180, thread=AUTOGRAD)
    all_reduce(r, 40, 200, 100)
    j = job(tmp_path, r)
    assert producers(j) == ["gradient"]
    j.longer(j.task(KERNEL, "gradient"), 70)
    assert j.start(j.task(COMMUNICATE)) == 270


def test_the_other_thread_goes_on_after_the_wait(tmp_path: Path) -> None:
    # Autograd waits for the collective, the main thread launches what uses it.
    r = RankTrace()
    r.mark(1, 0, 900)
    r.kernel("forward", 0, 0, 10)
    r.kernel("gradient", 20, 20, 180, thread=AUTOGRAD)
    wait = r.op("record_param_comms", 60, 4, AUTOGRAD)
    all_reduce(r, 40, 200, 100, AUTOGRAD, wait)
    r.kernel("optimizer", 80, 300, 50)
    r.kernel("next gradient", 100, 350, 10, thread=AUTOGRAD)
    j = job(tmp_path, r)
    assert producers(j) == ["gradient"]
    assert consumers(j, "optimizer") == [NCCL]
    j.longer(j.task(COMMUNICATE), 500)
    assert j.start(j.task(KERNEL, "optimizer")) == 800


def test_the_current_stream_waits_and_not_the_next_launch(tmp_path: Path) -> None:
    # A copy on a stream of its own is launched between the wait and the consumer.
    r = RankTrace()
    r.mark(1, 0, 900)
    r.kernel("gradient", 0, 0, 50)
    all_reduce(r, 20, 50, 500, wait=r.op("record_param_comms", 60, 4))
    by = r.call("cudaMemcpyAsync", 70, 5)
    r.work("Memcpy HtoD (Pinned -> Device)", 560, 20, COPY, by, kind="memcpy")
    r.kernel("optimizer", 80, 550, 50)
    j = job(tmp_path, r)
    assert consumers(j, "optimizer") == [NCCL]
    assert not j.before(j.task(TaskKind.MEMCPY), EdgeKind.EVENT)


def test_a_copy_stream_is_not_the_current_stream(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 900)
    r.kernel("gradient", 0, 0, 50)
    by = r.call("cudaMemcpyAsync", 10, 5)
    r.work("Memcpy HtoD (Pinned -> Device)", 10, 20, COPY, by, kind="memcpy")
    all_reduce(r, 20, 50, 100)
    j = job(tmp_path, r)
    assert producers(j) == ["gradient"]


def test_a_work_stream_that_is_not_the_threads_own_is_no_producer(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 900)
    r.kernel("gradient", 0, 0, 50)
    r.kernel("elsewhere", 6, 6, 400, stream=COPY, thread=AUTOGRAD)
    all_reduce(r, 20, 50, 100)
    j = job(tmp_path, r)
    assert producers(j) == ["gradient"]


def test_against_the_recorded_order(tmp_path: Path) -> None:
    # The collective began while the gradient ran: it cannot have waited for it.
    r = RankTrace()
    r.mark(1, 0, 900)
    r.kernel("gradient", 0, 0, 500)
    all_reduce(r, 20, 60, 100)
    j = job(tmp_path, r)
    assert not producers(j)
    assert j.build.dropped == {"stream wait against the recorded order": 1}


def test_two_collectives_on_one_stream_follow_each_other(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 900)
    r.kernel("g1", 0, 0, 50)
    first = r.op("record_param_comms", 60, 4)
    second = r.op("record_param_comms", 66, 4)
    all_reduce(r, 20, 50, 100, wait=first)
    all_reduce(r, 40, 150, 100, wait=second)
    r.kernel("optimizer", 80, 250, 50)
    j = job(tmp_path, r)
    one, two = j.tasks(COMMUNICATE)
    assert consumers(j, "optimizer") == [NCCL, NCCL]
    j.longer(one, 30)
    assert (j.start(two), j.start(j.task(KERNEL, "optimizer"))) == (180, 280)


def test_buckets_that_nobody_records_a_wait_for(tmp_path: Path) -> None:
    # DistributedDataParallel: stream waits after the last bucket's launch, one per bucket.
    r = RankTrace()
    r.mark(1, 0, 900)
    r.kernel("g1", 0, 0, 50)
    all_reduce(r, 20, 50, 100)
    r.kernel("g2", 40, 50, 50)
    all_reduce(r, 50, 150, 100)
    r.call("cudaStreamWaitEvent", 70, 1)
    r.kernel("unflatten 1", 74, 150, 10)
    r.call("cudaStreamWaitEvent", 84, 1)
    r.kernel("unflatten 2", 90, 250, 10)
    j = job(tmp_path, r)
    first, second = j.tasks(COMMUNICATE)
    one, two = j.task(KERNEL, "unflatten 1"), j.task(KERNEL, "unflatten 2")
    assert j.before(one, EdgeKind.EVENT) == [first]
    assert j.before(two, EdgeKind.EVENT) == [second]
    j.longer(second, 300)
    assert (j.start(one), j.start(two)) == (150, 550)
