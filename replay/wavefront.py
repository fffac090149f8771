"""Longest paths of many cost vectors at once, level by level, in plain numpy.

Tasks of one level do not depend on each other, so a few array operations run all of them for
all scenarios. Nothing is compiled: on graphs with some hundred levels (the coarse operations of
training steps) that is faster than loading a compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import I64, JobGraph
from foretrace.traces.errors import GraphError


@dataclass(frozen=True, slots=True)
class Levels:
    """Tasks in an order in which each level follows all the levels that it depends on.

    Attributes:
        order: old number of each task, shape ``(n,)``.
        number: new number of each old task, shape ``(n,)``.
        ptr: first task (new number) of each level, shape ``(levels + 1,)``.
    """

    order: I64
    number: I64
    ptr: I64


def by_level(count: int, source: I64, target: I64) -> Levels:
    """Sort tasks by level: 0 without predecessors, else one more than the highest predecessor.

    Args:
        count: number of tasks.
        source: predecessor of each edge, shape ``(m,)``.
        target: successor of each edge, shape ``(m,)``.

    Raises:
        GraphError: the edges form a cycle.
    """
    by_source = np.argsort(source, kind="stable")
    successor = target[by_source]
    ptr = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=count), out=ptr[1:])
    degree = np.diff(ptr)
    missing = np.bincount(target, minlength=count)
    frontier = np.flatnonzero(missing == 0)
    fronts = []
    while len(frontier):
        fronts.append(frontier)
        reached = successor[ranges(ptr[frontier], degree[frontier])]
        np.subtract.at(missing, reached, 1)
        frontier = np.sort(reached[missing[reached] == 0])
        if len(frontier):  # a task is reached once by each of its last predecessors
            frontier = frontier[np.append(True, frontier[1:] != frontier[:-1])]
    sizes = np.array([len(front) for front in fronts], np.int64)
    if sizes.sum() < count:
        raise GraphError(
            f"the order of the operations contradicts itself: {count - int(sizes.sum())} of "
            f"{count} tasks wait for each other (check clocks and duplicated rows)"
        )
    order = np.concatenate(fronts) if fronts else np.zeros(0, np.int64)
    number = np.empty(count, np.int64)
    number[order] = np.arange(count)
    return Levels(order, number, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def ranges(first: I64, count: I64) -> I64:
    """``first[0], first[0] + 1, ... , first[1], ...``: ``count[i]`` numbers from each."""
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    result: I64 = np.arange(total) + np.repeat(first - ends + count, count)
    return result


Durations = Callable[[int, int], np.ndarray]
"""Durations of tasks ``[a, b)``: shape ``(b - a, scenarios)``, or ``(b - a, 1)`` for all alike."""

_FEW = 3
"""Predecessors that are handled one after the other; tasks with more are reduced in one go."""


def ends_of_many(graph: JobGraph, level_ptr: I64, durations: Durations, scenarios: int) -> I64:
    """End of every task in every scenario, when all tasks wait only for their predecessors.

    The durations of the graph are not read; all edges count from their predecessor's end.

    Args:
        graph: a job graph whose tasks are sorted by level.
        level_ptr: first task of each level, as in :class:`Levels`.
        durations: gives the durations of a run of tasks, ns.
        scenarios: number of scenarios.

    Returns:
        Ends, ns, shape ``(n, scenarios)``.
    """
    end = np.empty((len(graph), scenarios), np.int64)
    count = np.diff(graph.pred_ptr)
    for a, b in zip(level_ptr[:-1].tolist(), level_ptr[1:].tolist(), strict=True):
        if graph.pred_ptr[a] == graph.pred_ptr[b]:  # the first level
            end[a:b] = durations(a, b)
            continue
        start = end[a:b]
        first = graph.pred_ptr[a:b]
        np.take(end, graph.pred[first], axis=0, out=start, mode="clip")  # raise would copy
        start += graph.edge_delay_ns[first, None]
        for nth in range(1, _FEW):
            rows = np.flatnonzero(count[a:b] > nth)
            if len(rows):
                _wait_for(start, rows, end, graph, first[rows] + nth)
        rows = np.flatnonzero(count[a:b] > _FEW)
        if len(rows):
            _wait_for_all(start, rows, end, graph, first[rows] + _FEW, count[a:b][rows] - _FEW)
        np.maximum(start, 0, out=start)
        start += durations(a, b)
    return end


def _wait_for(start: I64, rows: I64, end: I64, graph: JobGraph, edge: I64) -> None:
    """Put the starts of ``rows`` off until one more predecessor each has ended."""
    ready = np.take(end, graph.pred[edge], axis=0)
    ready += graph.edge_delay_ns[edge, None]
    if len(rows) == len(start):
        np.maximum(start, ready, out=start)
    else:
        start[rows] = np.maximum(start[rows], ready)


def _wait_for_all(
    start: I64, rows: I64, end: I64, graph: JobGraph, first_edge: I64, count: I64
) -> None:
    """Put the starts of ``rows`` off until ``count`` more predecessors each have ended."""
    edge = ranges(first_edge, count)
    ready = np.take(end, graph.pred[edge], axis=0)
    ready += graph.edge_delay_ns[edge, None]
    latest = np.maximum.reduceat(ready, np.cumsum(count) - count, axis=0)
    start[rows] = np.maximum(start[rows], latest)
