"""Waiting for ranks that were not recorded, told apart from execution by repetition.

An operation whose other members were not recorded holds its waiting for them. Seen in several
steps at one place, its shortest run is the best guess at its execution; what other runs take
beyond that was waiting. The replay keeps the recorded lengths: these waits are inputs.
"""

from __future__ import annotations

import numpy as np

from foretrace.replay.graph import I64, JobGraph, TaskKind

MIN_RUNS = 3
"""An operation seen in fewer steps says nothing about its execution."""


def absent_waits(graph: JobGraph) -> tuple[I64, I64]:
    """Unmatched operations, and how long each waited for ranks that were not recorded.

    Returns:
        ``(COMM task, waiting ns)``, both of shape ``(operations,)``; 0 where fewer than three
        steps have the operation.
    """
    comm = np.flatnonzero((graph.kind == TaskKind.COMM) & (graph.collective < 0))
    place = _place_in_step(graph, comm)
    same = _numbered(graph.lane[comm], graph.name[comm], place)
    least = np.full(int(same.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, same, graph.dur_ns[comm])
    often = np.bincount(same, minlength=len(least))[same] >= MIN_RUNS
    return comm, np.where(often, graph.dur_ns[comm] - least[same], 0)


def _place_in_step(graph: JobGraph, comm: I64) -> I64:
    """How many operations of its lane and name came before each one in its step."""
    group = _numbered(graph.lane[comm], graph.name[comm], graph.step[comm])
    order = np.lexsort((graph.measured_end_ns[comm], group))
    head = np.ones(len(comm), bool)
    head[1:] = np.diff(group[order]) != 0
    rows = np.arange(len(comm))
    place = np.empty(len(comm), np.int64)
    place[order] = rows - np.maximum.accumulate(np.where(head, rows, 0))
    return place


def _numbered(*columns: np.ndarray) -> I64:
    """One number for each distinct row of some columns."""
    _, number = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    result: I64 = number.reshape(-1)
    return result
