"""A job graph from what each rank does, one instruction after another.

A changed layout (other stages, other sharding) is no edit of a recorded graph: it is a new
program made of recorded pieces. A program knows work, communication that is posted and waited
for, and step marks; everything else follows from the order on each rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from foretrace.replay.engine import sort_tasks
from foretrace.replay.graph import Collectives, EdgeKind, JobGraph, Lanes, StepMarks, TaskKind
from foretrace.traces.schema import COLLECTIVE_KINDS

HOST, NETWORK = -1, -2
"""Device numbers of lanes, as in :class:`~foretrace.replay.graph.Lanes`."""


@dataclass(slots=True)
class Program:
    """Instructions, in any order across ranks, in their order on each rank.

    Attributes:
        names: name -> number.
        lanes: (rank, device, number) -> lane.
        groups: ranks in order -> number.
        tasks: rows (rank, lane, kind, ns, name, operation, step).
        edges: rows (source, target, kind).
        marks: rows (step, rank, begin, end).
        last: the task that each lane did last.
        operations: rows (kind, group, bytes, join task).
        senders: message -> sending rank.
        members: (operation, rank) -> execution on that rank.
    """

    names: dict[str, int] = field(default_factory=dict)
    lanes: dict[tuple[int, int, int], int] = field(default_factory=dict)
    groups: dict[tuple[int, ...], int] = field(default_factory=dict)
    tasks: list[tuple[int, ...]] = field(default_factory=list)
    edges: list[tuple[int, int, EdgeKind]] = field(default_factory=list)
    marks: list[tuple[int, int, int, int]] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    operations: list[tuple[int, int, int, int]] = field(default_factory=list)
    senders: dict[int, int] = field(default_factory=dict)
    members: dict[tuple[int, int], int] = field(default_factory=dict)
    step: int = -1

    def work(self, rank: int, name: str, ns: float) -> int:
        """The rank computes for ``ns``."""
        return self._on_host(rank, TaskKind.HOST, ns, name)

    def operation(self, kind: str, ranks: tuple[int, ...], size: int) -> int:
        """A collective or message; all of ``ranks`` have to post it.

        Args:
            kind: one of ``COLLECTIVE_KINDS``; ``send`` for a message.
            ranks: its members; for a message the sender first.
            size: bytes.
        """
        number = len(self.operations)
        # Neither a rank nor a lane: the last member has arrived.
        join = self._task(-1, -1, TaskKind.JOIN, 0, f"{kind} joins", number)
        group = self.groups.setdefault(tuple(sorted(ranks)), len(self.groups))
        if kind == "send":
            self.senders[number] = ranks[0]
        self.operations.append((COLLECTIVE_KINDS.index(kind), group, size, join))
        return number

    def post(self, rank: int, operation: int, call_ns: float, exec_ns: float) -> None:
        """The rank posts an operation and goes on.

        Args:
            rank: the rank.
            operation: from :meth:`operation`.
            call_ns: what the call costs the host.
            exec_ns: from the last member's arrival to the operation's end on this rank.
        """
        kind, group, _, join = self.operations[operation]
        name, stream = COLLECTIVE_KINDS[kind], group
        if operation in self.senders:
            name = "send" if self.senders[operation] == rank else "recv"
            stream = -2 - 2 * group - (name == "send")
        call = self._on_host(rank, TaskKind.CALL, call_ns, f"call {name}")
        lane = self._lane(rank, NETWORK, stream)
        arrive = self._task(rank, lane, TaskKind.ARRIVE, 0, name, operation)
        self.edges += [
            (call, arrive, EdgeKind.POST),
            (arrive, join, EdgeKind.RENDEZVOUS),
        ]
        if lane in self.last:
            self.edges.append((self.last[lane], arrive, EdgeKind.STREAM))
        done = self._task(rank, lane, TaskKind.COMM, exec_ns, name, operation)
        why = EdgeKind.PEER if operation in self.senders else EdgeKind.RENDEZVOUS
        self.edges += [(arrive, done, EdgeKind.RENDEZVOUS), (join, done, why)]
        self.last[lane] = done
        self.members[operation, rank] = done

    def wait(self, rank: int, operation: int, ns: float = 0.0) -> None:
        """The rank waits until an operation that it posted has ended."""
        task = self._on_host(rank, TaskKind.SYNC, ns, "wait")
        self.edges.append((self.members[operation, rank], task, EdgeKind.SYNC))

    def begin(self, rank: int, step: int) -> None:
        """A step begins on the rank."""
        self.step = step
        mark = self._on_host(rank, TaskKind.MARK, 0, f"step {step}")
        self.marks.append((step, rank, mark, -1))

    def end(self, rank: int) -> None:
        """The step that began last on the rank ends."""
        at = max(i for i, mark in enumerate(self.marks) if mark[1] == rank)
        step = self.marks[at][0]
        mark = self._on_host(rank, TaskKind.MARK, 0, f"step {step}")
        self.marks[at] = (*self.marks[at][:3], mark)

    def graph(self) -> JobGraph:
        """The job graph.

        Raises:
            GraphError: ranks wait for each other in a circle.
        """
        rank, lane, kind, dur, name, operation, step = np.array(self.tasks, np.int64).T
        source, target, why = np.array(self.edges, np.int64).reshape(-1, 3).T
        order = np.argsort(target, kind="stable")
        ptr = np.zeros(len(rank) + 1, np.int64)
        np.cumsum(np.bincount(target, minlength=len(rank)), out=ptr[1:])
        of, group, size, _ = np.array(self.operations, np.int64).reshape(-1, 4).T
        lanes = np.array(list(self.lanes), np.int64).reshape(-1, 3)
        marks = np.array(self.marks, np.int64).reshape(-1, 4).T
        nothing = np.zeros(len(rank), np.int64)
        return sort_tasks(JobGraph(
            rank.astype(np.int32), lane.astype(np.int32), kind.astype(np.int8), dur,
            name.astype(np.int32), nothing - 1, operation.astype(np.int32), step.astype(np.int32),
            nothing, nothing, ptr, source[order], why[order].astype(np.int8),
            np.zeros(len(source), np.int64), tuple(self.names),
            Lanes(lanes[:, 0].astype(np.int32), lanes[:, 1].astype(np.int32), lanes[:, 2]),
            Collectives(of.astype(np.int8), group.astype(np.int32), size,
                        np.ones(len(of), np.float32)),
            tuple(self.groups),
            StepMarks(marks[0].astype(np.int32), marks[1].astype(np.int32), marks[2], marks[3]),
        ))  # fmt: skip

    def _lane(self, rank: int, device: int, number: int) -> int:
        return self.lanes.setdefault((rank, device, number), len(self.lanes))

    def _task(
        self, rank: int, lane: int, kind: TaskKind, ns: float, name: str, operation: int
    ) -> int:
        number = self.names.setdefault(name, len(self.names))
        self.tasks.append((rank, lane, kind, round(ns), number, operation, self.step))
        return len(self.tasks) - 1

    def _on_host(self, rank: int, kind: TaskKind, ns: float, name: str) -> int:
        lane = self._lane(rank, HOST, 0)
        task = self._task(rank, lane, kind, ns, name, -1)
        if lane in self.last:
            self.edges.append((self.last[lane], task, EdgeKind.HOST_ORDER))
        self.last[lane] = task
        return task
