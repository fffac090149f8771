"""What the length of a step is made of: its critical path by rank and by kind of work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrace.analysis.intervals import total_by
from foretrace.replay.criticalpath import (
    PATH_CLASSES,
    CriticalPath,
    PathPart,
    critical_path,
    path_class,
    path_split,
)
from foretrace.replay.graph import I8, JobGraph, Timeline
from foretrace.replay.timeline import step_windows

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["critical_path", "critical_path_table", "critical_path_tasks", "host_share"]


def critical_path_table(timeline: Timeline) -> pd.DataFrame:
    """The critical path of each step, split by the rank it runs through.

    Returns:
        ``step, rank, total_ns, compute_ns, communication_ns, copy_ns, host_ns, stall_ns,
        idle_ns``; the rows of a step add up to its length exactly. ``idle`` is constants
        between tasks, unexplained lateness and time outside of the record; rank -1 has the
        time that belongs to no task.
    """
    import pandas as pd

    graph = timeline.graph
    tables = []
    for step in step_windows(timeline).step.tolist():
        path = critical_path(timeline, step)
        rank = np.where(path.task >= 0, graph.rank[path.task], -1)
        ranks, row = np.unique(rank, return_inverse=True)
        cell = row * len(PATH_CLASSES) + path_class(graph, path.task, path.part)
        sums = total_by(cell, path.segment_ns, len(ranks) * len(PATH_CLASSES))
        split = sums.reshape(len(ranks), len(PATH_CLASSES))
        head = {"step": step, "rank": ranks, "total_ns": split.sum(axis=1)}
        columns = {f"{name}_ns": split[:, i] for i, name in enumerate(PATH_CLASSES)}
        tables.append(pd.DataFrame(head | columns))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def host_share(graph: JobGraph, path: CriticalPath) -> float:
    """Share of the path that is host time copied from the trace, 0 to 1."""
    split = path_split(graph, path)
    return (split["host"] + split["stall"]) / max(sum(split.values()), 1)


def critical_path_tasks(timeline: Timeline, step: int | None = None) -> pd.DataFrame:
    """What lies on the critical path, by name, longest first.

    Returns:
        ``name, class, rank, count, path_ns, share`` where ``share`` is of the step.
    """
    import pandas as pd

    graph = timeline.graph
    path = critical_path(timeline, step)
    own = (path.part == PathPart.OWN) & (path.task >= 0)
    kind: I8 = path_class(graph, path.task, path.part)[own]
    task = path.task[own]
    table = pd.DataFrame(
        {
            "name": graph.name[task],
            "class": kind,
            "rank": graph.rank[task],
            "count": 1,
            "path_ns": path.segment_ns[own],
        }
    )
    table = table.groupby(["name", "class", "rank"], as_index=False).sum()
    table["name"] = [graph.names[i] for i in table["name"]]
    table["class"] = [PATH_CLASSES[i] for i in table["class"]]
    table["share"] = table["path_ns"] / max(path.end_ns - path.start_ns, 1)
    return table.sort_values("path_ns", ascending=False, kind="stable", ignore_index=True)
