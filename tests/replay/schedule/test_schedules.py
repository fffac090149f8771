"""Schedules against their published bubbles, and against a plain simulation of their rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.replay.schedule.named import SCHEDULES, named_schedule
from foretrace.replay.schedule.order import Phase, Schedule, check
from foretrace.replay.schedule.timing import idle_ns, run
from foretrace.traces.errors import LayoutError

sizes = st.integers(1, 6)
times = st.integers(1, 30)


def durations(schedule: Schedule, forward: int, inputs: int, weights: int) -> np.ndarray:
    """One stage's forward and both halves of its backward; pairs last as long as both."""
    dur = np.array([forward, inputs + weights, inputs, weights])[schedule.phase]
    second = np.flatnonzero(schedule.beside)
    dur[second] = dur[second - 1] = forward + inputs + weights
    return dur


def total(schedule: Schedule, forward: int, inputs: int, weights: int) -> int:
    check(schedule)
    return run(schedule, durations(schedule, forward, inputs, weights)).total_ns


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@given(ranks=sizes, micro_batches=sizes, f=times, i=times, w=times)
def test_flushing_schedules(
    name: str, ranks: int, micro_batches: int, f: int, i: int, w: int
) -> None:
    schedule = named_schedule(name, ranks, micro_batches)
    assert total(schedule, f, i, w) == (micro_batches + ranks - 1) * (f + i + w)


@given(
    ranks=st.integers(2, 5), groups=st.integers(1, 4), chunks=st.integers(2, 4), f=times, b=times
)
def test_interleaving_divides_the_bubble(
    ranks: int, groups: int, chunks: int, f: int, b: int
) -> None:
    schedule = named_schedule("1f1b", ranks, groups * ranks, chunks)
    assert total(schedule, f, b, 0) == (groups * ranks * chunks + ranks - 1) * (f + b)


@given(ranks=sizes, more=st.integers(0, 9), f=times, i=times, part=st.floats(0, 1))
def test_zb_h1(ranks: int, more: int, f: int, i: int, part: float) -> None:
    m, w = ranks + more, int(part * min(f, i))  # else there is too little to fill with
    assert total(named_schedule("zb-h1", ranks, m), f, i, w) == m * (f + i + w) + (ranks - 1) * (
        f + i - w
    )


@given(ranks=sizes, more=st.integers(0, 9), unit=times)
def test_zbv_never_waits_if_all_phases_last_alike(ranks: int, more: int, unit: int) -> None:
    schedule = named_schedule("zbv", ranks, 2 * ranks + more)
    check(schedule)
    spans = run(schedule, np.full(len(schedule), unit))
    assert not idle_ns(schedule, spans).any()
    assert spans.total_ns == 6 * unit * schedule.micro_batches + (ranks - 1) * unit


@given(half=st.integers(1, 5), more=st.integers(0, 6), unit=times, part=st.floats(0, 1))
def test_dualpipe(half: int, more: int, unit: int, part: float) -> None:
    """The published bubble, for forwards as long as gradients of inputs."""
    m, w = 4 * half + 2 * more, int(part * unit)
    schedule = named_schedule("dualpipe", 2 * half, m)
    bubble = (half - 1) * ((2 * unit + w) + (unit + w) - 3 * w)
    assert total(schedule, unit, unit, w) == m * (2 * unit + w) + bubble


def slow_run(schedule: Schedule, dur: np.ndarray, transfer: int) -> np.ndarray:
    """Ends by looking again and again for something that can run."""
    n, row = len(schedule), range(len(schedule))
    key = [(int(schedule.micro_batch[k]), int(schedule.stage[k])) for k in row]
    phase = [Phase(p) for p in schedule.phase]
    backward = {key[k]: k for k in row if phase[k] in (Phase.BACKWARD, Phase.INPUT)}
    forward = {key[k]: k for k in row if phase[k] == Phase.FORWARD}
    place = np.cumsum(~schedule.beside)
    end: dict[int, int] = {}

    def needs(k: int) -> list[tuple[int, int]]:
        batch, stage = key[k]
        wanted = [
            (j, 0) for j in row if schedule.rank[j] == schedule.rank[k] and place[j] == place[k] - 1
        ]
        if phase[k] == Phase.FORWARD and stage:
            wanted.append((forward[batch, stage - 1], transfer))
        if phase[k] in (Phase.BACKWARD, Phase.INPUT):
            wanted.append((forward[key[k]], 0))
            if stage + 1 < schedule.stages:
                wanted.append((backward[batch, stage + 1], transfer))
        if phase[k] == Phase.WEIGHT:
            wanted.append((backward[key[k]], 0))
        return [(j, d if schedule.rank[j] != schedule.rank[k] else 0) for j, d in wanted]

    while len(end) < n:
        ready = [k for k in row if k not in end and all(j in end for j, _ in needs(k))]
        assert ready
        for k in ready:
            end[k] = max([end[j] + d for j, d in needs(k)], default=0) + int(dur[k])
    return np.array([end[k] for k in row])


@pytest.mark.parametrize("name", SCHEDULES)
def test_against_a_plain_simulation(name: str) -> None:
    schedule = named_schedule(name, 4, 8, 2 if name == "interleaved" else 1)
    dur = np.random.default_rng(0).integers(1, 50, len(schedule))
    spans = run(schedule, dur, transfer_ns=5)
    assert np.array_equal(spans.end_ns, slow_run(schedule, dur, 5))
    busy = idle_ns(schedule, spans)
    for rank in range(4):
        mine = schedule.rank == rank
        inside = np.zeros(int(spans.end_ns.max()), np.bool_)
        for a, b in zip(spans.start_ns[mine], spans.end_ns[mine], strict=True):
            inside[a:b] = True
        used = np.flatnonzero(inside)
        assert busy[rank] == used[-1] + 1 - used[0] - len(used)


def test_what_does_not_fit_is_said() -> None:
    for name, ranks, batches, chunks, text in (
        ("interleaved", 4, 6, 2, "multiple of 4"),
        ("zbv", 4, 7, 1, "8 micro-batches or more"),
        ("dualpipe", 3, 8, 1, "even number"),
        ("zb-h1", 4, 8, 2, "fixes the stages"),
        ("1f1b", 0, 8, 1, "at least one"),
        ("1f2b", 4, 8, 1, "known: gpipe"),
    ):
        with pytest.raises(LayoutError, match=text):
            named_schedule(name, ranks, batches, chunks)
