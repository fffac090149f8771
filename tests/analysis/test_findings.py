"""Findings: a fault that is put in is found first, at the price of the job without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.graphs import GraphBuilder, two_ranks
from tests.analysis.jobs import Job, pipeline

from foretrace.analysis.causes.case import Case, make_case
from foretrace.analysis.findings import LEAST_SHARE, Finding, find, noise_between_steps
from foretrace.analysis.sensitivity import sensitivity
from foretrace.replay.engine import replay
from foretrace.replay.graph import TaskKind, Timeline
from foretrace.replay.timeline import measured, step_time, step_windows

HEALTHY = Job()

# The fault, the job without it, the kind of finding, the ranks it must name.
FAULTS = [
    (replace(HEALTHY, stall=(2, 80_000)), HEALTHY, "host_stall", (2,)),
    (replace(HEALTHY, slow_device=(1, 1.5)), HEALTHY, "slow_device", (1,)),
    (replace(HEALTHY, slow_kernel=(3, 4.0)), HEALTHY, "slow_kernel", (3,)),
    (
        replace(HEALTHY, host_ns=20_000, slow_host=(0, 1.4)),
        replace(HEALTHY, host_ns=20_000),
        "slow_host",
        (0,),
    ),
    (replace(HEALTHY, loader_ns=60_000), HEALTHY, "data_loading", (0, 1, 2, 3)),
    (
        replace(HEALTHY, copy_ns=30_000),
        replace(HEALTHY, copy_ns=1),
        "copy",
        (0, 1, 2, 3),
    ),
    (
        replace(HEALTHY, comm_ns=60_000),
        replace(HEALTHY, comm_ns=0),
        "exposed_communication",
        (0, 1, 2, 3),
    ),
    (
        replace(HEALTHY, host_ns=30_000),
        replace(HEALTHY, host_ns=15_000),
        "host_bound",
        (0, 1, 2, 3),
    ),
    (replace(HEALTHY, late=(2, 40_000), steps=1), replace(HEALTHY, steps=1), "late_start", (2,)),
]


def step_of(job: Job) -> float:
    return step_time(step_windows(replay(job.build())))


def by_kind(found: tuple[Finding, ...], kind: str) -> Finding:
    kinds = [f.kind for f in found]
    assert kind in kinds, f"{kind} is missing; found {kinds}"
    return found[kinds.index(kind)]


@pytest.mark.parametrize(("faulty", "mended", "kind", "ranks"), FAULTS, ids=[f[2] for f in FAULTS])
def test_fault_is_found_and_priced(
    faulty: Job, mended: Job, kind: str, ranks: tuple[int, ...]
) -> None:
    graph = faulty.build()
    finding = by_kind(find(graph, measured(graph)).found, kind)
    assert finding.ranks == ranks
    saved = step_of(faulty) - step_of(mended)
    assert finding.saving_ns == pytest.approx(saved, rel=0.02)
    assert finding.share == pytest.approx(saved / step_of(faulty), rel=0.02)


@pytest.mark.parametrize(
    ("faulty", "kind"),
    [(f[0], f[2]) for f in FAULTS if f[2] not in {"slow_host", "late_start"}],
    ids=[f[2] for f in FAULTS if f[2] not in {"slow_host", "late_start"}],
)
def test_fault_comes_first(faulty: Job, kind: str) -> None:
    assert find(faulty.build()).found[0].kind == kind


def test_blocking_call_costs_the_launches_behind_it() -> None:
    job = replace(HEALTHY, sync=True, host_ns=9_000)
    finding = by_kind(find(job.build()).found, "blocking_call")
    assert "cudaStreamSynchronize" in finding.title
    # The stream's order holds anyway, so that the host running ahead is all that is saved.
    saved = step_of(job) - step_of(replace(job, sync=False))
    assert finding.saving_ns == pytest.approx(saved, rel=0.02)
    assert finding.confidence == "low"


def test_pipeline_bubble_and_uneven_stage() -> None:
    found = find(pipeline(stages=3, micro=4, uneven=500)).found
    bubble = by_kind(found, "pipeline_bubble")
    assert bubble.ranks == (0, 1, 2)
    uneven = by_kind(found, "uneven_work")
    assert 2 in uneven.ranks
    assert "rank 2" in uneven.title


def test_a_healthy_job_has_no_straggler() -> None:
    kinds = {f.kind for f in find(HEALTHY.build()).found}
    assert not kinds & {"slow_device", "slow_host", "slow_kernel", "host_stall", "late_start"}


def test_ordered_by_saving_and_above_the_bar() -> None:
    result = find(replace(HEALTHY, stall=(2, 80_000), comm_ns=30_000, copy_ns=5_000).build())
    savings = [f.saving_ns for f in result.found]
    assert savings == sorted(savings, reverse=True)
    assert min(savings) > LEAST_SHARE * result.step_ns
    assert result.priced >= len(savings)


def test_nothing_below_the_noise_between_steps() -> None:
    graph = replace(HEALTHY, stall=(2, 50_000), steps=5).build()
    real = measured(graph)
    assert any(f.kind == "host_stall" for f in find(graph, real).found)
    jitter = np.array([0, 40_000, 0, 55_000, 20_000])
    shaky = _with_step_lengths(real, replay(graph), jitter)
    assert noise_between_steps(shaky) > 1.4 * 20_000
    assert not any(f.kind == "host_stall" for f in find(graph, shaky).found)


def _with_step_lengths(real: Timeline, base: Timeline, longer: np.ndarray) -> Timeline:
    """A measured timeline whose steps end later than in ``base``."""
    end = base.end_ns.copy()
    marks = base.graph.steps
    end[marks.end] += longer[marks.step]
    return replace(real, start_ns=base.start_ns, end_ns=end)


def test_a_replay_far_from_the_measurement_lowers_confidence() -> None:
    graph = replace(HEALTHY, stall=(2, 80_000)).build()
    near = by_kind(find(graph, replay(graph)).found, "host_stall")
    off = replay(graph, graph.dur_ns * 2)
    far = by_kind(find(graph, off).found, "host_stall")
    assert (near.confidence, far.confidence) == ("high", "medium")


def test_saving_is_at_most_the_time_on_the_critical_path() -> None:
    case = make_case(replace(HEALTHY, stall=(2, 80_000)).build())
    stall = np.flatnonzero(case.graph.kind == TaskKind.STALL)
    finding = by_kind(find(case).found, "host_stall")
    assert finding.saving_ns <= case.on_path(stall)
    assert case.on_path(stall) <= case.per_step(stall)


def test_case_critical_path_fills_the_steps() -> None:
    case: Case = make_case(two_ranks(steps=3).build())
    constants = case.step_ns - case.path_ns.sum()
    assert case.step_ns == 93
    assert constants == pytest.approx(5)  # 2 ns launch and 3 ns before the copy


def test_overlapping_steps_count_common_time_once() -> None:
    windows = step_windows(two_ranks(steps=3).replayed())
    assert step_time(windows) == 93
    early = replace(windows, start_ns=windows.start_ns - np.array([0, 50, 50]))
    assert step_time(early) == 93


def test_sensitivity_halves_by_replay() -> None:
    job = replace(HEALTHY, host_ns=100)
    table = sensitivity(job.build()).set_index("what")
    comm = step_of(job) - step_of(replace(job, comm_ns=job.comm_ns // 2))
    assert table.loc["all_reduce", "saving_ns"] == pytest.approx(comm, abs=1)
    assert (table["saving_ns"] <= table["path_ns"] / 2 + 1).all()
    assert table.index[0] == "computation"
    assert "gemm" in table.index


def test_a_record_without_steps_has_no_findings() -> None:
    b = GraphBuilder()
    b.task(TaskKind.KERNEL, 0, 100, step=-1)
    result = find(b.build())
    assert (result.found, result.step_ns, result.noise_ns) == ((), 0.0, 0.0)
    assert len(sensitivity(b.build())) == 0
