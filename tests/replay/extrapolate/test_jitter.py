"""The jitter term against a simulation of every rank, and against closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.replay.extrapolate.jobs import DENSE, H100, MIXTURE, timed
from tests.replay.extrapolate.whole_jobs import mean_jitter_ns

from foretrace.replay.extrapolate.jitter import Jitter, jitter_ns, largest
from foretrace.replay.extrapolate.noise import cell_groups, cell_size
from foretrace.replay.layout import Layout, group_of, stage_layers
from foretrace.replay.model import Model

FIVE = Jitter(matrix=0.05, attention=0.05, memory=0.05)


def term(model: Model, layout: Layout, jitter: Jitter) -> float:
    return jitter_ns(timed(model, layout), jitter, layout, H100, stage_layers(model, layout))


@pytest.mark.parametrize(
    ("model", "split", "steps"),
    [
        (DENSE, {"tp": 8, "pp": 2, "dp": 8, "global_batch": 64}, 60),
        (DENSE, {"tp": 4, "dp": 32, "global_batch": 64}, 100),
        (DENSE, {"dp": 128, "global_batch": 128}, 600),
        (DENSE, {"tp": 2, "cp": 4, "pp": 2, "dp": 8, "global_batch": 32}, 60),
        (MIXTURE, {"tp": 2, "ep": 8, "pp": 2, "dp": 32, "global_batch": 64}, 60),
    ],
)
def test_agrees_with_a_simulation_of_every_rank(
    model: Model, split: dict[str, Any], steps: int
) -> None:
    layout = Layout(seq=512, **split)
    wanted, error = mean_jitter_ns(model, layout, FIVE, steps)
    assert term(model, layout, FIVE) == pytest.approx(wanted, rel=0.02, abs=2.5 * error)


def test_one_rank_has_no_one_to_wait_for() -> None:
    assert abs(term(DENSE, Layout(seq=512, global_batch=4), FIVE)) < 100  # ns of 100 ms


def test_data_parallel_ranks_wait_for_the_slowest_sum() -> None:
    """Four micro-batches of one GPU's work: variances add up, then the largest of 64 counts."""
    layout = Layout(seq=512, global_batch=256, dp=64, zero=0, overlap_gradients=False)
    made = timed(DENSE, layout)
    every = np.concatenate([made.dur_ns[b] for b in made.workload.sequence]).astype(float)
    square = 4 * float(((0.05 * every) ** 2).sum())
    parameters = sum(made.workload.blocks[b].parameters for b in made.workload.sequence)
    optimizer = 0.05 * made.optimizer_ns(30.0 * parameters)
    wanted = largest(64) * (square**0.5 + optimizer)
    assert term(DENSE, layout, FIVE) == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize(("count", "wanted"), [(1, 0.0), (2, 0.5642), (8, 1.4236), (1000, 3.2414)])
def test_the_largest_of_normal_deviates(count: int, wanted: float) -> None:
    """Tabulated expectations of normal order statistics."""
    assert largest(count) == pytest.approx(wanted, abs=2e-4)


def test_more_noise_and_more_ranks_cost_more_and_none_costs_nothing() -> None:
    small = term(DENSE, Layout(seq=512, global_batch=64, tp=2, dp=4), FIVE)
    wide = term(DENSE, Layout(seq=512, global_batch=256, tp=2, dp=16), FIVE)
    loud = term(DENSE, Layout(seq=512, global_batch=64, tp=2, dp=4), Jitter(matrix=0.1))
    assert 0 < small < wide
    assert loud > 0
    assert abs(term(DENSE, Layout(seq=512, global_batch=64, tp=2, dp=4), Jitter())) < 100


def test_the_same_arguments_give_the_same_term() -> None:
    layout = Layout(seq=512, global_batch=32, tp=2, pp=2, dp=4)
    assert term(DENSE, layout, FIVE) == term(DENSE, layout, FIVE)


def test_sharded_replicas_meet_all_the_time() -> None:
    layout = Layout(seq=512, global_batch=32, dp=16, zero=3)
    wanted, error = mean_jitter_ns(DENSE, layout, FIVE, 200)
    assert term(DENSE, layout, FIVE) == pytest.approx(wanted, rel=0.02, abs=3 * error)


@pytest.mark.parametrize("split", [{"tp": 4, "cp": 2, "dp": 4}, {"tp": 2, "dp": 8, "ep": 8}])
def test_cells_hold_whole_groups(split: dict[str, int]) -> None:
    layout = Layout(seq=512, global_batch=32, **split)
    size = cell_size(layout)
    for kind, own in cell_groups(layout).items():
        found = group_of(layout, kind)[:size]
        assert np.array_equal(
            np.unique(found, return_inverse=True)[1], np.unique(own, return_inverse=True)[1]
        )
