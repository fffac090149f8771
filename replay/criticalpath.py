"""The chain of tasks that decides how long a step takes, walked back from its last task.

The same walk, started at any task and stopped at any time, tells why a device was idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numba import njit

from foretrace.replay.engine import counts_from_start
from foretrace.replay.graph import DEVICE_KINDS, I8, I64, JobGraph, TaskKind, Timeline
from foretrace.replay.timeline import step_windows
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


PATH_CLASSES = ("compute", "communication", "copy", "host", "stall", "idle")
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
    links = _links(timeline)
    found = np.empty((_walk(links, walks, np.empty((0, 5), np.int64)), 5), np.int64)
    _walk(links, walks, found)
    return Stretches(
        found[:, 0], found[:, 1], found[:, 2].astype(np.int8), found[:, 3], found[:, 4]
    )


def path_class(graph: JobGraph, task: I64, part: I8) -> I8:
    """Index into PATH_CLASSES of each stretch of a path, shape ``(k,)``."""
    table = np.full(len(TaskKind), PATH_CLASSES.index("idle"), np.int8)
    table[[TaskKind.HOST, TaskKind.CALL, TaskKind.SYNC]] = PATH_CLASSES.index("host")
    table[TaskKind.STALL] = PATH_CLASSES.index("stall")
    table[TaskKind.KERNEL] = PATH_CLASSES.index("compute")
    table[[TaskKind.MEMCPY, TaskKind.MEMSET]] = PATH_CLASSES.index("copy")
    table[TaskKind.COMM] = PATH_CLASSES.index("communication")
    own = table[graph.kind[task]]
    return np.where(part == PathPart.OWN, own, PATH_CLASSES.index("idle")).astype(np.int8)


def path_split(graph: JobGraph, path: CriticalPath) -> dict[str, int]:
    """Nanoseconds of the path per class of PATH_CLASSES; they sum to the step's length.

    ``host`` and ``stall`` are host time copied from the trace; ``idle`` is the constants
    between tasks, unexplained lateness, and time before or after anything recorded.
    """
    classes = path_class(graph, path.task, path.part)
    total = np.zeros(len(PATH_CLASSES), np.int64)
    np.add.at(total, classes, path.segment_ns)
    return dict(zip(PATH_CLASSES, total.tolist(), strict=True))


def _last_task(timeline: Timeline, step: int | None, begin: int, finish: int) -> int:
    """The task whose end is the step's end (or comes nearest before it), -1 for none."""
    graph = timeline.graph
    closing = np.isin(graph.kind, DEVICE_KINDS) | (graph.kind == TaskKind.MARK)
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


def _links(timeline: Timeline) -> I64:
    """Per task its start, when its bound allowed it, what that counts from, and from whom.

    Shape ``(n, 4)``; the source is -1 where nothing bound the task.
    """
    graph, bound = timeline.graph, timeline.bound
    links = np.full((len(graph), 4), -1, np.int64)
    links[:, 0] = timeline.start_ns
    held = np.flatnonzero(bound >= 0)
    edge = bound[held]
    source = graph.pred[edge]
    from_start = counts_from_start(graph)[edge]
    anchor = np.where(from_start, timeline.start_ns[source], timeline.end_ns[source])
    links[held, 1] = anchor + graph.edge_delay_ns[edge]
    links[held, 2] = anchor
    links[held, 3] = source
    return links


@njit(cache=True)
def _walk(links: I64, walks: I64, out: I64) -> int:
    """Walk back from each task of ``walks``; only counts the stretches where ``out`` is empty.

    Args:
        links: shape ``(n, 4)``, see :func:`_links`.
        walks: task, ceiling and floor of each walk, shape ``(walks, 3)``.
        out: origin, task, part, start and length of each stretch, shape ``(k, 5)``.
    """
    fill = len(out) > 0
    count = 0
    for origin in range(len(walks)):
        task, high, low = walks[origin]
        while high > low:
            source = links[task, 3]
            # Going back in time: the task's own time, its lateness, its edge's constant.
            for part in range(3):
                cut = max(low, min(high, links[task, part])) if part == 0 or source >= 0 else low
                if cut < high:
                    if fill:
                        out[count, 0] = origin
                        out[count, 1] = task
                        # Behind a task that nothing bound lies nothing recorded.
                        out[count, 2] = 3 if part == 1 and source < 0 else part
                        out[count, 3] = cut
                        out[count, 4] = high - cut
                    count += 1
                    high = cut
            if source < 0:
                break
            task = source
    return count
