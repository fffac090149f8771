"""Some tasks of a job graph with the edges among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from foretrace.replay.graph import I64, TASK_COLUMNS, JobGraph, Lanes, StepMarks


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a job graph.

    Attributes:
        graph: the chosen tasks and the edges among them; names, lanes, operations and groups
            are the whole graph's, step marks those whose both tasks were chosen.
        task: the whole graph's number of each task.
        edge: the whole graph's number of each edge.
    """

    graph: JobGraph
    task: I64
    edge: I64


def of_tasks(graph: JobGraph, tasks: I64) -> Part:
    """The part of a graph that some tasks make up.

    Args:
        graph: the whole graph.
        tasks: the tasks wanted, ascending, so that topological order stays.
    """
    number = np.full(len(graph), -1, np.int64)
    number[tasks] = np.arange(len(tasks))
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    edge = np.flatnonzero((number[target] >= 0) & (number[graph.pred] >= 0))
    ptr = np.zeros(len(tasks) + 1, np.int64)
    np.cumsum(np.bincount(number[target[edge]], minlength=len(tasks)), out=ptr[1:])
    begin, end = number[graph.steps.begin], number[graph.steps.end]
    marks = {f.name: getattr(graph.steps, f.name) for f in fields(StepMarks)}
    inside = (begin >= 0) & (end >= 0)
    marks = {**marks, "begin": begin, "end": end}
    part = replace(
        graph,
        **{name: getattr(graph, name)[tasks] for name in TASK_COLUMNS},
        pred_ptr=ptr,
        pred=number[graph.pred[edge]],
        edge_kind=graph.edge_kind[edge],
        edge_delay_ns=graph.edge_delay_ns[edge],
        steps=StepMarks(**{name: values[inside] for name, values in marks.items()}),
    )
    return Part(part, tasks, edge)


def side_by_side(graphs: Sequence[JobGraph]) -> JobGraph:
    """Several graphs as one, no edges between them.

    Tasks, edges and lanes follow each other; equal names become one. Operations and groups are
    those of the first graph.

    Args:
        graphs: at least one graph.
    """
    names: dict[str, int] = {}
    columns: dict[str, Any] = {name: [] for name in TASK_COLUMNS}
    tasks = edges = lanes = 0
    ptr, pred, begin, end = [np.zeros(1, np.int64)], [], [], []
    for graph in graphs:
        number = np.array([names.setdefault(n, len(names)) for n in graph.names] or [0], np.int32)
        moved = {
            "name": number[graph.name],
            "lane": np.where(graph.lane >= 0, graph.lane + lanes, -1).astype(np.int32),
        }
        for name, blocks in columns.items():
            blocks.append(moved.get(name, getattr(graph, name)))
        ptr.append(graph.pred_ptr[1:] + edges)
        pred.append(graph.pred + tasks)
        begin.append(graph.steps.begin + tasks)
        end.append(graph.steps.end + tasks)
        tasks, edges = tasks + len(graph), edges + len(graph.pred)
        lanes += len(graph.lanes.rank)
    steps, every = [g.steps for g in graphs], [g.lanes for g in graphs]
    together: dict[str, Any] = {n: np.concatenate(blocks) for n, blocks in columns.items()}
    return replace(
        graphs[0],
        **together,
        pred_ptr=np.concatenate(ptr),
        pred=np.concatenate(pred),
        edge_kind=np.concatenate([g.edge_kind for g in graphs]),
        edge_delay_ns=np.concatenate([g.edge_delay_ns for g in graphs]),
        names=tuple(names),
        lanes=Lanes(*(np.concatenate([getattr(x, f.name) for x in every]) for f in fields(Lanes))),
        steps=StepMarks(
            np.concatenate([s.step for s in steps]),
            np.concatenate([s.rank for s in steps]),
            np.concatenate(begin),
            np.concatenate(end),
        ),
    )
