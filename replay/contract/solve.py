"""All ranks' reduced graphs as one job, and single ranks in full once it is solved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from foretrace.replay.build.context import JOIN_NAME
from foretrace.replay.build.meetings import collective_table
from foretrace.replay.build.parts import GraphParts
from foretrace.replay.build.rendezvous import add_rendezvous
from foretrace.replay.contract.talks import Meetings
from foretrace.replay.engine import replay, sort_tasks
from foretrace.replay.graph import I64, TASK_COLUMNS, EdgeKind, JobGraph, TaskKind, Timeline
from foretrace.replay.subgraph import side_by_side


def joined(graphs: Sequence[JobGraph], meetings: Meetings) -> JobGraph:
    """The reduced job: what is left of all ranks, and their rendezvous.

    Args:
        graphs: reduced graphs; ``collective`` numbers the operations of each rank.
        meetings: where ranks meet.

    Raises:
        GraphError: ranks wait for each other.
    """
    graph, matches = side_by_side(graphs), meetings.matches
    arrive, finish = (_tasks(graph, meetings, kind) for kind in (TaskKind.ARRIVE, TaskKind.COMM))
    number = np.repeat(np.arange(len(matches.kind)), np.diff(matches.ptr)).astype(np.int32)
    collective = np.full(len(graph), -1, np.int32)
    collective[arrive] = collective[finish] = number
    parts = GraphParts(size=len(graph))
    add_rendezvous(parts, matches, meetings.halves, arrive, finish, len(graph.names))
    source, target, kind = (np.concatenate([block[i] for block in parts.edges]) for i in range(3))
    own = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    target = np.concatenate([own, target])
    order = np.argsort(target, kind="stable")
    ptr = np.zeros(parts.size + 1, np.int64)
    np.cumsum(np.bincount(target, minlength=parts.size), out=ptr[1:])
    delay = np.concatenate([graph.edge_delay_ns, np.zeros(len(source), np.int64)])
    columns: dict[str, Any] = {name: getattr(graph, name) for name in TASK_COLUMNS}
    columns["collective"] = collective
    for name in TASK_COLUMNS:
        columns[name] = np.concatenate([columns[name], parts.column(name)])
    whole = replace(
        graph,
        **columns,
        pred_ptr=ptr,
        pred=np.concatenate([graph.pred, source])[order],
        edge_kind=np.concatenate([graph.edge_kind, kind])[order],
        edge_delay_ns=delay[order],
        names=(*graph.names, JOIN_NAME),
        collectives=collective_table(matches, meetings.bytes),
        groups=matches.groups,
    )
    return sort_tasks(whole)


def _tasks(graph: JobGraph, meetings: Meetings, kind: TaskKind) -> I64:
    """The task of a kind of each matched member, shape ``(members,)``."""
    matches = meetings.matches
    stride = int(matches.operation.max(initial=0)) + 1
    task = np.flatnonzero((graph.kind == kind) & (graph.collective >= 0))
    key = graph.rank[task].astype(np.int64) * stride + graph.collective[task]
    order = np.argsort(key)
    wanted = matches.rank.astype(np.int64) * stride + matches.operation
    found: I64 = task[order][np.searchsorted(key[order], wanted)]
    return found


def expanded(graphs: Sequence[JobGraph], solved: Timeline) -> Timeline:
    """Some ranks in full, on the times that the reduced job was solved for.

    What such a rank waits for on other ranks stands before its operations as one task, a JOIN
    that ends when the operation could begin.

    Args:
        graphs: whole graphs of the ranks, without rendezvous.
        solved: the replay of the reduced job.
    """
    job = solved.graph
    graph = side_by_side(graphs)
    task = np.flatnonzero((graph.kind == TaskKind.COMM) & (graph.collective >= 0))
    same = _counterparts(graph, task, job, TaskKind.COMM)
    count = len(task)
    arrive = np.flatnonzero((graph.kind == TaskKind.ARRIVE) & (graph.collective >= 0))
    collective = graph.collective.copy()
    collective[task] = job.collective[same]
    collective[arrive] = job.collective[_counterparts(graph, arrive, job, TaskKind.ARRIVE)]
    begin, end = job.measured_start_ns[same], job.measured_start_ns[same]
    blank: dict[str, Any] = {name: np.full(count, -1) for name in TASK_COLUMNS}
    blank |= {"kind": np.full(count, TaskKind.JOIN), "dur_ns": solved.start_ns[same]}
    blank |= {"name": np.full(count, len(graph.names)), "collective": job.collective[same]}
    blank |= {"measured_start_ns": begin, "measured_end_ns": end}
    columns: dict[str, Any] = {name: getattr(graph, name) for name in TASK_COLUMNS}
    columns["collective"] = collective
    edge = np.append(graph.pred + count, np.arange(count))
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    order = np.argsort(np.append(target, task), kind="stable")
    waits = np.bincount(np.append(target, task) + count, minlength=len(graph) + count)
    kind = np.append(graph.edge_kind, np.full(count, EdgeKind.RENDEZVOUS, np.int8))
    steps = graph.steps
    for name, values in columns.items():
        columns[name] = np.concatenate([blank[name].astype(values.dtype), values])
    whole = replace(
        graph,
        **columns,
        pred_ptr=np.append(0, np.cumsum(waits)),
        pred=edge[order],
        edge_kind=kind[order],
        edge_delay_ns=np.append(graph.edge_delay_ns, np.zeros(count, np.int64))[order],
        names=(*graph.names, JOIN_NAME),
        collectives=job.collectives,
        groups=job.groups,
        steps=replace(steps, begin=steps.begin + count, end=steps.end + count),
    )
    return replay(whole)


def _counterparts(graph: JobGraph, task: I64, job: JobGraph, kind: TaskKind) -> I64:
    """The reduced job's tasks of a kind for the same events of the same ranks."""
    there = np.flatnonzero((job.kind == kind) & (job.collective >= 0))
    stride = int(job.event.max(initial=0)) + 1
    key = job.rank[there].astype(np.int64) * stride + job.event[there]
    order = np.argsort(key)
    wanted = graph.rank[task].astype(np.int64) * stride + graph.event[task]
    found: I64 = there[order][np.searchsorted(key[order], wanted)]
    return found
