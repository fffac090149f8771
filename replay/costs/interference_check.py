"""Whether replaying with rates beats the plain replay on steps, or ranks, that it did not see.

Each fold in turn, computation kernels take their durations from matching kernels of the other
folds, and nothing of the fold itself: once as recorded there (the plain replay), once freed of
the slowdown that the overlap there brought and slowed by the overlap of the replay (rates). The
constants are fitted without the fold too. All other durations are the fold's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from foretrace.replay.arrivals import arrivals
from foretrace.replay.costs.interference import DEFAULT, F64, Interference
from foretrace.replay.costs.interference_collectives import collective_pairs, fit_phi
from foretrace.replay.costs.interference_fit import fit
from foretrace.replay.costs.interference_job import shared_job
from foretrace.replay.costs.interference_pairs import OVERLAPPED_ABOVE, integral, join
from foretrace.replay.costs.interference_sharing import RankKernels, sharing_of
from foretrace.replay.engine import replay
from foretrace.replay.graph import I64, JobGraph, TaskKind, Timeline
from foretrace.replay.rates import devices
from foretrace.replay.selection import Mask
from foretrace.replay.timeline import measured, step_windows

MIN_KERNELS = 20
"""Fewer held-out kernels beside communication decide nothing."""


@dataclass(frozen=True, slots=True)
class Held:
    """Errors on folds that were not seen, of both replays.

    Attributes:
        by: what a fold is: ``step`` or ``rank``.
        folds: how many.
        kernels: held-out kernels that ran beside communication.
        step_error: mean ``|replayed - measured| / measured`` of the folds' steps: plain, rates.
        kernel_error: median of the same over those kernels' durations: plain, rates.
    """

    by: str
    folds: int
    kernels: int
    step_error: tuple[float, float]
    kernel_error: tuple[float, float]

    @property
    def better(self) -> bool:
        """Rates are better on steps and on kernels."""
        pairs = (self.step_error, self.kernel_error)
        return self.kernels >= MIN_KERNELS and all(rates < plain for plain, rates in pairs)


def fit_model(
    graph: JobGraph, found: dict[int, RankKernels], seen: Mask | None = None
) -> Interference:
    """Constants for a job, from its kernels and collectives.

    Args:
        graph: the job as recorded.
        found: kernels of its ranks, all of one GPU type.
        seen: tasks that may be looked at, shape ``(n,)``; all by default.
    """
    parts = []
    for number, rank in found.items():
        keep = np.ones(len(rank.pairs), bool)
        if seen is not None:
            mine = seen & (graph.rank == number) & (graph.kind == TaskKind.KERNEL)
            keep = np.isin(rank.pairs.event, graph.event[mine])
        parts.append(rank.pairs.only(keep))
    pairs = join(parts)
    model = fit(pairs, next(iter(found.values())).gpu).model if len(pairs) else DEFAULT
    return replace(model, phi=fit_phi(collective_pairs(graph, seen), model.phi))


def cross_validate(graph: JobGraph, found: dict[int, RankKernels]) -> Held | None:
    """Both replays on held-out steps, or on held-out ranks where there is one step.

    Args:
        graph: the job as recorded.
        found: kernels of its ranks, all of one GPU type.

    Returns:
        None where no kernel has a match in another step or rank.
    """
    by = "step" if len(np.unique(graph.steps.step)) > 1 else "rank"
    apart = graph.step if by == "step" else graph.rank
    tasks = np.flatnonzero((graph.kind == TaskKind.KERNEL) & np.isin(graph.step, graph.steps.step))
    match, real = _matches(graph, tasks, by), measured(graph)
    beside = beside_communication(graph)
    steps, kernels = [], []
    for fold in np.unique(apart[tasks]):
        test = apart[tasks] == fold
        job = shared_job(real, sharing_of(graph, found, fit_model(graph, found, apart != fold)))
        replaced = [
            with_donors(durations, tasks, match, test)
            for durations in (graph.dur_ns, job.graph.dur_ns)
        ]
        asked = tasks[test]
        asked = asked[beside[asked] & (replaced[0][asked] >= 0)]
        runs = [
            replay(graph.with_durations(_or(replaced[0], graph.dur_ns))),
            job.replay(job.graph.with_durations(_or(replaced[1], job.graph.dur_ns))),
        ]
        own = graph.steps.step[(graph.steps.step == fold) | (by == "rank")]
        steps.append([_step_error(run, real, own) for run in runs])
        kernels.append([_kernel_errors(run, graph, asked) for run in runs])
    count = sum(len(plain) for plain, _ in kernels)
    if not count:
        return None
    plain, rates = (float(np.median(np.concatenate(both))) for both in zip(*kernels, strict=True))
    step_plain, step_rates = np.mean(steps, axis=0).tolist()
    return Held(by, len(steps), count, (step_plain, step_rates), (plain, rates))


def with_donors(durations: I64, tasks: I64, match: I64, test: Mask) -> I64:
    """The median of each held-out kernel's matches outside its fold, -1 for all other tasks.

    Args:
        durations: ns, shape ``(n,)``.
        tasks: kernels, shape ``(k,)``.
        match: number of each kernel's match, shape ``(k,)``.
        test: which kernels are held out, shape ``(k,)``.
    """
    typical = np.full(int(match.max(initial=-1)) + 1, -1, np.int64)
    donors = np.flatnonzero(~test)
    time = durations[tasks]
    order = donors[np.lexsort((time[donors], match[donors]))]
    keys, first, count = np.unique(match[order], return_index=True, return_counts=True)
    low, high = time[order[first + (count - 1) // 2]], time[order[first + count // 2]]
    typical[keys] = low + (high - low) // 2
    result = np.full(len(durations), -1, np.int64)
    result[tasks[test]] = typical[match[test]]
    return result


def beside_communication(graph: JobGraph) -> Mask:
    """Kernels that a communication kernel ran beside for nine tenths of their time, ``(n,)``."""
    arrive = arrivals(graph)
    on_device = devices(graph) >= 0
    comm = np.flatnonzero((arrive >= 0) & on_device)
    kernels = np.flatnonzero((graph.kind == TaskKind.KERNEL) & on_device)
    result = np.zeros(len(graph), bool)
    for rank in np.unique(graph.rank[comm]):
        mine = comm[graph.rank[comm] == rank]
        tasks = kernels[graph.rank[kernels] == rank]
        span = (graph.measured_start_ns[tasks], graph.measured_end_ns[tasks])
        held = (graph.measured_start_ns[arrive[mine]], graph.measured_end_ns[mine])
        busy = integral(*held, np.ones(len(mine)), span, capped=True)
        result[tasks] = busy > OVERLAPPED_ABOVE * np.maximum(graph.dur_ns[tasks], 1)
    return result


def _or(replaced: I64, durations: I64) -> I64:
    return np.where(replaced >= 0, replaced, durations)


def _kernel_errors(run: Timeline, graph: JobGraph, tasks: I64) -> F64:
    """Relative error of the kernels' replayed durations."""
    took = (run.end_ns - run.start_ns)[tasks]
    error: F64 = np.abs(took / np.maximum(graph.dur_ns[tasks], 1) - 1)
    return error


def _matches(graph: JobGraph, tasks: I64, by: str) -> I64:
    """Number of each kernel's match in all folds: the same name, stream and place among as many."""
    step, rank = graph.step[tasks], graph.rank[tasks]
    same: list[np.ndarray] = [
        graph.name[tasks],
        graph.lanes.number[graph.lane[tasks]],
        rank if by == "step" else step,
    ]
    inside = _codes([*same, step if by == "step" else rank])
    order = np.lexsort((graph.measured_start_ns[tasks], inside))
    runs = np.flatnonzero(np.append(True, np.diff(inside[order]) != 0))
    count = np.diff(np.append(runs, len(order)))
    place, several = np.empty(len(tasks), np.int64), np.empty(len(tasks), np.int64)
    place[order] = np.arange(len(tasks)) - np.repeat(runs, count)
    several[order] = np.repeat(count, count)
    return _codes([*same, several, place])


def _codes(columns: list[np.ndarray]) -> I64:
    """One number per distinct row of columns."""
    stacked = np.stack([np.asarray(c, np.int64) for c in columns])
    return np.unique(stacked, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _step_error(run: Timeline, real: Timeline, steps: np.ndarray) -> float:
    """Mean relative error of the named steps."""
    ours, theirs = step_windows(run), step_windows(real)
    chosen = np.isin(theirs.step, steps)
    off = np.abs(ours.dur_ns - theirs.dur_ns)[chosen] / np.maximum(theirs.dur_ns[chosen], 1)
    return float(off.mean())
