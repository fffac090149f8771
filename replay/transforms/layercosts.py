"""What the layers of a model cost on the host, and what lies between them, from a recording.

Layers are found by their annotations: one pattern for the forward and one for the backward pass,
each with one group for the layer's number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import I8, I32, I64, JobGraph, TaskKind
from foretrace.replay.schedule.order import Phase
from foretrace.traces.errors import ScenarioError

FORWARD = r"forward layer (\d+)$"
BACKWARD = r"backward layer (\d+)$"

_OWN = (TaskKind.HOST, TaskKind.STALL)
_BESIDE = (TaskKind.CALL, TaskKind.SYNC, TaskKind.MARK)


@dataclass(frozen=True, slots=True)
class LayerRuns:
    """Runs of layers, sorted by rank, step and order; arrays of shape ``(runs,)``.

    Attributes:
        rank: rank.
        step: step.
        phase: FORWARD or BACKWARD.
        layer: number of the layer.
        task: its (first) task.
        dur_ns: its time.
        before_ns: host work between the run before it, or the step's begin, and this one;
            calls and waiting left out.
        first: the first run of its rank and step, bool.
        inside: the run before it was of the same phase and the layer beside, bool.
    """

    rank: I32
    step: I32
    phase: I8
    layer: I64
    task: I64
    dur_ns: I64
    before_ns: I64
    first: np.ndarray
    inside: np.ndarray


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Typical times, ns.

    Attributes:
        run_ns: (phase, layer) -> its time.
        between_ns: phase -> host work between two layers.
        enter_ns: phase -> host work before the first layer of a pass.
        begin_ns: host work before the first layer of a step.
        end_ns: host work after the last layer of a step.
        call_ns: a call that posts communication.
        wait_ns: a wait with nothing to wait for.
    """

    run_ns: dict[tuple[Phase, int], float]
    between_ns: dict[Phase, float]
    enter_ns: dict[Phase, float]
    begin_ns: float
    end_ns: float
    call_ns: float
    wait_ns: float

    @property
    def layers(self) -> list[int]:
        """Numbers of all layers, in order."""
        return sorted({layer for _, layer in self.run_ns})

    def named(self, phase: Phase, layer: int) -> str:
        """What to call a run."""
        return f"{phase.name.lower()} layer {layer}"


def layer_runs(graph: JobGraph, forward: str = FORWARD, backward: str = BACKWARD) -> LayerRuns:
    """All runs of layers in whole steps.

    Raises:
        ScenarioError: no task has such a name.
    """
    phase_of, layer_of = _by_name(graph.names, forward, backward)
    tasks = _host_tasks(graph)
    is_run = phase_of[graph.name[tasks]] >= 0
    if not is_run.any():
        raise ScenarioError(
            f"no host work is named like {forward!r} or {backward!r}; annotate the layers "
            "(torch.profiler.record_function) or give patterns that fit"
        )
    own = np.where(np.isin(graph.kind[tasks], _OWN) & ~is_run, graph.dur_ns[tasks], 0)
    total = np.append(0, np.cumsum(own))
    at = np.flatnonzero(is_run)
    run = tasks[at]
    rank, step, phase = graph.rank[run], graph.step[run], phase_of[graph.name[run]]
    layer = layer_of[graph.name[run]]
    starts = _starts(graph.rank[tasks], graph.step[tasks])
    first = np.append(True, (rank[1:] != rank[:-1]) | (step[1:] != step[:-1]))
    since = np.where(first, starts[at], np.append(0, at[:-1]))
    near = np.append(False, (phase[1:] == phase[:-1]) & (abs(np.diff(layer)) == 1))
    return LayerRuns(
        rank, step, phase.astype(np.int8), layer, run, graph.dur_ns[run],
        total[at] - total[since], first, near & ~first,
    )  # fmt: skip


def layer_costs(graph: JobGraph, forward: str = FORWARD, backward: str = BACKWARD) -> LayerCosts:
    """Medians over all ranks and steps.

    Raises:
        ScenarioError: no task has such a name, or a layer lacks one of the two passes.
    """
    runs = layer_runs(graph, forward, backward)
    code = runs.phase.astype(np.int64) << 32 | runs.layer
    alike, which = np.unique(code, return_inverse=True)
    middle = [float(np.median(runs.dur_ns[which == i])) for i in range(len(alike))]
    keys = [(Phase(int(c) >> 32), int(c) & 0xFFFFFFFF) for c in alike]
    once = [layer for _, layer in keys if sum(other == layer for _, other in keys) < 2]
    if once:
        raise ScenarioError(
            f"layer {once[0]} was recorded in one of forward and backward only; annotate both"
        )
    phases = (Phase.FORWARD, Phase.BACKWARD)
    enters = ~runs.first & ~runs.inside
    return LayerCosts(
        dict(zip(keys, middle, strict=True)),
        {p: _middle(runs.before_ns[runs.inside & (runs.phase == p)]) for p in phases},
        {p: _middle(runs.before_ns[enters & (runs.phase == p)]) for p in phases},
        _middle(runs.before_ns[runs.first]),
        _middle(_behind(graph, runs)),
        _middle(graph.dur_ns[graph.kind == TaskKind.CALL]),
        _middle(graph.dur_ns[graph.kind == TaskKind.SYNC]),
    )


def _behind(graph: JobGraph, runs: LayerRuns) -> I64:
    """Host work behind the last run of each rank and step, ns."""
    tasks = _host_tasks(graph)
    own = np.where(np.isin(graph.kind[tasks], _OWN), graph.dur_ns[tasks], 0)
    total = np.append(0, np.cumsum(own))
    last = runs.task[np.append(runs.first[1:], True)]
    place = np.full(len(graph), -1, np.int64)
    place[tasks] = np.arange(len(tasks))
    starts = _starts(graph.rank[tasks], graph.step[tasks])
    ends = np.append(np.unique(starts)[1:], len(tasks))
    at = place[last]
    stop = ends[np.searchsorted(ends, at, side="right")]
    behind: I64 = total[stop] - total[at + 1]
    return behind


def _host_tasks(graph: JobGraph) -> I64:
    """Host tasks inside steps on the threads with step marks, by rank and order."""
    lanes = np.unique(graph.lane[graph.steps.begin])
    wanted = np.isin(graph.lane, lanes) & np.isin(graph.kind, (*_OWN, *_BESIDE))
    tasks = np.flatnonzero(wanted & (graph.step >= 0))
    by_order: I64 = tasks[np.lexsort((tasks, graph.step[tasks], graph.rank[tasks]))]
    return by_order


def _starts(rank: I32, step: I32) -> I64:
    """Where the rank and step of each task begin, shape ``(tasks,)``."""
    new = np.append(True, (rank[1:] != rank[:-1]) | (step[1:] != step[:-1]))
    starts: I64 = np.maximum.accumulate(np.where(new, np.arange(len(rank)), 0))
    return starts


def _by_name(names: tuple[str, ...], forward: str, backward: str) -> tuple[I64, I64]:
    """Phase and layer of each name, -1 for those of no layer."""
    phase, layer = (np.full(len(names), -1, np.int64) for _ in range(2))
    for one, pattern in ((Phase.FORWARD, forward), (Phase.BACKWARD, backward)):
        found = [re.search(pattern, name) for name in names]
        for i, match in enumerate(found):
            if match:
                phase[i], layer[i] = one, int(match[1])
    return phase, layer


def _middle(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else 0.0
