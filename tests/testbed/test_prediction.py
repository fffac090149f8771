"""Predictions and their table, from jobs put together by hand."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from testbed.experts import rows_between
from testbed.interventions import INTERVENTIONS, RECORDED
from testbed.launch import step_times
from testbed.prediction import (
    Prediction,
    nothing_overlaps_ms,
    read_predictions,
    step_ms,
    write_predictions,
)
from testbed.prices import fitted
from testbed.table import Row, summary, table

from foretrace.replay.graph import JobGraph
from foretrace.replay.transforms.program import Program

MS = 1_000_000


def overlapping(work_ms: int, comm_ms: int, steps: int = 3) -> JobGraph:
    """Two ranks; an all-reduce runs beside the work that follows it."""
    program = Program()
    for step in range(steps):
        reduce = program.operation("all_reduce", (0, 1), 8)
        for rank in range(2):
            program.begin(rank, step)
            program.post(rank, reduce, 0, comm_ms * MS)
            program.work(rank, "work", work_ms * MS * (rank + 1))
            program.wait(rank, reduce)
            program.end(rank)
    return program.graph()


def test_a_step_and_what_it_takes_if_nothing_overlaps() -> None:
    graph = overlapping(work_ms=10, comm_ms=7)
    assert step_ms(graph) == 20.0  # rank 1 works twice as long
    assert nothing_overlaps_ms(graph) == 27.0


def test_predictions_are_written_once_with_what_they_were_made_of(tmp_path: Path) -> None:
    for name in (*RECORDED, "collectives"):
        (tmp_path / f"{name}.trace").mkdir()
        (tmp_path / f"{name}.trace" / "manifest.json").write_text(name)
    found = [Prediction("a change", 10.0, 12.5, 20.0)]
    path = tmp_path / "predictions.json"
    digest = write_predictions(path, tmp_path, found)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert read_predictions(path) == found
    content = json.loads(path.read_text())
    assert set(content["trace_sets"]) == {*RECORDED, "collectives"}
    assert len(set(content["trace_sets"].values())) == 4
    with pytest.raises(FileExistsError):
        write_predictions(path, tmp_path, found)


def test_the_table_compares_medians() -> None:
    said = Prediction("links half as fast", 100.0, 150.0, 220.0)
    row = Row(said, np.array([190, 200, 400], np.int64) * MS)
    assert row.error == -0.25
    assert row.naive_error == pytest.approx(0.10)
    line = table([row]).splitlines()[2]
    assert "| 100.0 ms | 150.0 ms | 200.0 ms | 192.0-360.0 | -25.0% | 220.0 ms | +10.0% |" in line
    assert "mean |error| 25.0%, worst 25.0%" in summary([row])
    assert "MISSED" in summary([row])
    good = Row(said, np.array([151], np.int64) * MS)
    assert "held" in summary([good])


def test_a_step_ends_when_the_last_rank_does() -> None:
    ends = np.array([[0, 10, 30], [5, 12, 20]])
    assert step_times(ends).tolist() == [7, 18]


def test_prices_find_the_line_that_operations_were_made_of() -> None:
    """300 us and 80 ns a byte for an all-reduce of 4 ranks, 80 ns a byte for a message."""
    program = Program()
    for step in range(3):
        for rank in range(4):
            program.begin(rank, step)
        for size in (32_768, 65_536, 131_072, 262_144, 524_288):
            whole = program.operation("all_reduce", (0, 1, 2, 3), size)
            there = program.operation("send", (0, 1), size)
            for rank in range(4):
                program.post(rank, whole, 0, 300_000 + 120 * size - 50 * rank)
                program.wait(rank, whole)
            program.post(0, there, 0, 1000)
            program.post(1, there, 0, 80 * size)
            for rank in (0, 1):
                program.wait(rank, there)
        for rank in range(4):
            program.end(rank)
    prices = fitted(program.graph(), mbit=100.0)
    assert prices.latency_ns("all_reduce", 4) == pytest.approx(300_000, rel=0.01)
    assert prices.link_bytes_per_s() == pytest.approx(12.5e6, rel=0.02)
    # At a measured size the price is the measured one, of the slowest member.
    assert prices.cost_ns("all_reduce", 131_072, 4) == pytest.approx(16_028_640, rel=0.05)


def test_tokens_are_kept_and_the_hot_expert_gets_its_share() -> None:
    rows = rows_between(8, 240, hot_expert=2, hot_share=0.35)
    assert (rows.sum(axis=1) == 240).all()
    assert (rows[:, 2] == 84).all()
    assert rows[:, [0, 1, 3, 4, 5, 6, 7]].max() - rows[:, [0, 1, 3, 4, 5, 6, 7]].min() <= 1
    assert (rows_between(8, 240) == 30).all()


def test_every_intervention_changes_its_recorded_job() -> None:
    assert len({one.name for one in INTERVENTIONS}) == len(INTERVENTIONS) == 10
    assert all(one.changed != RECORDED[one.recorded] for one in INTERVENTIONS)
