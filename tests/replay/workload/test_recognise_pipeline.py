"""Recordings of passes alone: a pipeline with known times, and the recorded one of 8 ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.replay.workload.recorded_pipeline import (
    BACKWARD,
    FORWARD,
    SENT,
    Times,
    simulate,
    trace_of,
)

from foretrace.replay.workload.recognise.pipeline import (
    PipelineRecording,
    is_pipeline_recording,
    rank_totals,
    read_pipeline,
    replay_pipeline,
)
from foretrace.traces.errors import LayoutError
from foretrace.traces.importers import import_paths
from foretrace.traces.store import TraceSet


def last_ends(times: Times) -> list[float]:
    return [max(*r["2"]["bwd_end"], *r["2"]["fwd_end"]) for r in times]


@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
@pytest.mark.parametrize("waits_inside", [False, True])
def test_times_order_and_totals_come_back(order: str, waits_inside: bool, tmp_path: Path) -> None:
    times = simulate(6, order, 3, waits_inside)
    trace = trace_of(times, tmp_path)
    assert is_pipeline_recording(trace)
    found = read_pipeline(trace)
    assert (found.schedule, found.fits, found.micro_batches, found.steps) == (order, 1.0, 6, 2)
    # Where waits stand inside a pass, so does the time its message takes.
    late = SENT if waits_inside else 0.0
    assert found.backward_ns / 1e6 == pytest.approx(BACKWARD, abs=late)
    assert found.forward_ns / 1e6 == pytest.approx(FORWARD, abs=late)
    made = rank_totals(*replay_pipeline(found)) / 1e6
    assert made == pytest.approx(last_ends(times), rel=0.01)


def test_more_micro_batches(tmp_path: Path) -> None:
    found = read_pipeline(trace_of(simulate(6, "1f1b", 3), tmp_path))
    made = rank_totals(*replay_pipeline(found, micro_batches=9)) / 1e6
    assert made == pytest.approx(last_ends(simulate(9, "1f1b", 3)), rel=0.005)
    other = rank_totals(*replay_pipeline(found, "gpipe")) / 1e6
    assert other == pytest.approx(last_ends(simulate(6, "gpipe", 3)), rel=0.01)


def test_stages_of_a_rank_share_its_layers_but_not_the_ends() -> None:
    ones = np.full(4, 8e6)
    found = PipelineRecording(
        forward_ns=np.array([8e6, 8e6, 8e6, 10e6]), backward_ns=2 * ones, open_ns=0 * ones,
        close_ns=0 * ones, gap_ns=0 * ones, transfer_ns=0.0, micro_batches=8, schedule="1f1b",
        fits=1.0, steps=1, total_ns=ones,
    )  # fmt: skip
    order, spans = replay_pipeline(found, virtual=2)
    dur = spans.end_ns - spans.start_ns
    ahead = order.phase == 0
    assert set(dur[ahead & (order.stage < 7)].tolist()) == {4_000_000}
    assert set(dur[ahead & (order.stage == 7)].tolist()) == {6_000_000}
    assert set(dur[~ahead].tolist()) == {8_000_000}
    # Without the head the bubble halves, as the closed form of interleaving says.
    even = replace(found, forward_ns=ones)
    whole = [int(rank_totals(*replay_pipeline(even, virtual=v)).max()) for v in (1, 2)]
    assert whole == [(8 + 3) * 24_000_000, 8 * 24_000_000 + 3 * 24_000_000 // 2]


def test_first_and_last_passes_that_take_longer_still_do(tmp_path: Path) -> None:
    times = simulate(6, "1f1b", 3)
    for step in ("1", "2", "3"):
        times[0][step]["bwd_end"][-1] += 9.0
    found = read_pipeline(trace_of(times, tmp_path))
    assert found.close_ns / 1e6 == pytest.approx([9, 0, 0, 0])
    assert found.open_ns / 1e6 == pytest.approx([0, 0, 0, 0])
    made = rank_totals(*replay_pipeline(found)) / 1e6
    assert made == pytest.approx(last_ends(times), rel=0.01)


def test_what_such_a_recording_cannot_tell(tmp_path: Path) -> None:
    times = simulate(6, "1f1b", 2)
    found = read_pipeline(trace_of(times, tmp_path / "a"))
    with pytest.raises(LayoutError, match="splits backward passes"):
        replay_pipeline(found, "zb-h1")
    for step in times[2].values():
        for series in step.values():
            series.pop()
    with pytest.raises(LayoutError, match="ranks differ"):
        read_pipeline(trace_of(times, tmp_path / "b"))


def test_the_recorded_pipeline_of_eight_ranks(tmp_path: Path, shared_data: Path) -> None:
    folder = shared_data / "traces" / "primus-pp8"
    import_paths([str(folder)], tmp_path / "x.trace", jobs=1)
    found = read_pipeline(TraceSet.open(tmp_path / "x.trace"))
    assert (found.ranks, found.micro_batches, found.schedule, found.fits) == (8, 16, "1f1b", 1.0)
    made = rank_totals(*replay_pipeline(found)) / 1e6
    for rank in range(8):
        steps = json.loads((folder / f"pp_rank_{rank}.json").read_text())
        totals = [step["total"] for number, step in steps.items() if int(number) >= 2]
        assert made[rank] == pytest.approx(np.median(totals), rel=0.02)
