"""A predicted training step: its time, what it is made of, and how far to trust it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.cost import Collectives
from foretrace.replay.costs.collectives.fit import fitted_costs
from foretrace.replay.costs.collectives.fit_file import MachineFit
from foretrace.replay.costs.gemm import has_peak, peak_flops
from foretrace.replay.costs.kernel_book import Book
from foretrace.replay.costs.memory import (
    StageMemory,
    Verdict,
    stage_memory,
    verdict,
    visible_bytes,
)
from foretrace.replay.costs.memory_layout import Placement, Precision, Split
from foretrace.replay.engine import replay
from foretrace.replay.extrapolate.account import Account, account
from foretrace.replay.extrapolate.job import F64, Extrapolated, Price, default_price, extrapolate
from foretrace.replay.extrapolate.times import ORIGINS, Efficiency, Times, time_workload
from foretrace.replay.graph import Timeline
from foretrace.replay.layout import Layout, stage_layers
from foretrace.replay.model import Model
from foretrace.replay.workload.operations import Workload
from foretrace.traces.errors import LayoutError

if TYPE_CHECKING:
    from foretrace.replay.extrapolate.jitter import Jitter

_BAND = 1.645  # nine of ten


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted step.

    Attributes:
        job: its job graph.
        timeline: the replay.
        account: what the step is made of.
        step_ns: time of the step.
        low_ns: nine of ten steps should lie between these two, if the spread of each source
            of durations is what it was where it was measured.
        high_ns: see ``low_ns``.
        tokens_per_s_per_gpu: throughput.
        mfu: model FLOPs over what the GPUs could do.
        memory: whether the layout fits, None where the model cannot say.
        origin: share of the busy time by where its durations come from.
        jitter_ns: what a step loses on average because executions differ; ``step_ns`` is without.
    """

    job: Extrapolated
    timeline: Timeline
    account: Account
    step_ns: float
    low_ns: float
    high_ns: float
    tokens_per_s_per_gpu: float
    mfu: float
    memory: Verdict | None
    origin: dict[str, float]
    jitter_ns: float = 0.0

    @property
    def bubble(self) -> float:
        """Share of the step in which a rank neither computes nor communicates."""
        return self.account.idle_ns / self.account.step_ns


def predict(
    model: Model, workload: Workload, layout: Layout, cluster: Cluster,
    book: Book | None = None, efficiency: Efficiency | None = None, *,
    measured: tuple[Times, Price] | None = None, calibration: MachineFit | None = None,
    brief: bool = False, jitter: Jitter | None = None, loads: F64 | None = None,
) -> Prediction:  # fmt: skip
    """Predict a step.

    Args:
        model: the model, for layers and memory.
        workload: what the step does under this layout.
        layout: the layout.
        cluster: the machine.
        book: kernels timed on its GPU type.
        efficiency: correction of the models.
        measured: times of the workload's operations and prices of communication that were taken
            from a recording; they take the place of ``book`` and ``efficiency``.
        calibration: of this machine's collectives (``foretrace calibrate``).
        brief: the same figures from a timeline with fewer tasks.
        jitter: how far executions of an operation differ.
        loads: how unevenly experts are loaded, see ``extrapolate``.

    Raises:
        LayoutError: the layout does not fit.
    """
    if not has_peak(cluster.gpu, layout.precision):
        known = ", ".join(cluster.gpu.flops)
        raise LayoutError(
            f"precision={layout.precision!r}: no peak known on {cluster.gpu.name}; choose {known}"
        )
    fit = efficiency or Efficiency()

    def modelled_price(ops: Collectives, where: Cluster) -> F64:
        if calibration is not None:
            return fitted_costs(ops, where, calibration).time_us * fit.communication
        return default_price(ops, where) * fit.communication

    if measured is None:
        measured = time_workload(workload, cluster.gpu, book, fit), modelled_price
    times, prices = measured

    layers = stage_layers(model, layout)
    job = extrapolate(times.timed, layout, cluster, layers, brief=brief, loads=loads, prices=prices)
    timeline = replay(job.graph, label="extrapolated")
    parts = account(job, timeline)
    step = parts.step_ns + fit.step_ns
    origin, spread = _trust(times, parts, fit)
    peak = peak_flops(cluster.gpu, layout.precision)
    seconds = step / 1e9
    return Prediction(
        job=job,
        timeline=timeline,
        account=parts,
        step_ns=step,
        low_ns=step * float(np.exp(-_BAND * spread)),
        high_ns=step * float(np.exp(_BAND * spread)),
        tokens_per_s_per_gpu=workload.tokens / seconds / layout.gpus,
        mfu=workload.flops / seconds / layout.gpus / peak,
        memory=memory_verdict(model, layout, layers, cluster),
        origin=origin,
        jitter_ns=_jitter_ns(times, jitter, layout, cluster, layers, prices) if jitter else 0.0,
    )


def _jitter_ns(
    times: Times, jitter: Jitter, layout: Layout, cluster: Cluster, layers: tuple[int, ...],
    prices: Price,
) -> float:  # fmt: skip
    from foretrace.replay.extrapolate.jitter import jitter_ns

    return jitter_ns(times.timed, jitter, layout, cluster, layers, prices)


def _trust(times: Times, parts: Account, fit: Efficiency) -> tuple[dict[str, float], float]:
    """Shares of the busy time by origin, and the spread of the log step.

    Errors within one origin go the same way, those of different origins are independent.
    """
    each = np.zeros(len(ORIGINS))
    unsure = np.zeros(len(ORIGINS))
    work = times.timed.workload
    for block in work.sequence:
        ns = times.timed.dur_ns[block].astype(np.float64)
        each += np.bincount(times.origin[block], ns, len(ORIGINS))
        capped = np.minimum(times.uncertainty[block], 1.0)
        unsure += np.bincount(times.origin[block], ns * capped, len(ORIGINS))
    talk = sum(parts.exposed_ns.values())
    busy = max(parts.compute_ns + talk, 1.0)
    share = each / max(each.sum(), 1.0) * parts.compute_ns / busy
    mean = np.divide(unsure, each, out=np.zeros_like(each), where=each > 0)
    terms = share * (np.minimum(mean, fit.spread) if fit.spread else mean)
    origin, unsure_talk = times.communication
    spread = float(np.sqrt((terms**2).sum() + (talk / busy * unsure_talk) ** 2))
    share[ORIGINS.index(origin)] += talk / busy
    return dict(zip(ORIGINS, share.tolist(), strict=True)), spread


def memory_verdict(
    model: Model, layout: Layout, layers: tuple[int, ...], cluster: Cluster
) -> Verdict | None:
    """Whether the layout fits; None for schedules that the memory model does not know."""
    if layout.schedule not in ("1f1b", "gpipe", "interleaved"):
        return None
    return verdict(layout_memory(model, layout, layers), visible_bytes(cluster.gpu))


def layout_memory(model: Model, layout: Layout, layers: tuple[int, ...]) -> StageMemory:
    """What each pipeline rank holds at its peak, under a schedule that is known.

    Args:
        model: the model.
        layout: the layout.
        layers: layers of each stage.
    """
    split = Split(
        seq=layout.seq, micro_batch=layout.micro_batch, accumulation=layout.micro_batches,
        tp=layout.tp, pp=layout.pp, dp=layout.dp * layout.cp, cp=layout.cp, ep=layout.ep,
        zero=layout.zero, virtual=layout.virtual,
        schedule="gpipe" if layout.schedule == "gpipe" else "1f1b",
        sequence_parallel=layout.sequence_parallel,
    )  # fmt: skip
    per_rank = np.asarray(layers).reshape(layout.virtual, layout.pp).sum(axis=0)
    where = Placement(tuple(per_rank.tolist()), layout.pp - 1, layout.pp - 1)
    kept = "selective" if layout.recompute == "operations" else layout.recompute
    kinds = Precision(recompute=kept, accumulate_bytes=layout.accumulate_bytes)
    return stage_memory(model.transformer(), split, kinds, where)
