"""Waits of one stream for another that the trace spells out in synchronisation rows."""

from __future__ import annotations

from pathlib import Path

from tests.replay.traces import COMM, COMPUTE, COPY, Job, RankTrace, Row, job

from foretrace.replay.graph import EdgeKind, TaskKind

KERNEL = TaskKind.KERNEL


def wait(
    r: RankTrace, at: float, stream: int, on: int, record: Row | None, device: int = 0
) -> None:
    """``stream`` waits for the event that was recorded on the stream ``on``."""
    call = r.call("cudaStreamWaitEvent", at, 1)
    more = {} if record is None else {"wait_correlation": record.values["correlation"]}
    r.add("sync", "Stream Wait Event", at, 0, device=device, stream=stream, wait_stream=on,
          correlation=call.values["correlation"], **more)  # fmt: skip


def event_sources(j: Job, name: str) -> list[str]:
    return j.names_before(j.task(KERNEL, name), EdgeKind.EVENT)


def two_producers() -> RankTrace:
    r = RankTrace()
    r.mark(1, 0, 100)
    r.kernel("a", 0, 0, 100, stream=COPY)
    after_a = r.call("cudaEventRecord", 6, 1)
    r.kernel("late a", 8, 100, 500, stream=COPY)  # behind the event: nobody waits for it
    r.kernel("b", 14, 14, 136, stream=COMM)
    after_b = r.call("cudaEventRecord", 20, 1)
    r.kernel("before", 22, 22, 8)
    wait(r, 30, COMPUTE, COPY, after_a)
    wait(r, 32, COMPUTE, COMM, after_b)
    r.kernel("k", 34, 150, 40)
    r.kernel("k2", 40, 190, 10)
    return r


def test_two_waits_before_one_kernel_both_hold(tmp_path: Path) -> None:
    j = job(tmp_path, two_producers())
    k = j.task(KERNEL, "k")
    assert event_sources(j, "k") == ["a", "b"]
    assert not event_sources(j, "k2")
    assert not event_sources(j, "before")
    assert j.start(k) == 150
    j.longer(j.task(KERNEL, "b"), 30)
    assert j.start(k) == 180
    j.longer(j.task(KERNEL, "a"), 200)
    assert (j.start(k), j.start(j.task(KERNEL, "k2"))) == (300, 340)


def test_work_behind_the_event_is_not_waited_for(tmp_path: Path) -> None:
    j = job(tmp_path, two_producers())
    j.longer(j.task(KERNEL, "late a"), 10_000)
    assert j.start(j.task(KERNEL, "k")) == 150


def test_a_wait_against_the_recorded_order_is_dropped_and_counted(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 100)
    r.kernel("a", 0, 0, 400, stream=COPY)
    record = r.call("cudaEventRecord", 6, 1)
    wait(r, 8, COMPUTE, COPY, record)
    r.kernel("k", 10, 50, 40)  # ran while a ran: it cannot have waited
    j = job(tmp_path, r)
    assert not event_sources(j, "k")
    assert j.build.dropped == {"stream wait against the recorded order": 1}


def test_an_event_recorded_before_the_window_is_no_wait(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 100)
    r.kernel("a", 0, 0, 40, stream=COPY)
    call = r.call("cudaStreamWaitEvent", 6, 1)
    r.add("sync", "Stream Wait Event", 6, 0, device=0, stream=COMPUTE, wait_stream=COPY,
          correlation=call.values["correlation"], wait_correlation=77_777)  # fmt: skip
    r.kernel("k", 50, 50, 40)
    j = job(tmp_path, r)
    assert not event_sources(j, "k")


def test_an_event_without_its_record_call_stands_behind_its_stream(tmp_path: Path) -> None:
    # Some versions write the waited-for stream and not which record call made the event.
    r = RankTrace()
    r.mark(1, 0, 100)
    r.kernel("a", 0, 0, 100, stream=COPY)
    wait(r, 8, COMPUTE, COPY, None)
    r.kernel("k", 14, 100, 40)
    j = job(tmp_path, r)
    assert event_sources(j, "k") == ["a"]


def test_streams_of_one_number_on_two_devices_are_kept_apart(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 100)
    r.kernel("a on 0", 0, 0, 100, stream=COPY, device=0)
    r.kernel("a on 1", 6, 6, 50, stream=COPY, device=1)
    record = r.call("cudaEventRecord", 12, 1)  # on device 0
    wait(r, 14, COMPUTE, COPY, record, device=0)
    r.kernel("k on 1", 16, 16, 5, device=1)
    r.kernel("k on 0", 22, 100, 40, device=0)
    j = job(tmp_path, r)
    assert event_sources(j, "k on 0") == ["a on 0"]
    assert not event_sources(j, "k on 1")


def test_a_record_call_and_the_wait_call_behind_it(tmp_path: Path) -> None:
    """Without synchronisation rows: the stream of the last launch before the record call is
    recorded, the stream of the next launch behind the wait call waits."""
    r = RankTrace()
    r.mark(1, 0, 100)
    r.kernel("own", 0, 0, 10)
    r.kernel("a", 6, 6, 144, stream=COPY)
    r.call("cudaEventRecord", 12, 1)
    r.call("cudaStreamWaitEvent", 14, 1)
    r.kernel("k", 20, 150, 40)
    j = job(tmp_path, r)
    assert event_sources(j, "k") == ["a"]
