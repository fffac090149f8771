"""What every rule looks at, and what it proposes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.intervals import F64
from foretrace.replay.criticalpath import PathPart, critical_path
from foretrace.replay.engine import is_sorted, replay, sort_tasks
from foretrace.replay.graph import I64, EdgeKind, JobGraph, TaskKind, Timeline
from foretrace.replay.timeline import StepWindows, step_time, step_windows

NEVER_NS = -(1 << 60)
"""Delay of an edge that no longer holds anything back."""


def _no_tasks() -> I64:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that may hold the step back, and the job without it.

    Attributes:
        kind: short name of the rule.
        title: one line for people.
        ranks: ranks it concerns.
        tasks: tasks that would change, shape ``(k,)``.
        dur_ns: their durations without the cause, shape ``(k,)``.
        gone: waits that would go, as indices into ``graph.pred``.
        source: tasks that ``target`` would wait for instead, shape ``(l,)``, on the device.
        target: tasks that would wait, shape ``(l,)``, each behind its source in the graph.
        evidence: sentences with the numbers.
        action: what to do next.
        confidence: 3 the record shows it directly, 2 a bound, 1 a guess to be checked.
    """

    kind: str
    title: str
    ranks: tuple[int, ...]
    tasks: I64 = field(default_factory=_no_tasks)
    dur_ns: I64 = field(default_factory=_no_tasks)
    gone: I64 = field(default_factory=_no_tasks)
    source: I64 = field(default_factory=_no_tasks)
    target: I64 = field(default_factory=_no_tasks)
    evidence: tuple[str, ...] = ()
    action: str = ""
    confidence: int = 2

    def removed_from(self, graph: JobGraph) -> JobGraph:
        """The job without this cause."""
        dur = graph.dur_ns.copy()
        dur[self.tasks] = self.dur_ns
        if not len(self.gone):
            return replace(graph, dur_ns=dur)
        delay = graph.edge_delay_ns.copy()
        delay[self.gone] = NEVER_NS
        owner = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
        owner = np.append(owner, self.target)
        order = np.argsort(owner, kind="stable")
        kind = np.append(graph.edge_kind, np.full(len(self.target), EdgeKind.EVENT, np.int8))
        count = np.bincount(owner, minlength=len(graph))
        return replace(
            graph,
            dur_ns=dur,
            pred_ptr=np.concatenate([[0], np.cumsum(count)]).astype(np.int64),
            pred=np.append(graph.pred, self.source)[order],
            edge_kind=kind[order],
            edge_delay_ns=np.append(delay, np.zeros(len(self.target), np.int64))[order],
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A replayed job and what its critical path consists of.

    Attributes:
        graph: the job graph, tasks sorted.
        timeline: its replay.
        windows: its steps.
        step_ns: mean time of a step, overlapping steps counted once.
        path_ns: time that each task has on the critical path, per step, shape ``(n,)``.
        path_edge: edges that bound a task on the critical path, shape ``(m,)``, bool.
    """

    graph: JobGraph
    timeline: Timeline
    windows: StepWindows
    step_ns: float
    path_ns: F64
    path_edge: NDArray[np.bool_]

    @property
    def steps(self) -> int:
        """How many steps the job has, at least 1."""
        return max(len(self.windows.step), 1)

    def on_path(self, tasks: I64) -> float:
        """Time of these tasks on the critical path, ns per step: a bound on what they cost."""
        return float(self.path_ns[tasks].sum())

    def per_step(self, tasks: I64) -> float:
        """Their summed duration, ns per step."""
        return float(self.graph.dur_ns[tasks].sum()) / self.steps

    def of_kind(self, *kinds: TaskKind) -> NDArray[np.bool_]:
        """Which tasks are of these kinds, inside steps, shape ``(n,)``."""
        result: NDArray[np.bool_] = np.isin(self.graph.kind, kinds) & self.in_steps
        return result

    @property
    def in_steps(self) -> NDArray[np.bool_]:
        """Which tasks count to a step, shape ``(n,)``."""
        result: NDArray[np.bool_] = np.isin(self.graph.step, self.windows.step)
        return result

    def where(self, task: int) -> str:
        """When and where a task runs, for people to find it in a timeline."""
        start = self.timeline.start_ns[task]
        row = int(np.searchsorted(self.windows.step, self.graph.step[task]))
        row = min(row, len(self.windows.step) - 1)
        into = (start - self.windows.start_ns[row]) / 1e6
        return f"rank {self.graph.rank[task]}, {into:.2f} ms into step {self.windows.step[row]}"


def make_case(graph: JobGraph) -> Case:
    """Replay a job and walk its critical path."""
    graph = graph if is_sorted(graph) else sort_tasks(graph)
    timeline = replay(graph)
    windows = step_windows(timeline)
    path_ns = np.zeros(len(graph), np.float64)
    path_edge = np.zeros(len(graph.pred), bool)
    overlapping = bool((windows.start_ns[1:] < windows.end_ns[:-1]).any())
    for step in [None] if overlapping else windows.step.tolist():
        path = critical_path(timeline, step)
        own = path.part == PathPart.OWN
        np.add.at(path_ns, path.task[own], path.segment_ns[own])
        bound = timeline.bound[path.task[path.task >= 0]]
        path_edge[bound[bound >= 0]] = True
    path_ns /= max(len(windows.step), 1)
    return Case(graph, timeline, windows, step_time(windows), path_ns, path_edge)
