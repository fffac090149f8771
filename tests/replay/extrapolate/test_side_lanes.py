"""What runs beside a rank's computations: the host's launches, and gathers of parameters."""

from __future__ import annotations

import numpy as np
import pytest
from tests.replay.extrapolate.jobs import DENSE, job, timed

from foretrace.replay.engine import replay
from foretrace.replay.extrapolate.job import Extrapolated
from foretrace.replay.graph import TaskKind, Timeline
from foretrace.replay.layout import Layout
from foretrace.replay.schedule.order import Phase


def launches(layout: Layout) -> tuple[int, int]:
    """Operations of a micro-batch, forward and backward."""
    work = timed(DENSE, layout).workload
    phase = np.concatenate([work.blocks[b].operations.phase for b in work.sequence])
    forward = int((phase == Phase.FORWARD).sum())
    return forward, len(phase) - forward


def end_ns(found: Extrapolated) -> int:
    return int(replay(found.graph).end_ns.max())


def test_a_slow_host_sets_the_pace() -> None:
    layout = Layout(seq=512, global_batch=4)
    each = sum(launches(layout))
    first, second = (end_ns(job(DENSE, global_batch=4, launch_ns=ns)) for ns in (1e6, 2e6))
    assert second - first == round(1e6) * each * 4


def test_a_quick_host_changes_nothing() -> None:
    assert end_ns(job(DENSE, tp=4, launch_ns=1.0)) == end_ns(job(DENSE, tp=4))


def test_the_host_runs_ahead_of_the_device() -> None:
    """A host that is slower than the forward pass alone delays only the first of them."""
    layout = Layout(seq=512, global_batch=8)
    work = timed(DENSE, layout)
    device = [0, 0]
    for block in work.workload.sequence:
        ahead = work.workload.blocks[block].operations.phase == Phase.FORWARD
        device[0] += int(work.dur_ns[block][ahead].sum())
        device[1] += int(work.dur_ns[block][~ahead].sum())
    forward, backward = launches(layout)
    launch = round(device[0] / forward * 1.2)
    assert launch * (forward + backward) < sum(device)
    found = end_ns(job(DENSE, global_batch=8, launch_ns=launch))
    alone = end_ns(job(DENSE, global_batch=8))
    assert found - alone == launch * forward - device[0]


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_folded_and_whole_agree_with_a_slow_host(pp: int) -> None:
    ends = [
        end_ns(job(DENSE, tp=2, dp=2, pp=pp, zero=3, launch_ns=9e4, whole=whole))
        for whole in (False, True)
    ]
    assert ends[0] == ends[1]


def starts_of(found: Extrapolated, timeline: Timeline, name: str) -> dict[int, list[int]]:
    """Start of each message of a name, by rank, in order."""
    graph = found.graph
    names = np.array(graph.names)[graph.name]
    result = {}
    for rank in found.roles.rank.tolist():
        rows = (graph.rank == rank) & (graph.kind == TaskKind.COMM) & (names == name)
        result[rank] = sorted(timeline.start_ns[rows].tolist())
    return result


def test_parameters_are_gathered_before_the_pipeline_reaches_a_rank() -> None:
    """Every rank's first gather begins with the step, not when it gets its first micro-batch."""
    found = job(DENSE, dp=4, pp=4, zero=1, global_batch=32)
    starts = starts_of(found, replay(found.graph), "all_gather shard")
    assert {times[0] for times in starts.values()} == {0}


def test_sharded_parameters_of_the_next_pass_are_gathered_during_the_last_block() -> None:
    """The first gather of the backward pass waits for the last block but one of the forward."""
    found = job(DENSE, dp=4, zero=3, global_batch=4)
    timeline = replay(found.graph)
    (gathers,) = starts_of(found, timeline, "all_gather shard").values()
    graph = found.graph
    work = np.flatnonzero(graph.kind == TaskKind.KERNEL)
    ends = np.sort(timeline.end_ns[work])
    blocks = len(gathers) // 2
    assert gathers[blocks] >= ends[blocks - 2]
    assert gathers[blocks] < ends[blocks - 1]
