"""Change the edges and tasks of a job graph: take it apart, put it together again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from foretrace.replay.engine import is_sorted, sort_tasks
from foretrace.replay.graph import I8, I64, EdgeKind, JobGraph, TaskKind
from foretrace.traces.errors import GraphError, ScenarioError

TASK_COLUMNS = (
    "rank", "lane", "kind", "dur_ns", "name", "event", "collective", "step",
    "measured_start_ns", "measured_end_ns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of a graph; arrays of shape ``(m,)``, those of one task in their order.

    Attributes:
        source: task that must end (or start) first.
        target: task that waits.
        kind: EdgeKind.
        delay_ns: constant on the edge.
    """

    source: I64
    target: I64
    kind: I8
    delay_ns: I64

    def keep(self, mask: np.ndarray) -> Edges:
        """Only some of the edges."""
        return Edges(self.source[mask], self.target[mask], self.kind[mask], self.delay_ns[mask])


def edges_of(graph: JobGraph) -> Edges:
    """All edges of a graph."""
    return Edges(graph.pred, targets(graph), graph.edge_kind, graph.edge_delay_ns)


def targets(graph: JobGraph) -> I64:
    """Task that waits, of each edge, shape ``(m,)``."""
    return np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))


def new_edges(source: I64, target: I64, kind: EdgeKind, delay_ns: I64 | int = 0) -> Edges:
    """Edges of one kind."""
    source = np.asarray(source, np.int64)
    delay = np.broadcast_to(np.asarray(delay_ns, np.int64), source.shape)
    return Edges(source, np.asarray(target, np.int64), np.full(len(source), kind, np.int8), delay)


def joined(*several: Edges) -> Edges:
    """All of them, in order."""
    names = ("source", "target", "kind", "delay_ns")
    return Edges(*(np.concatenate([getattr(e, name) for e in several]) for name in names))


def by_lane(graph: JobGraph, tasks: I64) -> dict[int, I64]:
    """Tasks of each lane that has any, in order."""
    tasks = tasks[np.lexsort((tasks, graph.lane[tasks]))]
    lanes, first = np.unique(graph.lane[tasks], return_index=True)
    return dict(zip(lanes.tolist(), np.split(tasks, first[1:]), strict=True)) if len(tasks) else {}


def joins(graph: JobGraph) -> I64:
    """JOIN task of each collective, and -1 behind them, shape ``(collectives + 1,)``."""
    join = np.full(len(graph.collectives.kind) + 1, -1, np.int64)
    tasks = np.flatnonzero((graph.kind == TaskKind.JOIN) & (graph.collective >= 0))
    join[graph.collective[tasks]] = tasks
    return join


@dataclass(slots=True)
class MoreTasks:
    """Tasks to be added to a graph: copies of its rows with other values.

    Attributes:
        graph: the graph.
        rows: blocks of rows to copy.
        values: the new tasks' columns, as blocks.
    """

    graph: JobGraph
    rows: list[I64] = field(default_factory=list)
    values: list[dict[str, np.ndarray | int]] = field(default_factory=list)
    size: int = 0

    def add(self, rows: I64, **values: np.ndarray | int) -> I64:
        """Numbers of the new tasks: copies of ``rows`` but for ``values``."""
        rows = np.asarray(rows, np.int64)
        first = len(self.graph) + self.size
        self.rows.append(rows)
        self.values.append(values)
        self.size += len(rows)
        return np.arange(first, first + len(rows))

    def appended(self) -> JobGraph:
        """The graph with the new tasks behind its own; its edges still end before them."""
        columns: dict[str, Any] = {}
        for name in TASK_COLUMNS:
            old = getattr(self.graph, name)
            blocks = [
                np.broadcast_to(np.asarray(v.get(name, old[r]), old.dtype), r.shape)
                for r, v in zip(self.rows, self.values, strict=True)
            ]
            columns[name] = np.concatenate([old, *blocks])
        return replace(self.graph, **columns)


def rebuilt(graph: JobGraph, edges: Edges, what: str, gone: np.ndarray | None = None) -> JobGraph:
    """The graph with these edges instead of its own, sorted anew where need be.

    Args:
        graph: tasks; ``pred_ptr`` may not fit them.
        edges: all edges, none of them at a task that goes.
        what: the transform, for the message.
        gone: tasks to leave out, bool, shape ``(n,)``.

    Raises:
        ScenarioError: tasks would wait for each other.
    """
    number = np.arange(len(graph.dur_ns))
    if gone is not None and gone.any():
        kept = ~gone
        number = np.cumsum(kept) - 1
        graph = replace(graph, **{name: getattr(graph, name)[kept] for name in TASK_COLUMNS})
        steps = replace(
            graph.steps, begin=number[graph.steps.begin], end=number[graph.steps.end]
        )  # fmt: skip
        graph = replace(graph, steps=steps)
    source, target = number[edges.source], number[edges.target]
    order = np.argsort(target, kind="stable")
    ptr = np.zeros(len(graph.dur_ns) + 1, np.int64)
    np.cumsum(np.bincount(target, minlength=len(graph.dur_ns)), out=ptr[1:])
    graph = replace(
        graph,
        pred_ptr=ptr,
        pred=source[order],
        edge_kind=edges.kind[order],
        edge_delay_ns=np.ascontiguousarray(edges.delay_ns[order]),
    )
    if is_sorted(graph):
        return graph
    try:
        return sort_tasks(graph)
    except GraphError as error:
        raise ScenarioError(
            f"{what}: the selected work depends on itself after this change; "
            "select less of it, such as the operations of one group (group:0-3)"
        ) from error
