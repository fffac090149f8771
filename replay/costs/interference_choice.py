"""Replay with rates or without: what was asked for, what the trace allows, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from foretrace.replay.costs.interference import Interference
from foretrace.replay.costs.interference_check import (
    MIN_KERNELS,
    Held,
    beside_communication,
    cross_validate,
    fit_model,
)
from foretrace.replay.costs.interference_job import SharedJob, shared_job
from foretrace.replay.costs.interference_sharing import RankKernels, read_rank_kernels, sharing_of
from foretrace.replay.graph import JobGraph
from foretrace.replay.timeline import measured
from foretrace.traces.errors import GraphError, LayoutError
from foretrace.traces.store import TraceSet

Mode = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which replay is used.

    Attributes:
        used: work that overlaps slows each other down.
        reason: why, in a few words.
        held: how both replays did on steps or ranks that they had not seen, None where that was
            not asked for or not possible.
        model: constants, None where none are used.
        job: what to replay with rates, None where they are not used.
    """

    used: bool
    reason: str
    held: Held | None = None
    model: Interference | None = None
    job: SharedJob | None = None


def choose(trace: TraceSet, graph: JobGraph, mode: Mode) -> Choice:
    """Decide for a recorded job.

    Args:
        trace: where the job is from.
        graph: the job as recorded.
        mode: ``on`` and ``off`` force it; ``auto`` takes rates only where they beat the plain
            replay on steps (or ranks, where there is one step) that the constants and durations
            were not taken from.

    Raises:
        GraphError: mode is ``on`` and the trace cannot tell what its kernels take.
    """
    if mode == "off":
        return Choice(used=False, reason="switched off")
    beside = int(beside_communication(graph).sum())
    if mode == "auto" and beside < MIN_KERNELS:
        return Choice(
            used=False,
            reason=f"kernels that ran wholly beside communication: {beside}, too few to tell",
        )
    try:
        found = _kernels(trace, graph)
    except LayoutError as error:
        if mode == "on":
            raise GraphError(f"interference: {error}") from error
        return Choice(used=False, reason=str(error))
    held = cross_validate(graph, found)
    if mode == "auto" and (held is None or not held.better):
        return Choice(used=False, reason=_why(held), held=held)
    model = fit_model(graph, found)
    job = shared_job(measured(graph), sharing_of(graph, found, model))
    reason = "asked for" if mode == "on" else _why(held)
    return Choice(used=True, reason=reason, held=held, model=model, job=job)


def _kernels(trace: TraceSet, graph: JobGraph) -> dict[int, RankKernels]:
    """Kernels of the graph's ranks that were recorded.

    Raises:
        LayoutError: a device is of no known type, or they differ.
    """
    ranks = set(np.unique(graph.rank).tolist())
    found = read_rank_kernels(trace, [rank for rank in trace.ranks if rank in ranks])
    types = sorted({rank.gpu.name for rank in found.values()})
    if len(types) > 1:
        raise LayoutError(f"ranks on different GPU types ({', '.join(types)}) share no constants")
    return found


def _why(held: Held | None) -> str:
    if held is None:
        return "no kernel beside communication has a match in another step or rank"
    (step, step_rates), (kernel, kernel_rates) = held.step_error, held.kernel_error
    return (
        f"on held-out {held.by}s the step error is {step:.2%} without and {step_rates:.2%} with "
        f"it, that of {held.kernels} kernels beside communication {kernel:.1%} and "
        f"{kernel_rates:.1%}"
    )
