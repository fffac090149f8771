"""Steps of extrapolated jobs against closed forms worked out from durations and prices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.replay.extrapolate.jobs import DENSE, H100, job, timed

from foretrace.replay.costs.collectives.cost import Collectives
from foretrace.replay.costs.collectives.shapes import kind_code
from foretrace.replay.engine import replay
from foretrace.replay.extrapolate.job import Extrapolated, default_price
from foretrace.replay.graph import TaskKind
from foretrace.replay.layout import Layout
from foretrace.replay.schedule.order import Phase


def step_ns(found: Extrapolated) -> int:
    return int(replay(found.graph).end_ns.max())


def block_ns(layout: Layout, *phases: Phase) -> list[int]:
    """Computation of each place of the model."""
    made = timed(DENSE, layout)
    each = [
        int(ns[np.isin(block.operations.phase, phases)].sum())
        for block, ns in zip(made.workload.blocks, made.dur_ns, strict=True)
    ]
    return [each[b] for b in made.workload.sequence]


def cost_ns(kind: str, size: int, ranks: int, nodes: int) -> int:
    us = default_price(Collectives.of(kind_code(kind), size, ranks, nodes), H100)[0]
    return round(us * 1000)


BACK = (Phase.INPUT, Phase.WEIGHT)


def test_one_gpu_does_everything_in_turn() -> None:
    layout = Layout(seq=512, global_batch=3)
    made = timed(DENSE, layout)
    work = sum(block_ns(layout, Phase.FORWARD)) + sum(block_ns(layout, *BACK))
    parameters = sum(made.workload.blocks[b].parameters for b in made.workload.sequence)
    wanted = 3 * work + made.optimizer_ns(30.0 * parameters)
    assert step_ns(job(DENSE, global_batch=3)) == wanted


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_pipeline_of_equal_stages(schedule: str) -> None:
    """(m + p - 1) stages' time, transfers on the way, and the ends' own work."""
    layout = Layout(seq=512, global_batch=32, pp=4)
    forward, backward = block_ns(layout, Phase.FORWARD), block_ns(layout, *BACK)
    found = job(DENSE, global_batch=32, pp=4, schedule=schedule)
    lower = 32 * 2 * (forward[1] + backward[1])
    upper = (32 + 3) * (
        max(2 * forward[1] + forward[0], 2 * forward[1] + forward[-1])
        + max(2 * backward[1] + backward[0], 2 * backward[1] + backward[-1])
    )
    assert lower < step_ns(found) < upper + 200 * cost_ns("sendrecv", 512 * 512 * 2, 2, 1) + 10**6


def test_data_parallel_gradients_hide_behind_the_backward_pass() -> None:
    """What stands out is the last reduction, if each is shorter than a block's backward."""
    whole = step_ns(job(DENSE, dp=4, zero=1, overlap_gradients=False))
    hidden = step_ns(job(DENSE, dp=4, zero=1))
    assert hidden < whole
    layout = Layout(seq=512, global_batch=32, dp=4)
    block = timed(DENSE, layout).workload.blocks
    one = [cost_ns("reducescatter", b.parameters * 4, 4, 1) for b in block]
    backward = block_ns(layout, *BACK)
    total = one[0] + 8 * one[1] + one[2]
    # Reductions follow each other from the head's end on; the rest of the backward runs beside.
    reach, ready = 0, 0
    order = [2, *[1] * 8, 0]
    for place, kind in zip(range(9, -1, -1), order, strict=True):
        ready += backward[place]
        reach = max(reach, ready) + one[kind]
    assert whole - hidden == (ready + total) - reach


def test_ring_of_tensor_ranks_is_paid_in_full_unless_hidden() -> None:
    layout = Layout(seq=512, global_batch=32, tp=4)
    found = job(DENSE, tp=4)
    timeline = replay(found.graph)
    talk = found.graph.kind == TaskKind.COMM
    work = found.graph.kind == TaskKind.KERNEL
    assert timeline.end_ns.max() < found.graph.dur_ns[talk | work].sum()
    assert timeline.end_ns.max() > found.graph.dur_ns[work].sum()
    hidden: dict[str, Any] = {"tp": 4, "overlap_tensor": True}
    assert step_ns(job(DENSE, **hidden)) < step_ns(found)
    assert layout.tokens == 512


def test_sharded_parameters_are_gathered_one_block_ahead() -> None:
    """The first gather of each pass stands out; the others hide where blocks last longer."""
    found = job(DENSE, dp=4, zero=3, global_batch=4)
    names = np.array(found.graph.names)[found.graph.name]
    gathers = np.flatnonzero(names == "all_gather shard")
    reductions = np.flatnonzero(names == "reduce_scatter shard")
    assert (len(gathers), len(reductions)) == (20, 10)
    timeline = replay(found.graph)
    order = gathers[np.argsort(timeline.start_ns[gathers])]
    starts, ends = timeline.start_ns[order], timeline.end_ns[order]
    assert (starts[1:] >= ends[:-1]).all()
    work = np.flatnonzero(found.graph.kind == TaskKind.KERNEL)
    work = work[np.argsort(timeline.start_ns[work])]
    # Gather k + 2 of a pass waits until block k has ended.
    for k in range(8):
        assert starts[k + 2] >= timeline.end_ns[work[k]]


def test_a_slow_rank_slows_its_groups() -> None:
    slow = np.ones(8)
    slow[2] = 1.5
    plain, held = step_ns(job(DENSE, tp=8)), step_ns(job(DENSE, tp=8, slow=slow))
    work = replay(job(DENSE, tp=8).graph)
    kernels = work.graph.dur_ns[work.graph.kind == TaskKind.KERNEL].sum()
    assert 0 < held - plain <= 0.5 * kernels + 1000
