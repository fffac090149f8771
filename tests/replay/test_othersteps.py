"""A step predicted from the durations of the other steps, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.replay.real import SOURCES, RealSets
from tests.replay.traces import COMM, RankTrace, job

from foretrace.replay.othersteps import from_other_steps, is_input


def steps(kernels: list[float], waits: list[float] | None = None) -> RankTrace:
    """Each step: a kernel, then (if asked for) a collective nobody else recorded, then a sync."""
    r = RankTrace(groups=[(0, 1)])
    at = 0.0
    for i, took in enumerate(kernels):
        begin = at
        r.kernel("k", at + 10, at + 10, took)
        end = at + 10 + took
        if waits is not None:
            by = r.call("launch", at + 20, 5)
            work = r.work("ncclDevKernel_AllReduce", end, waits[i], COMM, by)
            r.operation("all_reduce", work, by, group=0, seq=i)
            end += waits[i]
        sync = r.call("cudaDeviceSynchronize", at + 30, end - at - 30 + 3)
        at = sync.end + 20.0
        r.mark(i, begin, at)
    return r


def test_a_step_takes_what_the_others_took(tmp_path: Path) -> None:
    found = from_other_steps(job(tmp_path, steps([100, 200, 300])).graph)
    # A step is 33 us longer than its kernel: 10 before it, 3 for the call, 20 after it.
    assert [s.measured_ns for s in found] == [133_000, 233_000, 333_000]
    assert [s.replayed_ns for s in found] == [283_000, 233_000, 183_000]
    assert [s.mean_ns for s in found] == [283_000, 233_000, 183_000]
    assert found[0].error == pytest.approx(283 / 133 - 1)
    assert found[0].mean_error == found[0].error


def test_waits_on_absent_ranks_are_inputs(tmp_path: Path) -> None:
    j = job(tmp_path, steps([100, 100, 100, 100], waits=[50, 50, 50, 850]))
    assert is_input(j.graph).sum() == 4
    found = from_other_steps(j.graph)
    assert [s.measured_ns for s in found] == [183_000, 183_000, 183_000, 983_000]
    assert [s.replayed_ns for s in found] == [183_000, 183_000, 183_000, 983_000]
    assert found[3].mean_ns == 183_000


def test_only_steps_with_the_same_tasks_count(tmp_path: Path) -> None:
    r = steps([100, 200, 300])
    r.kernel("another", 20, 115, 5)  # in the first step only
    assert from_other_steps(job(tmp_path, r).graph) == []


def test_a_single_step_cannot_be_predicted(real_sets: RealSets) -> None:
    for name in SOURCES:
        assert from_other_steps(real_sets.get(name).build.graph) == []
