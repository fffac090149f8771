"""The host waits for the device: which work, how long, and that no wait stays in a duration."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.replay.traces import AUTOGRAD, COMM, COPY, Job, RankTrace, Row, job

from foretrace.replay.graph import EdgeKind, TaskKind

CALL, KERNEL, MARK, MEMCPY, SYNC = (
    TaskKind.CALL,
    TaskKind.KERNEL,
    TaskKind.MARK,
    TaskKind.MEMCPY,
    TaskKind.SYNC,
)
COST = 3
WORK = 300
"""When the interesting part begins; before it lie quick synchronisations that cost 3 us each."""


def recording() -> RankTrace:
    r = RankTrace()
    r.quick_syncs(start=10)
    return r


def waits_for(j: Job, name: str) -> list[str]:
    return j.names_before(j.task(SYNC, name), EdgeKind.SYNC)


def test_a_device_synchronisation_waits_for_all_streams(tmp_path: Path) -> None:
    r = recording()
    r.mark(1, 0, 800)
    r.kernel("a", WORK, WORK, 100)
    r.kernel("b", WORK + 10, WORK + 10, 180, stream=COPY)
    r.call("cudaDeviceSynchronize", WORK + 20, 190 - 20 + COST)  # returns 3 after b has ended
    r.kernel("after", WORK + 200, WORK + 200, 10)
    j = job(tmp_path, r)
    a, b = j.task(KERNEL, "a"), j.task(KERNEL, "b")
    sync, after = j.task(SYNC, "cudaDeviceSynchronize"), j.task(CALL, "launch after")
    assert waits_for(j, "cudaDeviceSynchronize") == ["a", "b"]
    assert j.dur_us(sync) == COST  # 173 us were recorded
    assert (j.end(sync), j.start(after)) == (WORK + 193, WORK + 200)
    j.longer(b, 50)
    assert (j.end(sync), j.start(after)) == (WORK + 243, WORK + 250)
    j.longer(a, 1_000)
    assert j.end(sync) == WORK + 100 + 1_000 + COST


def test_without_work_to_wait_for_only_the_own_cost_remains(tmp_path: Path) -> None:
    r = recording()
    r.mark(1, 0, 800)
    r.kernel("a", WORK, WORK, 100)
    r.call("cudaDeviceSynchronize", WORK + 20, 80 + COST)
    r.kernel("after", WORK + 110, WORK + 110, 10)
    j = job(tmp_path, r)
    j.longer(j.task(KERNEL, "a"), -95)
    assert j.end(j.task(SYNC, "cudaDeviceSynchronize")) == WORK + 20 + COST
    assert j.start(j.task(CALL, "launch after")) == WORK + 30


def test_work_launched_later_is_not_waited_for(tmp_path: Path) -> None:
    # The autograd thread launches while the main thread is blocked.
    r = recording()
    r.mark(1, 0, 800)
    r.kernel("a", WORK, WORK, 100)
    r.call("cudaDeviceSynchronize", WORK + 20, 80 + COST)
    r.kernel("later", WORK + 40, WORK + 40, 20, stream=COPY, thread=AUTOGRAD)
    j = job(tmp_path, r)
    assert waits_for(j, "cudaDeviceSynchronize") == ["a"]


def copy(r: RankTrace, direction: str, call: float, took: float, start: float) -> Row:
    """An asynchronous copy of 20 us."""
    by = r.call("cudaMemcpyAsync", call, took)
    return r.work(f"Memcpy {direction}", start, 20, COPY, by, kind="memcpy")


def test_a_stream_synchronisation_waits_for_its_recorded_stream(tmp_path: Path) -> None:
    r = recording()
    r.mark(1, 0, 800)
    r.kernel("a", WORK, WORK, 100)
    r.kernel("b", WORK + 10, WORK + 10, 180, stream=COPY)
    sync = r.call("cudaStreamSynchronize", WORK + 20, 170 + COST)
    r.add("sync", "Stream Sync", WORK + 20, 170, device=0, stream=COPY,
          correlation=sync.values["correlation"])  # fmt: skip
    j = job(tmp_path, r)
    last = j.tasks(SYNC)[-1]
    assert j.names_before(last, EdgeKind.SYNC) == ["b"]
    assert j.dur_us(last) == COST
    j.longer(j.task(KERNEL, "a"), 1_000)
    assert j.end(last) == WORK + 193


def test_a_stream_synchronisation_right_after_a_copy_waits_for_the_copy(tmp_path: Path) -> None:
    r = recording()
    r.mark(1, 0, 800)
    r.kernel("a", WORK, WORK, 100)
    copy(r, "DtoH (Device -> Pinned)", WORK + 10, 5, WORK + 10)
    r.call("cudaStreamSynchronize", WORK + 20, 10 + COST)
    j = job(tmp_path, r)
    last = j.tasks(SYNC)[-1]
    assert j.before(last, EdgeKind.SYNC) == [j.task(MEMCPY)]
    j.longer(j.task(MEMCPY), 200)
    assert j.end(last) == WORK + 233


def test_a_stream_synchronisation_waits_for_the_current_stream(tmp_path: Path) -> None:
    r = recording()
    r.mark(1, 0, 800)
    r.kernel("other", WORK, WORK, 500, stream=COMM)
    r.kernel("a", WORK + 10, WORK + 10, 100)
    r.call("cudaStreamSynchronize", WORK + 20, 90 + COST)
    j = job(tmp_path, r)
    assert j.names_before(j.tasks(SYNC)[-1], EdgeKind.SYNC) == ["a"]


def test_a_pageable_copy_blocks_inside_its_call(tmp_path: Path) -> None:
    # The copy waits on its stream for kernel a; its call returns 3 us after the copy.
    r = recording()
    r.mark(1, 0, 800)
    r.kernel("a", WORK, WORK, 100, stream=COPY)
    copy(r, "DtoH (Device -> Pageable)", WORK + 10, 110 + COST, WORK + 100)
    r.kernel("after", WORK + 140, WORK + 140, 10)
    j = job(tmp_path, r)
    call, sync = j.task(CALL, "cudaMemcpyAsync"), j.task(SYNC, "cudaMemcpyAsync")
    done, after = j.task(MEMCPY), j.task(CALL, "launch after")
    assert j.before(done, EdgeKind.LAUNCH) == [call]
    assert j.before(sync, EdgeKind.SYNC) == [done]
    assert (j.dur_us(call), j.dur_us(sync)) == (0, COST)  # 113 us were recorded
    assert (j.start(done), j.end(sync), j.start(after)) == (WORK + 100, WORK + 123, WORK + 140)
    j.longer(j.task(KERNEL, "a"), 60)
    assert (j.start(done), j.end(sync), j.start(after)) == (WORK + 160, WORK + 183, WORK + 200)
    j.longer(j.task(KERNEL, "a"), -60 - 99)  # nothing before the copy: it starts on its call
    assert j.start(done) == WORK + 10
    assert j.end(sync) == WORK + 33


def test_copies_that_follow_each_other_at_once(tmp_path: Path) -> None:
    # Each copy's call begins in the very microsecond in which the one before it returns.
    r = recording()
    r.mark(1, 0, 800)
    r.kernel("a", WORK, WORK, 100, stream=COPY)
    first = r.call("cudaMemcpyAsync", WORK + 10, 110 + COST)
    r.work("Memcpy DtoH (Device -> Pageable)", WORK + 100, 20, COPY, first, kind="memcpy")
    second = r.call("cudaMemcpyAsync", WORK + 123, 20 + COST)
    r.work("Memcpy DtoH (Device -> Pageable)", WORK + 123, 20, COPY, second, kind="memcpy")
    j = job(tmp_path, r)
    ends = [j.end(t) for t in j.tasks(SYNC, "cudaMemcpyAsync")]
    assert ends == [WORK + 123, WORK + 146]
    j.longer(j.task(KERNEL, "a"), -90)
    ends = [j.end(t) for t in j.tasks(SYNC, "cudaMemcpyAsync")]
    assert ends == [WORK + 33, WORK + 56]


def test_a_short_pageable_copy_blocks_too(tmp_path: Path) -> None:
    # 23 us: nothing but the kind of the copy tells that the call waits for it.
    r = recording()
    r.mark(1, 0, 800)
    copy(r, "DtoH (Device -> Pageable)", WORK, 20 + COST, WORK)
    copy(r, "HtoD (Pinned -> Device)", WORK + 100, 20 + COST, WORK + 100)
    j = job(tmp_path, r)
    sync = j.task(SYNC, "cudaMemcpyAsync")
    assert [j.graph.names[j.graph.name[t]] for t in j.before(sync, EdgeKind.SYNC)] == [
        "Memcpy DtoH (Device -> Pageable)"
    ]
    assert j.dur_us(sync) == COST


@pytest.mark.parametrize("name", ["cudaMemcpy", "hipMemcpyWithStream"])
def test_synchronous_copies_block(tmp_path: Path, name: str) -> None:
    r = recording()
    r.mark(1, 0, 800)
    by = r.call(name, WORK, 50)
    r.work("Memcpy HtoD (Pageable -> Device)", WORK + 10, 37, by=by, kind="memcpy")
    j = job(tmp_path, r)
    assert (j.dur_us(j.task(CALL, name)), j.dur_us(j.task(SYNC, name))) == (0, COST)


def test_an_asynchronous_copy_does_not_block(tmp_path: Path) -> None:
    r = recording()
    r.mark(1, 0, 800)
    copy(r, "HtoD (Pinned -> Device)", WORK + 10, 5, WORK + 100)
    j = job(tmp_path, r)
    assert not j.tasks(SYNC, "cudaMemcpyAsync")


def test_every_wait_leaves_the_same_small_constant(tmp_path: Path) -> None:
    r = recording()
    at = WORK
    for i in range(6):
        wait = 10 ** (i % 3) * 40
        r.kernel(f"k{i}", at, at, wait)
        r.call("cudaDeviceSynchronize", at + 8, wait - 8 + COST)
        at += wait + 30
    r.mark(1, 0, at)
    j = job(tmp_path, r)
    assert {j.dur_us(s) for s in j.tasks(SYNC)} == {COST}


def test_a_wait_is_no_cost_even_where_every_call_waited(tmp_path: Path) -> None:
    # One loss.item() per step, and each of them waits 400 us for its kernel.
    r = RankTrace()
    for step in range(4):
        at = 1_000 * step
        r.mark(step, at, at + 900)
        r.kernel(f"k{step}", at + 10, at + 10, 500)
        r.call("cudaDeviceSynchronize", at + 110, 400 + COST)
    j = job(tmp_path, r)
    j.longer(j.task(KERNEL, "k1"), -450)
    assert all(j.dur_us(s) < 50 for s in j.tasks(SYNC))
    assert j.start(j.tasks(MARK)[3]) < 1_900 - 350  # end of step 1


def test_synchronisations_keep_devices_apart(tmp_path: Path) -> None:
    """The recorded stream is stream 7 of device 0, not stream 7 of device 1."""
    r = recording()
    r.mark(1, 0, 800)
    r.kernel("a", WORK, WORK, 100, device=0)
    r.kernel("b", WORK + 10, WORK + 10, 400, device=1)
    sync = r.call("cudaStreamSynchronize", WORK + 20, 80 + COST)
    r.add("sync", "Stream Sync", WORK + 20, 80, device=0, stream=7,
          correlation=sync.values["correlation"])  # fmt: skip
    j = job(tmp_path, r)
    assert j.names_before(j.tasks(SYNC)[-1], EdgeKind.SYNC) == ["a"]


def event_synchronisation(stream: int | None) -> RankTrace:
    """Record behind a, launch b, then cudaEventSynchronize: it returns when a is done, not b.

    The trace's own synchronisation row gives ``stream``; None for no such row.
    """
    r = recording()
    r.mark(1, 0, 1_800)
    r.kernel("a", WORK, WORK, 100)
    record = r.call("cudaEventRecord", WORK + 10, 3)
    r.kernel("b", WORK + 20, WORK + 100, 900)
    sync = r.call("cudaEventSynchronize", WORK + 30, 70 + COST)
    if stream is not None:
        r.add("sync", "Event Sync", WORK + 30, 70, device=0, stream=stream,
              correlation=sync.values["correlation"], wait_stream=7,
              wait_correlation=record.values["correlation"])  # fmt: skip
    return r


@pytest.mark.parametrize("stream", [-1, 2**32 - 1])
def test_an_event_synchronisation_waits_for_what_stood_before_the_event(
    tmp_path: Path, stream: int
) -> None:
    j = job(tmp_path, event_synchronisation(stream))
    assert waits_for(j, "cudaEventSynchronize") == ["a"]
    j.longer(j.task(KERNEL, "b"), 500)
    assert j.end(j.task(SYNC, "cudaEventSynchronize")) == WORK + 103


def test_a_call_did_not_wait_for_work_that_ended_long_after_it(tmp_path: Path) -> None:
    j = job(tmp_path, event_synchronisation(None))
    assert "b" not in waits_for(j, "cudaEventSynchronize")
