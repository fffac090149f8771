"""The replay: one pass over the job graph gives every task's start and what bound it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.graph import I64, TASK_COLUMNS, EdgeKind, JobGraph, Timeline
from foretrace.replay.kernels import (
    LANES,
    is_topological,
    longest_path,
    longest_paths,
    topological_order,
)
from foretrace.traces.errors import GraphError

START_EDGES = (EdgeKind.LAUNCH, EdgeKind.OVERLAP, EdgeKind.SEGMENT)
"""Edges that count from the predecessor's start: a kernel may start before its launch returns,
and before a kernel it overlaps has ended; a segment holds its source's duration already."""

FROM_START = np.isin(np.arange(len(EdgeKind)), START_EDGES)
"""Whether edges of a kind count from their predecessor's start, by its number."""


def counts_from_start(graph: JobGraph) -> NDArray[np.bool_]:
    """Which edges count from their predecessor's start, shape ``(m,)``, bool."""
    from_start: NDArray[np.bool_] = FROM_START[graph.edge_kind]
    return from_start


def is_sorted(graph: JobGraph) -> bool:
    """Whether every task stands behind all of its predecessors."""
    return bool(is_topological(graph.pred_ptr, graph.pred))


def replay(graph: JobGraph, dur_ns: I64 | None = None, label: str = "replayed") -> Timeline:
    """Run the job graph: each task starts when the last of its predecessors allows it.

    Args:
        graph: a job graph whose tasks are topologically sorted.
        dur_ns: durations to use instead of the graph's, shape ``(n,)``, ns.
        label: name of the result.

    Returns:
        The timeline; times count from the earliest task of the job.

    Raises:
        GraphError: tasks are not sorted (see :func:`sort_tasks`).
    """
    _check_sorted(graph)
    durations = graph.dur_ns if dur_ns is None else np.ascontiguousarray(dur_ns, dtype=np.int64)
    start, bound = longest_path(
        durations, graph.pred_ptr, graph.pred, counts_from_start(graph), graph.edge_delay_ns
    )
    return Timeline(graph, start, start + durations, bound, label)


def replay_all(graph: JobGraph, scenarios: Mapping[str, I64]) -> dict[str, Timeline]:
    """Run several cost vectors over one graph.

    Args:
        graph: the job graph.
        scenarios: name -> durations, shape ``(n,)``, ns.

    Raises:
        GraphError: tasks are not sorted (see :func:`sort_tasks`).
    """
    return {timeline.label: timeline for timeline in replay_each(graph, scenarios.items())}


def replay_each(graph: JobGraph, scenarios: Iterable[tuple[str, I64]]) -> Iterator[Timeline]:
    """Like :func:`replay_all`, a few cost vectors at a time, so that timelines can be dropped.

    Args:
        graph: the job graph.
        scenarios: names and durations, shape ``(n,)``, ns.

    Raises:
        GraphError: tasks are not sorted (see :func:`sort_tasks`).
    """
    _check_sorted(graph)
    n = len(graph)
    from_start, times = counts_from_start(graph), None
    remaining = iter(scenarios)
    while batch := list(islice(remaining, LANES)):
        if len(batch) == 1:
            yield replay(graph, batch[0][1], batch[0][0])
            continue
        times = np.empty((n, 2, LANES), np.int64) if times is None else times
        durations = np.empty((LANES, n), np.int64)
        durations[: len(batch)] = [dur for _, dur in batch]
        durations[len(batch) :] = 0
        start, end, bound = (np.empty((LANES, n), np.int64) for _ in range(3))
        edges = (graph.pred_ptr, graph.pred, from_start, graph.edge_delay_ns)
        longest_paths(durations, *edges, (times, start, end, bound))
        for k, (name, _) in enumerate(batch):
            yield Timeline(graph, start[k], end[k], bound[k], name)


def _check_sorted(graph: JobGraph) -> None:
    if not is_sorted(graph):
        raise GraphError("the job graph's tasks are not in topological order; use sort_tasks first")


def sort_tasks(graph: JobGraph) -> JobGraph:
    """The same graph with its tasks renumbered in topological order.

    Raises:
        GraphError: the graph has a cycle; the message names tasks on it.
    """
    order = topological_order(graph.pred_ptr, graph.pred)
    if len(order) < len(graph):
        raise GraphError(_cycle_message(graph, order))
    return permuted(graph, order)


def permuted(graph: JobGraph, order: I64) -> JobGraph:
    """The graph with task ``order[k]`` renumbered to ``k``."""
    new = np.empty(len(order), np.int64)
    new[order] = np.arange(len(order))
    counts = np.diff(graph.pred_ptr)[order]
    ptr = np.zeros(len(order) + 1, np.int64)
    np.cumsum(counts, out=ptr[1:])
    edge = np.repeat(graph.pred_ptr[:-1][order] - ptr[:-1], counts) + np.arange(ptr[-1])
    steps = replace(graph.steps, begin=new[graph.steps.begin], end=new[graph.steps.end])
    return replace(
        graph,
        **{name: getattr(graph, name)[order] for name in TASK_COLUMNS},
        pred_ptr=ptr,
        pred=new[graph.pred[edge]],
        edge_kind=graph.edge_kind[edge],
        edge_delay_ns=graph.edge_delay_ns[edge],
        steps=steps,
    )


def _cycle_message(graph: JobGraph, order: I64) -> str:
    """One line that names a few tasks which wait for each other."""
    stuck = np.ones(len(graph), bool)
    stuck[order] = False
    task = int(np.flatnonzero(stuck)[0])
    trail: list[int] = []
    while task not in trail:
        trail.append(task)
        preds = graph.pred[graph.pred_ptr[task] : graph.pred_ptr[task + 1]]
        task = int(preds[stuck[preds]][0])
    loop = trail[trail.index(task) :][:6]
    names = " <- ".join(f"rank {graph.rank[t]} {graph.names[graph.name[t]]!r}" for t in loop)
    return (
        f"the dependency graph has a cycle over {int(stuck.sum())} tasks: {names}; "
        "the trace's order contradicts itself there (check clocks and duplicated ranks)"
    )
