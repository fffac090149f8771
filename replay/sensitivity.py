"""Which work the step time hangs on: its derivative by class of task, from one pass.

If all tasks of a class took the part e longer, the step would take e times its time on the
critical path longer. Where several chains are equally long, the longest step follows the chain
that has most of the class when it grows, and the one that has least when it shrinks; both are
given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.criticalpath import PathPart, critical_path
from foretrace.replay.engine import counts_from_start
from foretrace.replay.graph import I64, JobGraph, Timeline
from foretrace.replay.pathkernels import binding_ancestors, path_range
from foretrace.replay.slack import closing_tasks
from foretrace.replay.taskclasses import TaskClasses, classify

_AT_ONCE = 32  # classes of one pass: bounds its memory


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Derivatives of the time from the first step's begin to the last one's end.

    Divide by ``total_ns`` for elasticities: 0.3 means that 1% more of the class is 0.3% more
    time. Arrays of shape ``(classes,)``, largest first.

    Attributes:
        names: names of the classes.
        grows_ns: what is added per unit of relative growth: a class 1% longer adds 1% of it.
        saves_ns: what is saved per unit of relative shrinkage; less than ``grows_ns`` where other
            chains are equally long, and then any saving ends early.
        constant_ns: launch latencies and gaps on the critical path; with the classes of one way
            to sort all tasks it sums to ``total_ns`` where there is one critical path.
        total_ns: the time itself.
    """

    names: tuple[str, ...]
    grows_ns: I64
    saves_ns: I64
    constant_ns: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class _Binding:
    """The part of a graph in which every edge binds; tasks (k) in topological order."""

    task: I64
    ptr: I64
    pred: I64
    from_start: np.ndarray
    own_ns: I64


def sensitivity(timeline: Timeline, by: str | TaskClasses = "kind", depth: int = 2) -> Sensitivity:
    """Derivative of the job's time with respect to each class of task.

    Args:
        timeline: a replay.
        by: ``kind``, ``rank``, ``layer`` (prefix of the name), ``collective`` (kind and group),
            or classes of one's own.
        depth: parts of the name that make a layer.

    Raises:
        GraphError: the job has no steps.
        ScenarioError: no such way to sort tasks.
    """
    graph = timeline.graph
    classes = classify(graph, by, depth) if isinstance(by, str) else by
    closing = closing_tasks(timeline)
    last = closing[timeline.end_ns[closing] == timeline.end_ns[closing].max()]
    marks = graph.steps.begin
    first = marks[timeline.start_ns[marks] == timeline.start_ns[marks].min()]
    binding = _binding(timeline, np.concatenate([last, first]))
    label = classes.label[binding.task[binding.own_ns > 0]]
    used = np.flatnonzero(np.bincount(label[label >= 0], minlength=len(classes.names)))
    grows, saves = np.zeros(len(used), np.int64), np.zeros(len(used), np.int64)
    for lo in range(0, len(used), _AT_ONCE):
        some = used[lo : lo + _AT_ONCE]
        grows[lo : lo + len(some)], saves[lo : lo + len(some)] = _derivatives(
            binding, classes.label, some, last, first
        )
    order = np.lexsort((used, -saves, -grows))
    total = int(timeline.end_ns[last[0]] - timeline.start_ns[first[0]])
    return Sensitivity(
        tuple(classes.names[i] for i in used[order]),
        grows[order],
        saves[order],
        _constants(timeline),
        total,
    )


def contributions(timeline: Timeline, by: str = "kind", step: int | None = None) -> dict[str, int]:
    """Time that each class of task has on the critical path, ns, longest first.

    Args:
        timeline: measured, replayed or what-if.
        by: as in :func:`sensitivity`.
        step: one step; None for the whole run.

    Raises:
        GraphError: the timeline has no such step.
        ScenarioError: no such way to sort tasks.
    """
    classes = classify(timeline.graph, by)
    path = critical_path(timeline, step)
    own = (path.part == PathPart.OWN) & (path.task >= 0)
    label, time = classes.label[path.task[own]], path.segment_ns[own]
    total = np.zeros(len(classes.names), np.int64)
    np.add.at(total, label[label >= 0], time[label >= 0])
    order = np.argsort(-total, kind="stable")
    return {classes.names[i]: int(total[i]) for i in order if total[i] > 0}


def _derivatives(
    binding: _Binding, label: I64, classes: I64, last: I64, first: I64
) -> tuple[I64, I64]:
    """What growing and shrinking each class does to the end, less what it does to the begin."""
    column = np.searchsorted(classes, label[binding.task])
    column = np.minimum(column, len(classes) - 1)
    column = np.where(classes[column] == label[binding.task], column, -1)
    most, least = path_range(
        binding.own_ns, column, binding.ptr, binding.pred, binding.from_start, len(classes)
    )
    begins = np.searchsorted(binding.task, first)
    # A step begins with the earliest mark: growth moves it by the least of its marks.
    begin_grows, begin_saves = most[begins].min(axis=0), least[begins].max(axis=0)
    ends = np.searchsorted(binding.task, last)
    for row in ends[column[ends] >= 0].tolist():
        most[row, column[row]] += binding.own_ns[row]
        least[row, column[row]] += binding.own_ns[row]
    return most[ends].max(axis=0) - begin_grows, least[ends].min(axis=0) - begin_saves


def _binding(timeline: Timeline, roots: I64) -> _Binding:
    """All edges that bind, in front of the given tasks."""
    graph, from_start = timeline.graph, counts_from_start(timeline.graph)
    wanted = np.zeros(len(graph), bool)
    wanted[roots] = True
    edges = (graph.pred_ptr, graph.pred, from_start, graph.edge_delay_ns)
    binding_ancestors(wanted, (timeline.start_ns, timeline.end_ns), edges)
    task = np.flatnonzero(wanted)
    edge = _edges_into(graph, task)
    target = np.repeat(task, np.diff(graph.pred_ptr)[task])
    source = graph.pred[edge]
    at = np.where(from_start[edge], timeline.start_ns[source], timeline.end_ns[source])
    tight = at + graph.edge_delay_ns[edge] == timeline.start_ns[target]
    edge, target = edge[tight], target[tight]
    ptr = np.zeros(len(task) + 1, np.int64)
    place = np.searchsorted(task, target)
    np.cumsum(np.bincount(place, minlength=len(task)), out=ptr[1:])
    pred = np.searchsorted(task, graph.pred[edge])
    own = (timeline.end_ns - timeline.start_ns)[task]
    return _Binding(task, ptr, pred, from_start[edge], own)


def _edges_into(graph: JobGraph, tasks: I64) -> I64:
    """Edges that lead to the given tasks, task by task."""
    first = graph.pred_ptr[tasks]
    count = graph.pred_ptr[tasks + 1] - first
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    edges: I64 = np.repeat(first, count) + within
    return edges


def _constants(timeline: Timeline) -> int:
    path = critical_path(timeline)
    return int(path.segment_ns[path.part != PathPart.OWN].sum())
