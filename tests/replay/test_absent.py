"""Waiting for ranks that were not recorded, by repetition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.replay.traces import COMM, US, Job, RankTrace, job

from foretrace.replay.absent import absent_waits


def recording(runs: list[list[float]], ranks: int = 2) -> RankTrace:
    """Steps of 10 ms, each with one all-reduce after another, of a group of ``ranks``."""
    r = RankTrace(groups=[tuple(range(ranks))])
    number = 0
    for i, step in enumerate(runs):
        r.mark(i, 10_000 * i, 10_000 * (i + 1))
        for k, took in enumerate(step):
            at = 10_000 * i + 1_000 * k + 100
            work = r.work("ncclDevKernel_AllReduce", at, took, COMM, r.call("launch", at, 5))
            r.operation("all_reduce", work, group=0, seq=number)
            number += 1
    return r


def waits(j: Job) -> list[float]:
    comm, waited = absent_waits(j.graph)
    return (waited[np.argsort(j.graph.measured_start_ns[comm])] / US).tolist()


def test_the_shortest_run_is_execution(tmp_path: Path) -> None:
    # The first operation of a step executes in 40 us, the second one in 200 us.
    j = job(tmp_path, recording([[40, 260], [95, 200], [300, 205]]))
    assert waits(j) == [0, 60, 55, 0, 260, 5]


def test_two_steps_say_nothing(tmp_path: Path) -> None:
    assert waits(job(tmp_path, recording([[40, 260], [95, 200]]))) == [0, 0, 0, 0]


def test_matched_operations_are_none_of_these(tmp_path: Path) -> None:
    both = [recording([[40], [95], [300]]) for _ in range(2)]
    both[1].rank = 1
    assert waits(job(tmp_path, *both)) == []
