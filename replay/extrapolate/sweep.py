"""Predict many layouts of one model, in several processes or on a dask cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.fit_file import MachineFit
from foretrace.replay.extrapolate.predict import Prediction, predict
from foretrace.replay.extrapolate.times import Efficiency
from foretrace.replay.layout import Layout
from foretrace.replay.model import Model
from foretrace.replay.workload.describe import describe

Watch = Callable[[int, int], None]
"""Told how many layouts are done, out of how many."""
_CHUNK = 8  # layouts handed to a process at once
_WORTH_A_PROCESS = 24  # layouts that take longer than starting a process


@dataclass(frozen=True, slots=True)
class Target:
    """What all layouts of a sweep have in common.

    Attributes:
        model: the model.
        cluster: the machine.
        efficiency: correction of the models.
        calibration: of the machine's collectives.
    """

    model: Model
    cluster: Cluster
    efficiency: Efficiency | None = None
    calibration: MachineFit | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A predicted layout.

    Attributes:
        layout: the layout.
        step_ns: time of a step.
        tokens_per_s_per_gpu: throughput.
        mfu: model FLOPs over what the GPUs could do.
        bubble: share of the step in which a rank neither computes nor communicates.
        compute_ns: computation, mean over ranks.
        exposed_ns: communication that no computation hides, by kind of group.
        idle_ns: neither.
        memory_bytes: peak of the fullest stage, None where the model cannot say.
    """

    layout: Layout
    step_ns: float
    tokens_per_s_per_gpu: float
    mfu: float
    bubble: float
    compute_ns: float
    exposed_ns: dict[str, float]
    idle_ns: float
    memory_bytes: float | None


def predicted(target: Target, layout: Layout) -> Prediction:
    """Predict one layout, with as few tasks as give the same figures.

    Raises:
        LayoutError: it cannot be.
    """
    model, cluster = target.model, target.cluster
    return predict(
        model, describe(model, layout), layout, cluster, efficiency=target.efficiency,
        calibration=target.calibration, brief=True,
    )  # fmt: skip


def outcome(layout: Layout, found: Prediction) -> Outcome:
    """What is kept of a prediction."""
    parts = found.account
    return Outcome(
        layout=layout,
        step_ns=found.step_ns,
        tokens_per_s_per_gpu=found.tokens_per_s_per_gpu,
        mfu=found.mfu,
        bubble=found.bubble,
        compute_ns=parts.compute_ns,
        exposed_ns=parts.exposed_ns,
        idle_ns=parts.idle_ns,
        memory_bytes=found.memory.peak_bytes if found.memory else None,
    )


def sweep(
    target: Target, layouts: Sequence[Layout], *, jobs: int | None = None,
    executor: Executor | None = None, watch: Watch | None = None,
) -> list[Outcome]:  # fmt: skip
    """Predict layouts; the fastest comes first, of equally fast ones the one with less memory.

    Args:
        target: model and machine.
        layouts: what is predicted.
        jobs: processes, one per CPU by default; few layouts take no second one.
        executor: what runs the work instead.
        watch: told about the progress.

    Raises:
        LayoutError: a layout cannot be.
    """
    count = min(jobs or os.cpu_count() or 1, 1 + len(layouts) // _WORTH_A_PROCESS)
    if executor is not None:
        found = _shared_out(executor, target, layouts, watch)
    elif count == 1:
        found = []
        for number, layout in enumerate(layouts, start=1):
            found.append(outcome(layout, predicted(target, layout)))
            if watch:
                watch(number, len(layouts))
    else:
        with ProcessPoolExecutor(count, get_context("spawn")) as pool:
            found = _shared_out(pool, target, layouts, watch)
    return sorted(found, key=lambda one: (one.step_ns, one.memory_bytes or 0.0))


def pareto(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Outcomes that no other one beats in both time and memory, the fastest first."""
    front: list[Outcome] = []
    known = [one for one in outcomes if one.memory_bytes is not None]
    for one in sorted(known, key=lambda one: (one.step_ns, one.memory_bytes)):
        if not front or (one.memory_bytes or 0.0) < (front[-1].memory_bytes or 0.0):
            front.append(one)
    return front


def _shared_out(
    pool: Executor, target: Target, layouts: Sequence[Layout], watch: Watch | None
) -> list[Outcome]:
    """Work for all processes; long ones are spread by dealing the layouts out in turn."""
    parts = max(-(-len(layouts) // _CHUNK), 1)
    dealt = [[layouts[k] for k in range(part, len(layouts), parts)] for part in range(parts)]
    futures: list[Future[list[Outcome]]] = [pool.submit(_outcomes, target, p) for p in dealt]
    found: list[Outcome] = []
    try:
        for future in as_completed(futures):
            found += future.result()
            if watch:
                watch(len(found), len(layouts))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    return found


def _outcomes(target: Target, layouts: list[Layout]) -> list[Outcome]:
    return [outcome(layout, predicted(target, layout)) for layout in layouts]
