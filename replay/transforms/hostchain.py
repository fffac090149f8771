"""Host threads as stretches of work that one graph launch could replace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import I64, EdgeKind, JobGraph, TaskKind
from foretrace.replay.selection import Mask
from foretrace.replay.transforms.edit import Edges

HOST_KINDS = (TaskKind.HOST, TaskKind.CALL, TaskKind.SYNC, TaskKind.STALL, TaskKind.MARK)


@dataclass(frozen=True, slots=True)
class Stretches:
    """Host tasks in the order of their threads, cut where the host has to stop.

    Attributes:
        task: host tasks by thread and order, shape ``(h,)``.
        number: stretch of each of them, shape ``(h,)``.
        launches: which of them only launch selected work, shape ``(h,)``.
    """

    task: I64
    number: I64
    launches: Mask


def stretches(graph: JobGraph, edges: Edges, mask: Mask) -> Stretches:
    """Cut host threads at blocking calls, marks, hand-offs and launches of other work.

    Args:
        graph: the job graph.
        edges: its edges.
        mask: selected device work, arrivals included, shape ``(n,)``.
    """
    launch = edges.kind == EdgeKind.LAUNCH
    launches, other = np.zeros(len(graph), bool), np.zeros(len(graph), bool)
    launches[edges.source[launch & mask[edges.target]]] = True
    other[edges.source[(launch | (edges.kind == EdgeKind.POST)) & ~mask[edges.target]]] = True
    stops = np.isin(graph.kind, (TaskKind.SYNC, TaskKind.MARK)) | other
    handed = edges.kind == EdgeKind.THREAD
    stops[edges.source[handed]] = True
    stops[edges.target[handed]] = True
    host = np.isin(graph.kind, HOST_KINDS) & (graph.lane >= 0)
    host &= graph.lanes.device[graph.lane] == -1
    task = np.flatnonzero(host)
    task = task[np.argsort(graph.lane[task], kind="stable")]
    cut = stops[task]
    cut[1:] |= graph.lane[task[1:]] != graph.lane[task[:-1]]
    return Stretches(task, np.cumsum(cut), (launches & ~other)[task])
