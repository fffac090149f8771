"""A recognised workload under its own layout: every duration as measured."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.cost import Collectives
from foretrace.replay.costs.collectives.shapes import SEND_RECV
from foretrace.replay.extrapolate.job import Price, default_price
from foretrace.replay.extrapolate.stages import Stages, Timed
from foretrace.replay.extrapolate.times import COMMUNICATION_SPREAD, ORIGINS, Times
from foretrace.replay.graph import F64
from foretrace.replay.layout import Layout, stage_layers
from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.operations import Workload
from foretrace.replay.workload.recognise.messages import measured_price
from foretrace.replay.workload.recognise.recorded import Recognised

_SIZES = ("seq", "micro_batch", "tp", "cp", "pp", "dp", "ep", "etp", "zero", "shard")
_CARRIED_SPREAD = 0.1


def measured_times(found: Recognised, workload: Workload, layout: Layout) -> Times:
    """Times of the recorded blocks, for a layout that leaves their shapes as they are.

    Args:
        found: the recorded job.
        workload: its blocks under the layout.
        layout: the layout.
    """
    dur, origin, unsure = [], [], []
    for block in workload.blocks:
        ops = block.operations
        computes = ops.collective < 0
        dur.append(np.where(computes, ops.measured_ns, 0))
        origin.append(np.full(len(ops), ORIGINS.index("measured"), np.int8))
        spread = np.where(ops.phase == Phase.FORWARD, found.spread[False], found.spread[True])
        unsure.append(np.where(computes, spread, 0.0))
    timed = Timed(workload, tuple(dur), optimizer_times(found, layout))
    return Times(timed, tuple(origin), tuple(unsure), communication(found, layout))


def communication(found: Recognised, layout: Layout) -> tuple[str, float]:
    """Where the times of communication come from on the recorded GPU type, and their spread."""
    needed = {kind for kind in ("tp", "pp", "dp") if getattr(found.layout, kind) > 1}
    known = set(found.report.groups) | ({"dp"} if "shard" in found.report.groups else set())
    if not needed <= known:  # the recording does not say whose some of the messages are
        return "modelled", COMMUNICATION_SPREAD
    if all(getattr(layout, size) == getattr(found.layout, size) for size in _SIZES):
        return "measured", found.messages.spread
    return "transferred", max(found.messages.spread, _CARRIED_SPREAD)


def optimizer_times(
    found: Recognised, layout: Layout, slower: float = 1.0
) -> Callable[[float], int]:
    """(bytes) -> the end of a step: its computations follow the bytes, its gaps do not.

    Args:
        found: the recorded job.
        layout: the layout; what groups it has not sends nothing.
        slower: factor of computations, on another device.
    """
    own = _own_bytes(found)
    sizes = (("tp", layout.tp), ("pp", layout.pp), ("dp", layout.dp))
    groups = {kind for kind, size in sizes if size > 1}
    rest = found.finish.total_ns(groups) - found.finish.work_ns

    def optimizer_ns(moved: float) -> int:
        return round(found.finish.work_ns * slower * moved / own + rest)

    return optimizer_ns


def _own_bytes(found: Recognised) -> float:
    """What the optimizer moves on the rank that holds most, under the recorded layout."""
    seen: list[float] = []

    def probe(moved: float) -> int:
        seen.append(moved)
        return 0

    empty = tuple(np.zeros(len(b.operations), np.int64) for b in found.workload.blocks)
    layout = found.layout
    stages = Stages(Timed(found.workload, empty, probe), layout, stage_layers(found.model, layout))
    for rank in range(layout.pp):
        stages.finish(list(range(rank, layout.stages, layout.pp)))
    return max(*seen, 1.0)


def recorded_prices(found: Recognised, same: bool) -> Price:
    """Times of communication.

    A transfer between stages takes the host's return to work with it: it launches nothing
    before a message has come.

    Args:
        found: the recorded job.
        same: the machine has the GPU type that was recorded; else the models stand alone.
    """

    def prices(ops: Collectives, cluster: Cluster) -> F64:
        if not same:
            return default_price(ops, cluster)
        result = measured_price(ops, cluster, found.messages)
        pairs = (ops.kind == SEND_RECV) & (ops.ranks == 2)
        return np.asarray(result + np.where(pairs, found.resume_ns / 1e3, 0.0))

    return prices
