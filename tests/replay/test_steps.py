"""Where the steps of a job begin and end, as measured and as replayed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.replay.traces import US, Job, RankTrace, job

from foretrace.replay.graph import TaskKind, Timeline
from foretrace.replay.timeline import measured, step_windows

CALL, KERNEL = TaskKind.CALL, TaskKind.KERNEL


def windows(timeline: Timeline) -> list[tuple[int, float, float]]:
    """Step, start and end in us, counted from the first task."""
    w = step_windows(timeline)
    zero = timeline.start_ns.min()
    return [
        (int(s), float(a - zero) / US, float(b - zero) / US)
        for s, a, b in zip(w.step, w.start_ns, w.end_ns, strict=True)
    ]


def both(j: Job) -> list[tuple[int, float, float]]:
    """The measured windows, after a check that the replayed ones are the same."""
    assert windows(j.replayed()) == windows(measured(j.graph))
    return windows(measured(j.graph))


def test_from_the_first_mark_to_the_last_kernel_of_any_rank(tmp_path: Path) -> None:
    first, second = RankTrace(rank=0), RankTrace(rank=1)
    first.mark(4, 0, 100)
    first.kernel("k0", 10, 10, 230)
    first.mark(5, 110, 400)
    first.kernel("k1", 120, 240, 30)
    second.mark(4, 20, 150)
    second.kernel("k0", 30, 30, 20)
    second.mark(5, 160, 390)
    second.kernel("k1", 170, 170, 20)
    j = job(tmp_path, first, second)
    # Step 4 ends with rank 0's kernel, which still ran in step 5; step 5 with rank 0's mark.
    assert both(j) == [(4, 0, 240), (5, 110, 400)]
    kernel = next(k for k in j.tasks(KERNEL, "k0", rank=0))
    j.longer(kernel, 500)
    assert windows(j.replayed()) == [(4, 0, 740), (5, 110, 770)]


def test_a_kernel_counts_to_the_step_that_launched_it(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 100)
    r.kernel("a", 10, 10, 150)
    r.kernel("b", 20, 160, 150)  # launched in step 1, runs in step 2
    r.mark(2, 100, 200)
    r.kernel("c", 110, 310, 50)
    j = job(tmp_path, r)
    assert both(j) == [(1, 0, 310), (2, 100, 360)]


def test_without_marks_all_is_one_step(tmp_path: Path) -> None:
    ranks = [RankTrace(rank=0), RankTrace(rank=1)]
    for r in ranks:
        late = 30 * r.rank
        r.op("forward", late, 50)
        r.kernel("k", 10 + late, 10 + late, 200)
        r.op("backward", 60 + late, 40)
        r.kernel("k2", 70 + late, 210 + late, 20)
    j = job(tmp_path, *ranks)
    assert both(j) == [(0, 0, 260)]
    assert len(j.graph.steps.step) == 2


def test_a_mark_on_one_rank_only(tmp_path: Path) -> None:
    first, second = RankTrace(rank=0), RankTrace(rank=1)
    first.mark(7, 0, 100)
    first.kernel("k", 10, 10, 20)
    second.op("forward", 0, 50)
    second.kernel("k", 10, 10, 20)
    j = job(tmp_path, first, second)
    assert both(j) == [(7, 0, 100)]
    assert j.graph.steps.rank.tolist() == [0]


def test_the_profilers_closing_synchronisation_is_behind_the_step(tmp_path: Path) -> None:
    r = RankTrace()
    r.quick_syncs(10)
    r.mark(1, 0, 300)
    r.kernel("k", 250, 250, 120)
    r.call("cudaDeviceSynchronize", 310, 9_000)
    j = job(tmp_path, r)
    assert both(j) == [(1, 0, 370)]


def test_nor_does_it_count_without_marks(tmp_path: Path) -> None:
    r = RankTrace()
    r.quick_syncs(10)
    r.op("forward", 220, 60)
    r.kernel("k", 250, 250, 120)
    r.call("cudaDeviceSynchronize", 310, 9_000)
    j = job(tmp_path, r)
    assert windows(measured(j.graph))[0][2] == windows(j.replayed())[0][2] == 360


def test_steps_follow_each_other_through_the_replay(tmp_path: Path) -> None:
    r = RankTrace()
    for step in range(4):
        at = 200 * step
        r.mark(step, at, at + 190)
        r.kernel(f"k{step}", at + 20, at + 20, 100)
    j = job(tmp_path, r)
    assert both(j) == [(s, 200.0 * s, 200.0 * s + 190) for s in range(4)]
    j.longer(j.task(CALL, "launch k1"), 45)
    assert windows(j.replayed())[3] == (3, 645, 835)
    lengths = step_windows(j.replayed()).dur_ns / US
    assert np.array_equal(lengths, [190, 235, 190, 190])
