"""Clock offsets: a rank whose clock is wrong by a known amount finds that amount."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collector.stores import MemoryStore

from foretrace.collector.channel import Channel
from foretrace.collector.clock import ROUNDS, Server, measure, offset_at
from foretrace.collector.spool import Sample

WRONG_NS = 5_000_000_000


@contextmanager
def served(channel: Channel, host: str) -> Iterator[None]:
    stop = threading.Event()
    server = Server(channel, host)
    thread = threading.Thread(target=server.run, args=(stop.is_set,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def wrong_clock() -> int:
    return time.time_ns() + WRONG_NS


def test_offset_is_found_within_half_the_round_trip() -> None:
    channel = Channel(MemoryStore())
    with served(channel, "reference"):
        samples = measure(channel, "elsewhere", "start", 10, wrong_clock)
    assert len(samples) == ROUNDS
    assert [s.rtt_ns for s in samples] == sorted(s.rtt_ns for s in samples)
    for sample in samples:
        assert abs(sample.offset_ns + WRONG_NS) <= sample.rtt_ns // 2 + 1


def test_one_rank_of_a_host_asks_for_all() -> None:
    store = MemoryStore()
    channel = Channel(store)
    with served(channel, "reference"):
        first = measure(channel, "elsewhere", "start", 10, wrong_clock)
        asked = store.values["clock/next"]
        second = measure(channel, "elsewhere", "start", 10, wrong_clock)
        assert store.values["clock/next"] == asked
        again = measure(channel, "elsewhere", "end", 10, wrong_clock)
    assert first == second
    assert len(again) == ROUNDS
    assert again != first


def test_the_reference_host_needs_no_round_trip() -> None:
    channel = Channel(MemoryStore())
    with served(channel, "here"):
        (sample,) = measure(channel, "here", "start", 10)
    assert (sample.offset_ns, sample.rtt_ns) == (0, 0)


def test_no_answer_gives_no_samples() -> None:
    assert measure(Channel(MemoryStore()), "elsewhere", "start", 0.05) == []


def test_a_rank_that_died_before_asking_blocks_nobody() -> None:
    channel = Channel(MemoryStore())
    channel.increase("clock/next")  # took number 1 and never asked
    with served(channel, "reference"):
        assert len(measure(channel, "elsewhere", "start", 10, wrong_clock)) == ROUNDS


def test_nothing_stays_in_the_store_but_results() -> None:
    store = MemoryStore()
    with served(Channel(store), "reference"):
        measure(Channel(store), "elsewhere", "start", 10)
    assert set(store.values) == {
        "clock/host",
        "clock/next",
        "clock/samples/elsewhere/start",
        "clock/samples/elsewhere/start/asked",
    }


def test_offsets_between_two_samples_drift_evenly() -> None:
    samples = [Sample(0, 100, 8), Sample(10, 999, 50), Sample(1000, 300, 4), Sample(1100, 0, 90)]
    assert offset_at(samples, 500) == 200
    assert offset_at(samples[:2], 500) == 100
    assert offset_at(samples[2:], 500) == 300
    assert offset_at([], 500) == 0


@given(
    start=st.integers(-(10**9), 10**9),
    drift=st.integers(-(10**6), 10**6),
    at=st.integers(1, 10**10 - 1),
)
def test_a_linear_drift_is_undone(start: int, drift: int, at: int) -> None:
    end_ns = 10**10
    samples = [Sample(0, start, 1), Sample(end_ns, start + drift, 1)]
    assert offset_at(samples, at) == pytest.approx(start + drift * at / end_ns, abs=1)


@pytest.mark.torch
def test_over_a_real_store() -> None:
    dist = pytest.importorskip("torch.distributed")
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def connect() -> object:
        client = dist.TCPStore("127.0.0.1", server.port, wait_for_workers=False)
        return dist.PrefixStore("foretrace/0", client)

    channel = Channel(connect(), connect)
    with served(channel.another(), "reference"):
        samples = measure(channel, "elsewhere", "start", 10, wrong_clock)
    assert len(samples) == ROUNDS
    assert abs(samples[0].offset_ns + WRONG_NS) <= samples[0].rtt_ns // 2 + 1
