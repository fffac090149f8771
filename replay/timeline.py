"""Timelines as they were measured, and the steps on any timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.engine import counts_from_start
from foretrace.replay.graph import DEVICE_KINDS, I32, I64, JobGraph, TaskKind, Timeline
from foretrace.replay.kernels import latest_by_step, latest_predecessor

IS_DEVICE = np.isin(np.arange(len(TaskKind)), DEVICE_KINDS)
"""Whether a task kind runs on a device, by its number."""


@dataclass(frozen=True, slots=True)
class StepWindows:
    """Job steps on one timeline; arrays of shape ``(steps,)``.

    Attributes:
        step: step number.
        start_ns: earliest host mark of any rank.
        end_ns: the latest of the host marks and of the ends of device tasks launched inside,
            over all ranks.
    """

    step: I32
    start_ns: I64
    end_ns: I64

    @property
    def dur_ns(self) -> I64:
        """Length of each step, ns."""
        return self.end_ns - self.start_ns


def measured(graph: JobGraph) -> Timeline:
    """The timeline as it was recorded, on the aligned clock."""
    _, bound = latest_predecessor(
        graph.measured_start_ns,
        graph.measured_end_ns,
        graph.pred_ptr,
        graph.pred,
        counts_from_start(graph),
        graph.edge_delay_ns,
    )
    return Timeline(graph, graph.measured_start_ns, graph.measured_end_ns, bound, "measured")


def step_windows(timeline: Timeline) -> StepWindows:
    """The job's steps: from the earliest mark of any rank to the last mark or device end."""
    graph = timeline.graph
    steps = np.unique(graph.steps.step)
    row = np.searchsorted(steps, graph.steps.step)
    start = np.full(len(steps), np.iinfo(np.int64).max)
    end = np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(start, row, timeline.start_ns[graph.steps.begin])
    np.maximum.at(end, row, timeline.end_ns[graph.steps.end])
    if len(steps):
        place = np.full(int(steps[-1]) - int(steps[0]) + 1, -1, np.int64)
        place[steps - steps[0]] = np.arange(len(steps))
        tasks = (graph.kind, graph.step)
        latest_by_step(timeline.end_ns, tasks, IS_DEVICE, place, int(steps[0]), end)
    return StepWindows(steps.astype(np.int32), start, end)


def step_time(windows: StepWindows) -> float:
    """Mean time of a step, ns; where steps overlap the common time counts once.

    A host that runs ahead of its device opens the next step before the last one has ended;
    the length of such windows says little, their union says how fast the job goes.
    """
    if not len(windows.step):
        return 0.0
    before = np.maximum.accumulate(windows.end_ns)[:-1]
    begin = windows.start_ns.copy()
    begin[1:] = np.maximum(begin[1:], before)
    return float(np.maximum(windows.end_ns - begin, 0).sum()) / len(windows.step)
