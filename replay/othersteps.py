"""A step replayed with the durations of the recording's other steps.

What a replay copies it cannot get wrong, so a step is predicted without its own durations: every
task takes what its counterparts took in the other steps, on the mean. The steps before it keep
theirs, since what the device still has to do when a step begins is part of the question. Inputs
remain: operations whose other members were not recorded keep their recorded times, waiting
included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.engine import replay
from foretrace.replay.graph import F64, I64, EdgeKind, JobGraph, TaskKind
from foretrace.replay.timeline import IS_DEVICE, measured, step_windows

ANCHORS = (TaskKind.CALL, TaskKind.SYNC, TaskKind.MARK)
"""Host tasks that recur in every step; the time up to the next one belongs to them."""

BETWEEN = (TaskKind.HOST, TaskKind.STALL)

MIN_STEPS = 3


@dataclass(frozen=True, slots=True)
class OtherSteps:
    """One step, predicted from the others.

    Attributes:
        step: step number.
        measured_ns: its recorded length.
        replayed_ns: the replay's with the others' durations.
        mean_ns: the mean length of the other steps: the guess to beat.
    """

    step: int
    measured_ns: int
    replayed_ns: int
    mean_ns: int

    @property
    def error(self) -> float:
        """(replayed - measured) / measured."""
        return self.replayed_ns / max(self.measured_ns, 1) - 1

    @property
    def mean_error(self) -> float:
        """The same for the mean of the other steps."""
        return self.mean_ns / max(self.measured_ns, 1) - 1


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Tasks of one step that recur in others, in order of lane and place.

    Attributes:
        task: task numbers.
        label: lane, kind and name of each, shape ``(tasks, 3)``.
        cost_ns: its duration and, on the host, what follows up to the next such task.
    """

    task: I64
    label: np.ndarray
    cost_ns: F64


def from_other_steps(graph: JobGraph) -> list[OtherSteps]:
    """Predict each step of the largest set of steps with one task sequence from the others.

    Returns:
        One entry per step; none where fewer than three steps have the same tasks in the same
        order.
    """
    real = step_windows(measured(graph))
    anchors = np.isin(graph.kind, ANCHORS)
    meeting = anchors | _meetings(graph)
    # Where threads meet counts too, if it is the same in as many steps.
    plain = _alike({int(s): _sequence(graph, int(s), anchors) for s in real.step})
    family = _alike({int(s): _sequence(graph, int(s), meeting) for s in real.step})
    anchors, family = (anchors, plain) if len(family) < len(plain) else (meeting, family)
    if len(family) < MIN_STEPS:
        return []
    length = dict(zip(real.step.tolist(), real.dur_ns.tolist(), strict=True))
    result = []
    for step in sorted(family):
        others = [family[s] for s in family if s != step]
        durations = _durations(graph, anchors & (graph.step == step), family[step], others)
        windows = step_windows(replay(graph, durations))
        replayed = int(windows.dur_ns[windows.step == step][0])
        mean = round(float(np.mean([length[s] for s in family if s != step])))
        result.append(OtherSteps(step, length[step], replayed, mean))
    return result


def is_input(graph: JobGraph) -> np.ndarray:
    """Operations that still hold waiting for ranks that were not recorded, shape ``(n,)``."""
    alone: np.ndarray = (graph.kind == TaskKind.COMM) & (graph.collective < 0)
    return alone


def _sequence(graph: JobGraph, step: int, anchors: np.ndarray) -> _Sequence:
    mine = graph.step == step
    host = mine & anchors
    recurs = np.flatnonzero(host | (mine & IS_DEVICE[graph.kind]))
    order = np.lexsort((recurs, graph.measured_start_ns[recurs], graph.lane[recurs]))
    task = recurs[order]
    cost = graph.dur_ns.astype(np.float64)
    chained = np.flatnonzero(mine & np.isin(graph.kind, BETWEEN) & ~anchors & ~_woken(graph))
    np.add.at(cost, _anchor_before(graph, host, chained), graph.dur_ns[chained])
    # A mark is named after its step.
    name = np.where(graph.kind[task] == TaskKind.MARK, -1, graph.name[task])
    label = np.stack([graph.lane[task], graph.kind[task], name], axis=1)
    return _Sequence(task, label, cost[task])


def _woken(graph: JobGraph) -> np.ndarray:
    """Wake-ups of threads: they come and go between steps and keep their own times."""
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    result = np.zeros(len(graph), bool)
    result[target[graph.edge_kind == EdgeKind.THREAD]] = True
    return result


def _meetings(graph: JobGraph) -> np.ndarray:
    """Host tasks of no length at which a thread gives way to another one or goes on."""
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    result = np.zeros(len(graph), bool)
    result[target[graph.edge_kind == EdgeKind.SYNC]] = True
    result[graph.pred[graph.edge_kind == EdgeKind.THREAD]] = True
    result[target[graph.lane[graph.pred] != graph.lane[target]]] = True
    result &= (graph.kind == TaskKind.HOST) & (graph.dur_ns == 0)
    return result


def _anchor_before(graph: JobGraph, anchors: np.ndarray, tasks: I64) -> I64:
    """The last anchor before each host task on its lane; the task itself without one."""
    at = np.flatnonzero(anchors)
    at = at[np.lexsort((at, graph.measured_start_ns[at], graph.lane[at]))]
    result = tasks.copy()
    for lane in np.unique(graph.lane[tasks]):
        own = at[graph.lane[at] == lane]
        rows = np.flatnonzero(graph.lane[tasks] == lane)
        place = np.searchsorted(
            graph.measured_start_ns[own], graph.measured_start_ns[tasks[rows]], side="right"
        )
        known = place > 0
        result[rows[known]] = own[place[known] - 1]
    return result


def _alike(sequences: dict[int, _Sequence]) -> dict[int, _Sequence]:
    """The largest set of steps whose tasks are the same in the same order."""
    families: list[dict[int, _Sequence]] = []
    for step, sequence in sequences.items():
        for family in families:
            if np.array_equal(next(iter(family.values())).label, sequence.label):
                family[step] = sequence
                break
        else:
            families.append({step: sequence})
    return max(families, key=len, default={})


def _durations(
    graph: JobGraph, anchors: np.ndarray, own: _Sequence, others: list[_Sequence]
) -> I64:
    """The graph's durations, those of one step, whose anchors are given, from other steps."""
    dur = graph.dur_ns.copy()
    mine = graph.step == graph.step[own.task[0]]
    at = np.flatnonzero(mine & np.isin(graph.kind, BETWEEN) & ~anchors & ~_woken(graph))
    moved = at[_anchor_before(graph, anchors, at) != at]
    dur[moved] = 0
    mean = np.mean([o.cost_ns for o in others], axis=0)
    changed = ~is_input(graph)[own.task]
    dur[own.task[changed]] = np.rint(mean[changed]).astype(np.int64)
    return dur
