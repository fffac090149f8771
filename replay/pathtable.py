"""What the critical path is made of by class of task, and how near every other class is to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.criticalpath import PathPart, critical_path
from foretrace.replay.graph import Timeline
from foretrace.replay.slack import UNBOUNDED_NS, slack
from foretrace.replay.taskclasses import classify


@dataclass(frozen=True, slots=True)
class OnPath:
    """One class of tasks.

    Attributes:
        name: name of the class; ``(other)`` is what belongs to none: launch latencies, gaps,
            what nothing recorded explains and, by collective, all work that is none.
        path_ns: its time on the critical path; all classes together make up the path.
        share: of the path.
        slack_ns: the least slack of any of its tasks: how much longer the nearest one to the path
            may take before the end moves. 0 on the path, -1 where no end depends on the class.
    """

    name: str
    path_ns: int
    share: float
    slack_ns: int


OTHER = "(other)"


def path_table(timeline: Timeline, by: str = "kind", step: int | None = None) -> list[OnPath]:
    """The critical path across ranks by class of task.

    Args:
        timeline: a replay or what-if.
        by: ``kind``, ``rank``, ``layer`` (prefix of the name) or ``collective`` (kind and group).
        step: one step; None for the whole run.

    Returns:
        Rows, most of the path first, then the least slack first.

    Raises:
        GraphError: the timeline has no such step.
        ScenarioError: no such way to sort tasks.
    """
    graph, classes = timeline.graph, classify(timeline.graph, by)
    path, room = critical_path(timeline, step), slack(timeline, step).longer_ns
    own = (path.part == PathPart.OWN) & (path.task >= 0)
    # The place behind the last class takes what belongs to none.
    label = np.where(own, classes.label[path.task], -1)
    on_path = np.zeros(len(classes.names) + 1, np.int64)
    np.add.at(on_path, label, path.segment_ns)
    least = np.full(len(classes.names) + 1, UNBOUNDED_NS)
    counted = (classes.label >= 0) & (timeline.end_ns > timeline.start_ns)
    if step is not None:
        counted &= graph.step == step
    np.minimum.at(least, classes.label[counted], room[counted])
    used = np.zeros(len(on_path), bool)
    used[classes.label[counted]] = True
    used |= on_path > 0
    whole = max(int(path.segment_ns.sum()), 1)
    order = np.lexsort((np.arange(len(least)), least, -on_path))
    names = (*classes.names, OTHER)
    return [
        OnPath(
            names[i],
            int(on_path[i]),
            float(on_path[i] / whole),
            int(least[i]) if least[i] < UNBOUNDED_NS else -1,
        )
        for i in order[used[order]].tolist()
    ]
