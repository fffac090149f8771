"""Replays of real jobs against what was measured, and what a small error must not hide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.replay.real import NULL_ERROR, SOURCES, RealSets, misfits
from tests.replay.traces import check_no_waiting

from foretrace.replay.engine import replay
from foretrace.replay.graph import DEVICE_KINDS, TaskKind
from foretrace.replay.timeline import measured, step_windows
from foretrace.traces.schema import COLLECTIVE_KINDS

each_set = pytest.mark.parametrize("name", list(SOURCES))


@each_set
def test_the_replay_fits(real_sets: RealSets, name: str) -> None:
    a = real_sets.get(name).assessment
    assert len(a.ranks) == 8
    assert a.steps
    assert not misfits(name, a)


@each_set
def test_the_null_replay_is_the_recording(real_sets: RealSets, name: str) -> None:
    # Without rendezvous, with every wait frozen: whatever is off here is off in the graph.
    for s in real_sets.get(name).assessment.steps:
        assert abs(s.null_error) < NULL_ERROR


@each_set
def test_no_duration_holds_waiting(real_sets: RealSets, name: str) -> None:
    check_no_waiting(real_sets.get(name).build)


@each_set
def test_a_blocking_call_costs_microseconds(real_sets: RealSets, name: str) -> None:
    g = real_sets.get(name).build.graph
    sync = g.dur_ns[g.kind == TaskKind.SYNC]
    assert len(sync)
    assert 0 < sync.max() < 50_000


@each_set
def test_every_collective_is_matched(real_sets: RealSets, name: str) -> None:
    built = real_sets.get(name).build
    assert not built.unmatched
    g = built.graph
    assert (g.collective[g.kind == TaskKind.COMM] >= 0).all()


@each_set
def test_measured_times_change_no_replayed_time(real_sets: RealSets, name: str) -> None:
    g = real_sets.get(name).build.graph
    rng = np.random.default_rng(0)
    shuffled = replace(
        g,
        measured_start_ns=rng.permutation(g.measured_start_ns),
        measured_end_ns=rng.permutation(g.measured_end_ns),
    )
    assert (replay(shuffled).start_ns == replay(g).start_ns).all()


@each_set
def test_recorded_times_cover_all_tasks(real_sets: RealSets, name: str) -> None:
    # Durations are the recording's: start and end of a task differ by exactly its duration.
    g = real_sets.get(name).build.graph
    device = np.isin(g.kind, DEVICE_KINDS) | np.isin(g.kind, [TaskKind.HOST, TaskKind.CALL])
    took = g.measured_end_ns - g.measured_start_ns
    assert (took[device] == g.dur_ns[device]).all()


def test_groups_of_the_a800_job_are_its_layout(real_sets: RealSets) -> None:
    g = real_sets.get("a800").build.graph
    used = {g.groups[i] for i in g.collectives.group.tolist()}
    tensor = {(r, r + 1) for r in (0, 2, 4, 6)}
    data = {(r, r + 2) for r in (0, 1, 4, 5)}
    pipe = {(r, r + 4) for r in range(4)}
    assert used == tensor | data | pipe | {(0, 1, 4, 5), (2, 3, 6, 7)}
    fused = g.collectives.group[g.collectives.kind == COLLECTIVE_KINDS.index("send_recv")]
    assert {g.groups[i] for i in fused.tolist()} == pipe
    assert (g.kind == TaskKind.JOIN).sum() == len(g.collectives.kind)


def test_the_critical_path_says_how_much_was_copied(real_sets: RealSets) -> None:
    # Only the A800 job is decided by its devices; the other two show little about the rules.
    shares = {n: max(s.copied_host for s in real_sets.get(n).assessment.steps) for n in SOURCES}
    assert shares["a800"] < 0.15
    assert shares["tp8"] > 0.8
    assert shares["dlrm"] > 0.4


@each_set
def test_steps_are_those_of_the_recording(real_sets: RealSets, name: str) -> None:
    graph = real_sets.get(name).build.graph
    expected = {"a800": [9], "tp8": [3], "dlrm": [10]}[name]
    assert step_windows(measured(graph)).step.tolist() == expected
