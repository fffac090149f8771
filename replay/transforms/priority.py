"""Another order of communication on its streams, the same on every rank."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from foretrace.replay.arrivals import arrivals
from foretrace.replay.engine import replay
from foretrace.replay.graph import I64, EdgeKind, JobGraph, TaskKind, Timeline
from foretrace.replay.pathkernels import last_ancestor
from foretrace.replay.selection import Mask, selected
from foretrace.replay.transforms.base import Transform
from foretrace.replay.transforms.edit import Edges, edges_of, joined, new_edges, rebuilt
from foretrace.replay.transforms.linkcosts import task_bytes
from foretrace.traces.errors import ScenarioError


class Priority(Transform, frozen=True, kw_only=True):
    """Of the operations that are ready when their streams fall free, the most urgent goes first.

    Operations keep their streams; a running one is not interrupted. When each is ready is taken
    from the replay before the change.

    Attributes:
        order: ``need``: whose result is waited for first; ``small`` or ``large``: by bytes.
    """

    select: str = "comm"
    order: Literal["need", "small", "large"] = "need"

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job with its communication in the other order."""
        edges, timeline = edges_of(graph), replay(graph)
        ops = _operations(graph, selected(graph, self.select), edges, timeline)
        rank = np.lexsort((ops.number, self._urgency(graph, ops, edges, timeline)))
        urgency = np.empty(len(rank), np.int64)
        urgency[rank] = np.arange(len(rank))
        order = _scheduled(ops, urgency)
        if (order == ops.number).all():
            return graph
        return rebuilt(graph, _reordered(graph, edges, ops, order), "priority")

    def _urgency(
        self, graph: JobGraph, ops: _Operations, edges: Edges, timeline: Timeline
    ) -> np.ndarray:
        """Lower goes first, shape ``(operations,)``."""
        if self.order != "need":
            size = np.zeros(len(ops.number), np.int64)
            size[ops.of_task] = task_bytes(graph, ops.comm, "priority")
            return size if self.order == "small" else -size
        need = np.full(len(ops.number), np.iinfo(np.int64).max)
        used = np.isin(edges.kind, (EdgeKind.EVENT, EdgeKind.SYNC))
        operation = np.full(len(graph), -1, np.int64)
        operation[ops.comm] = ops.of_task
        used &= operation[edges.source] >= 0
        np.minimum.at(need, operation[edges.source[used]], timeline.start_ns[edges.target[used]])
        return need


@dataclass(frozen=True, slots=True)
class _Operations:
    """Selected operations (k) in the order in which they ran, and their member tasks (t).

    Attributes:
        number: 0 to k - 1.
        comm: COMM task of each member, shape ``(t,)``.
        arrive: ARRIVE task of each member, shape ``(t,)``.
        lane: stream of each member, shape ``(t,)``.
        of_task: operation of each member, shape ``(t,)``.
        ready_ns: when the last member could have arrived but for its stream, shape ``(k,)``.
        exec_ns: longest execution of its members, shape ``(k,)``.
        after: the highest operation that it depends on, -1 for none, shape ``(k,)``.
    """

    number: I64
    comm: I64
    arrive: I64
    lane: I64
    of_task: I64
    ready_ns: I64
    exec_ns: I64
    after: I64


def _operations(graph: JobGraph, mask: Mask, edges: Edges, timeline: Timeline) -> _Operations:
    comm = np.flatnonzero(mask & (graph.kind == TaskKind.COMM) & (graph.collective >= 0))
    if not len(comm):
        raise ScenarioError("priority: the selector means no collective with a counterpart")
    begin = np.full(len(graph.collectives.kind), np.iinfo(np.int64).max)
    np.minimum.at(begin, graph.collective[comm], timeline.start_ns[comm])
    which = np.unique(graph.collective[comm])
    which = which[np.argsort(begin[which], kind="stable")]
    number = np.full(len(begin), -1, np.int64)
    number[which] = np.arange(len(which))
    arrive = arrivals(graph)[comm]
    of_task = number[graph.collective[comm]]
    task_op = np.full(len(graph), -1, np.int64)
    task_op[comm], task_op[arrive] = of_task, of_task
    order = _lane_order(edges, task_op)
    ready, longest = np.zeros(len(which), np.int64), np.zeros(len(which), np.int64)
    np.maximum.at(ready, of_task, _free_start(timeline, edges, arrive, order))
    np.maximum.at(longest, of_task, graph.dur_ns[comm])
    comm_op = np.full(len(graph), -1, np.int64)
    comm_op[comm] = of_task
    ancestor = last_ancestor(comm_op, graph.pred_ptr, graph.pred, ~order)
    after = np.full(len(which), -1, np.int64)
    np.maximum.at(after, of_task, ancestor[arrive])
    # Without the streams' order an operation cannot wait for itself or for a later one.
    after = np.minimum(after, np.arange(len(which)) - 1)
    lane = graph.lane[comm].astype(np.int64)
    return _Operations(np.arange(len(which)), comm, arrive, lane, of_task, ready, longest, after)


def _lane_order(edges: Edges, task_op: I64) -> Mask:
    """Edges that only keep selected operations of a stream in order."""
    order = np.isin(edges.kind, (EdgeKind.STREAM, EdgeKind.OVERLAP))
    return order & (task_op[edges.source] >= 0) & (task_op[edges.target] >= 0)


def _free_start(timeline: Timeline, edges: Edges, arrive: I64, order: Mask) -> I64:
    """When each arrival would be allowed if only its stream's order did not count."""
    allowed = np.zeros(len(timeline.start_ns), np.int64)
    begun = np.isin(edges.kind, (EdgeKind.LAUNCH, EdgeKind.OVERLAP))
    at = np.where(begun, timeline.start_ns[edges.source], timeline.end_ns[edges.source])
    np.maximum.at(allowed, edges.target[~order], (at + edges.delay_ns)[~order])
    return allowed[arrive]


def _scheduled(ops: _Operations, urgency: I64) -> I64:
    """Operations in the order in which a scheduler would start them, shape ``(k,)``.

    An operation runs when it is ready, all its members' streams are free, and every operation
    that it might depend on has run.
    """
    lanes: list[list[int]] = [[] for _ in ops.number]
    for operation, lane in zip(ops.of_task.tolist(), ops.lane.tolist(), strict=True):
        lanes[operation].append(lane)
    free: dict[int, int] = defaultdict(int)
    coming = [(int(ops.ready_ns[i]), i) for i in range(len(ops.number))]
    heapq.heapify(coming)
    ready: list[tuple[int, int]] = []
    done, low, now = [False] * (len(ops.number) + 1), 0, 0
    order: list[int] = []
    while len(order) < len(ops.number):
        while coming and coming[0][0] <= now:
            i = heapq.heappop(coming)[1]
            heapq.heappush(ready, (int(urgency[i]), i))
        held: list[tuple[int, int]] = []
        began = len(order)
        for urgent, i in sorted(ready):
            if ops.after[i] >= low or any(free[lane] > now for lane in lanes[i]):
                held.append((urgent, i))
                continue
            for lane in lanes[i]:
                free[lane] = now + int(ops.exec_ns[i])
            order.append(i)
            done[i] = True
            while done[low]:
                low += 1
        ready = held
        if len(order) == began:  # nothing can begin now: on to the next change
            later = [free[lane] for _, i in ready for lane in lanes[i] if free[lane] > now]
            now = min([*later, *(at for at, _ in coming[:1])])
    return np.array(order, np.int64)


def _reordered(graph: JobGraph, edges: Edges, ops: _Operations, order: I64) -> Edges:
    """The edges with the operations of each stream in a new order.

    What else stands on the stream keeps its place between them.
    """
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    slot = np.lexsort((ops.arrive, ops.lane))
    taken = np.lexsort((position[ops.of_task], ops.lane))
    new = np.arange(len(graph))
    new[ops.arrive[slot]], new[ops.comm[slot]] = ops.arrive[taken], ops.comm[taken]
    stream = np.isin(edges.kind, (EdgeKind.STREAM, EdgeKind.OVERLAP))
    task_op = np.full(len(graph), -1, np.int64)
    task_op[ops.comm], task_op[ops.arrive] = ops.of_task, ops.of_task
    within = _lane_order(edges, task_op)
    moved = Edges(
        np.where(stream, new[edges.source], edges.source),
        np.where(stream, new[edges.target], edges.target),
        edges.kind,
        edges.delay_ns,
    ).keep(~within)
    delay = np.zeros(len(graph), np.int64)
    np.maximum.at(delay, edges.target[within], edges.delay_ns[within])
    follows = ops.lane[taken][1:] == ops.lane[taken][:-1]
    source, target = ops.comm[taken][:-1][follows], ops.arrive[taken][1:][follows]
    gap = delay[ops.arrive[slot][1:][follows]]
    return joined(moved, new_edges(source, target, EdgeKind.STREAM, gap))
