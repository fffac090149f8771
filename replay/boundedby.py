"""What holds a job back: the work and the rank that most of its critical path is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.criticalpath import PATH_CLASSES, critical_path, path_class
from foretrace.replay.graph import Timeline


@dataclass(frozen=True, slots=True)
class BoundedBy:
    """What most of a critical path is.

    Attributes:
        work: the largest of ``criticalpath.PATH_CLASSES``.
        work_share: its share of the path, 0 to 1.
        rank: the rank that the path runs through longest, -1 for none.
        rank_share: its share.
    """

    work: str
    work_share: float
    rank: int
    rank_share: float


def bounded_by(timeline: Timeline) -> BoundedBy:
    """What bounds a job from its first step's begin to its last one's end.

    Raises:
        GraphError: the job has no steps.
    """
    graph, path = timeline.graph, critical_path(timeline)
    whole = max(int(path.segment_ns.sum()), 1)
    by_work = np.zeros(len(PATH_CLASSES), np.int64)
    np.add.at(by_work, path_class(graph, path.task, path.part), path.segment_ns)
    rank = np.where(path.task >= 0, graph.rank[path.task], -1)
    by_rank = np.zeros(int(rank.max(initial=-1)) + 2, np.int64)  # the last one: no rank
    np.add.at(by_rank, rank, path.segment_ns)
    work, most = int(by_work.argmax()), int(by_rank[:-1].argmax()) if len(by_rank) > 1 else -1
    return BoundedBy(
        PATH_CLASSES[work],
        float(by_work[work] / whole),
        most,
        float(by_rank[most] / whole) if most >= 0 else 0.0,
    )
