"""What a replay of a real recording must satisfy, as printed checks with their bars."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.accuracy import Assessment
from foretrace.replay.graph import JobGraph, TaskKind
from foretrace.traces.schema import COLLECTIVE_KINDS

STEP_ERROR, LATE, EARLY, NULL_ERROR = 0.01, 0.02, 0.005, 0.0005
WAITING = 0.03
RECOVERED = 0.05
LEFT_EARLY = 0.05

SEND_RECV = COLLECTIVE_KINDS.index("send_recv")


@dataclass(frozen=True)
class RealJob:
    """A recording with 8 ranks, and what is known about it beforehand.

    Attributes:
        source: where it lies under the traces.
        layout: sizes of its mesh axes, innermost first.
        start_error_ns: the median start error of device tasks must stay below this.
    """

    source: str
    layout: tuple[int, ...]
    start_error_ns: int


JOBS = {
    "A800 2x2x2": RealJob("megatron-tp2pp2dp2-a800/kineto", (2, 2, 2), 100_000),
    "A100 tp8": RealJob("megatron-tp8-a100/kineto", (8,), 5_000),
    "V100 DLRM": RealJob("dlrm-8xv100/dlrm_kineto.tar.gz", (8,), 20_000),
}


@dataclass(frozen=True)
class Check:
    """One printed check.

    Attributes:
        name: what is checked.
        value: what was found.
        bar: what it may be at most.
        unit: how value and bar are printed: "%", "us" or "".
    """

    name: str
    value: float
    bar: float
    unit: str

    @property
    def passed(self) -> bool:
        return self.value <= self.bar

    def text(self) -> str:
        scale = {"%": 100.0, "us": 1e-3, "": 1.0}[self.unit]
        return f"{self.name} {scale * self.value:.3g}{self.unit}"


def checks(job: RealJob, a: Assessment) -> list[Check]:
    """All checks of one replay."""
    graph = a.build.graph
    waits = [
        abs(r.replayed_waiting_ns - r.waiting_ns) / r.waiting_ns for r in a.ranks if r.waiting_ns
    ]
    return [
        Check("step error", max(abs(s.error) for s in a.steps), STEP_ERROR, "%"),
        Check("late", max(s.unexplained for s in a.steps), LATE, "%"),
        Check("early", max(s.unexplained_early for s in a.steps), EARLY, "%"),
        Check("null replay", max(abs(s.null_error) for s in a.steps), NULL_ERROR, "%"),
        Check("start error", a.start_error_ns, job.start_error_ns, "us"),
        Check("waiting", max(waits, default=0.0), WAITING, "%"),
        Check("messages left early", left_early(graph), LEFT_EARLY, "%"),
        Check("groups off the layout", len(off_layout(graph, job.layout)), 0, ""),
        Check("operations alone", sum(a.build.unmatched.values()), 0, ""),
    ]


def left_early(graph: JobGraph) -> float:
    """Share of fused sends and receives that ended before their peer had come."""
    fused = np.flatnonzero(graph.collectives.kind == SEND_RECV)
    arrive = np.flatnonzero((graph.kind == TaskKind.ARRIVE) & (graph.collective >= 0))
    last = np.full(len(graph.collectives.kind), np.iinfo(np.int64).min)
    np.maximum.at(last, graph.collective[arrive], graph.measured_start_ns[arrive])
    comm = np.flatnonzero((graph.kind == TaskKind.COMM) & np.isin(graph.collective, fused))
    if not len(comm):
        return 0.0
    return float((graph.measured_end_ns[comm] < last[graph.collective[comm]]).mean())


def groups_used(graph: JobGraph) -> set[tuple[int, ...]]:
    """Ranks of every group that the replay lets meet."""
    arrive = np.flatnonzero((graph.kind == TaskKind.ARRIVE) & (graph.collective >= 0))
    order = arrive[np.lexsort((graph.rank[arrive], graph.collective[arrive]))]
    _, first = np.unique(graph.collective[order], return_index=True)
    return {tuple(rows.tolist()) for rows in np.split(graph.rank[order], first[1:]) if len(rows)}


def off_layout(graph: JobGraph, layout: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Groups that are not lines, planes ... of the job's mesh."""
    return {g for g in groups_used(graph) if not is_aligned(g, layout)}


def is_aligned(ranks: tuple[int, ...], layout: tuple[int, ...]) -> bool:
    """Whether ranks fill some axes of the mesh and share a place on all others."""
    place = np.stack(np.unravel_index(np.array(ranks), layout[::-1]))
    extent = [len(np.unique(axis)) for axis in place]
    whole = all(e in (1, size) for e, size in zip(extent, layout[::-1], strict=True))
    return whole and int(np.prod(extent)) == len(ranks)
