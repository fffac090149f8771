"""The chain of tasks that decides how long a step takes, walked back from its last task.

The same walk, started at any task and stopped at any time, tells why a device was idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from foretrace.replay.engine import FROM_START
from foretrace.replay.graph import I8, I64, JobGraph, TaskKind, Timeline
from foretrace.replay.pathkernels import walk_chains
from foretrace.replay.timeline import IS_DEVICE, step_windows
from foretrace.traces.errors import GraphError


class PathPart(IntEnum):
    """What a stretch of a path stands for."""

    OWN = 0  # the task runs
    LATE = 1  # it could have started and did not: unexplained, only on measured timelines
    DELAY = 2  # constant of the edge that bound the task: launch latency, gap between kernels
    OUTSIDE = 3  # nothing recorded stands before it (or, at the end of a step, after it)


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches of time found by walking back from several tasks; arrays of shape ``(k,)``.

    Attributes:
        origin: which of the walks it belongs to.
        task: the task it is spent on; for DELAY and LATE the task that had to wait.
        part: PathPart.
        start_ns: when it begins.
        dur_ns: how long it lasts.
    """

    origin: I64
    task: I64
    part: I8
    start_ns: I64
    dur_ns: I64


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """What a step's length is made of, in time order; arrays of shape ``(k,)``.

    The segments follow each other without a hole from ``start_ns`` to ``end_ns``.

    Attributes:
        task: the task a segment is spent on, -1 for time after the last task.
        part: PathPart of each segment.
        segment_start_ns: when each segment begins.
        segment_ns: length of each segment; they sum to ``end_ns - start_ns``.
        start_ns: begin of the step, ns.
        end_ns: end of the step, ns.
    """

    task: I64
    part: I8
    segment_start_ns: I64
    segment_ns: I64
    start_ns: int
    end_ns: int


PATH_CLASSES = ("compute", "communication", "copy", "host", "stall", "skew", "idle")
"""What :func:`path_class` tells apart."""


def critical_path(timeline: Timeline, step: int | None = None) -> CriticalPath:
    """Walk back from the last task of a step along the edges that bound each start.

    Args:
        timeline: measured, replayed or what-if.
        step: step number; None for the whole run, from the first step's begin to the last's end.

    Raises:
        GraphError: the timeline has no such step.
    """
    windows = step_windows(timeline)
    chosen = np.ones(len(windows.step), bool) if step is None else windows.step == step
    if not chosen.any():
        raise GraphError(f"no step {step} in the timeline; steps are {windows.step.tolist()}")
    begin, finish = int(windows.start_ns[chosen].min()), int(windows.end_ns[chosen].max())
    last = _last_task(timeline, step, begin, finish)
    top = int(timeline.end_ns[last]) if last >= 0 else begin
    walk = walk_back(timeline, np.array([last]), np.array([top]), np.array([begin]))
    tail = np.array([finish - top] if finish > top else [], np.int64)
    return CriticalPath(
        np.append(walk.task[::-1], np.full(len(tail), -1)),
        np.append(walk.part[::-1], np.full(len(tail), PathPart.OUTSIDE, np.int8)),
        np.append(walk.start_ns[::-1], np.full(len(tail), top)),
        np.append(walk.dur_ns[::-1], tail),
        begin,
        finish,
    )


def walk_back(timeline: Timeline, task: I64, ceiling_ns: I64, floor_ns: I64) -> Stretches:
    """Explain the time between floor and ceiling before each given task, latest first.

    Args:
        timeline: measured, replayed or what-if.
        task: where each walk begins, shape ``(walks,)``.
        ceiling_ns: where each walk begins; a task's start leaves the task itself out.
        floor_ns: where each walk ends.

    Returns:
        Stretches that cover each walk's time exactly once, walk after walk, going back in time.
    """
    walks = np.stack([task, ceiling_ns, floor_ns], axis=1).astype(np.int64)
    graph = timeline.graph
    times = (timeline.start_ns, timeline.end_ns, timeline.bound)
    edges = (graph.pred, graph.edge_kind, graph.edge_delay_ns, FROM_START)
    found = np.empty((walk_chains(times, edges, walks, np.empty((0, 5), np.int64)), 5), np.int64)
    walk_chains(times, edges, walks, found)
    return Stretches(
        found[:, 0], found[:, 1], found[:, 2].astype(np.int8), found[:, 3], found[:, 4]
    )


def path_class(graph: JobGraph, task: I64, part: I8) -> I8:
    """Index into PATH_CLASSES of each stretch of a path, shape ``(k,)``."""
    table = np.full(len(TaskKind), PATH_CLASSES.index("idle"), np.int8)
    table[[TaskKind.HOST, TaskKind.CALL, TaskKind.SYNC]] = PATH_CLASSES.index("host")
    table[TaskKind.STALL] = PATH_CLASSES.index("stall")
    table[TaskKind.SKEW] = PATH_CLASSES.index("skew")
    table[TaskKind.KERNEL] = PATH_CLASSES.index("compute")
    table[[TaskKind.MEMCPY, TaskKind.MEMSET]] = PATH_CLASSES.index("copy")
    table[TaskKind.COMM] = PATH_CLASSES.index("communication")
    own = table[graph.kind[task]]
    return np.where(part == PathPart.OWN, own, PATH_CLASSES.index("idle")).astype(np.int8)


def path_split(graph: JobGraph, path: CriticalPath) -> dict[str, int]:
    """Nanoseconds of the path per class of PATH_CLASSES; they sum to the step's length.

    ``host`` and ``stall`` are host time copied from the trace, ``skew`` is how late a rank entered
    the recording, also an input; ``idle`` is the constants between tasks, unexplained lateness,
    and time before or after anything recorded.
    """
    classes = path_class(graph, path.task, path.part)
    total = np.zeros(len(PATH_CLASSES), np.int64)
    np.add.at(total, classes, path.segment_ns)
    return dict(zip(PATH_CLASSES, total.tolist(), strict=True))


def _last_task(timeline: Timeline, step: int | None, begin: int, finish: int) -> int:
    """The task whose end is the step's end (or comes nearest before it), -1 for none."""
    graph = timeline.graph
    closing = IS_DEVICE[graph.kind] | (graph.kind == TaskKind.MARK)
    inside = closing & (timeline.end_ns <= finish) & (timeline.end_ns >= begin)
    if step is not None:
        inside &= graph.step == step
        ends = graph.steps.end[graph.steps.step == step]
        inside[ends] = timeline.end_ns[ends] <= finish
    tasks = np.flatnonzero(inside)
    if not len(tasks):
        return -1
    end = timeline.end_ns[tasks]
    latest = tasks[end == end.max()]
    # Of several tasks that end together the longest is work and not a mark.
    return int(latest[np.argmax((timeline.end_ns - timeline.start_ns)[latest])])
