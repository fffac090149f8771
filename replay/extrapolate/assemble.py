"""Programs of pipeline ranks become the job graph: one rank of each role, or every rank.

A message of a group whose ranks all have one role takes its price, nothing else: they arrive
together. Where roles meet, each arrives, and the message begins when the last one has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.engine import sort_tasks
from foretrace.replay.extrapolate.program import Program
from foretrace.replay.extrapolate.roles import Roles
from foretrace.replay.extrapolate.template import Lane, Message
from foretrace.replay.graph import (
    I64,
    Collectives,
    EdgeKind,
    JobGraph,
    Lanes,
    StepMarks,
    TaskKind,
)

F64 = NDArray[np.float64]
_LANES = len(Lane)


@dataclass(frozen=True, slots=True)
class Link:
    """A row of one program waits for a row of another; arrays of shape ``(links,)``.

    Attributes:
        source_rank: pipeline rank that sends.
        source_row: its row.
        target_rank: pipeline rank that waits.
        target_row: its row.
    """

    source_rank: I64
    source_row: I64
    target_rank: I64
    target_row: I64


@dataclass(frozen=True, slots=True)
class Job:
    """All that the graph is made from.

    Attributes:
        programs: program of each pipeline rank.
        links: transfers between them.
        roles: ranks that are laid out.
        stage_ranks: ranks of one pipeline rank.
        slow: factor of each role's computations, shape ``(roles,)``.
        load: factor of its experts' part of them, shape ``(roles,)``.
        routed: that part of each piece of each program, ns; None where no load differs from 1.
        prices: (messages, role) -> ns of each, shape ``(messages,)``.
        members: (kind of group, role) -> global ranks.
    """

    programs: Sequence[Program]
    links: Link
    roles: Roles
    stage_ranks: int
    slow: F64
    load: F64
    routed: Sequence[I64] | None
    prices: Callable[[tuple[Message, ...], int], I64]
    members: Callable[[str, int], tuple[int, ...]]


class _Graph:
    """Columns of tasks and edges, collected role by role."""

    def __init__(self) -> None:
        self.count = 0
        self.columns: list[tuple[np.ndarray, ...]] = []
        self.edges: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def tasks(self, *columns: np.ndarray | int, size: int) -> int:
        """rank, lane, kind, dur_ns, name, collective."""
        first = self.count
        self.columns.append(tuple(np.broadcast_to(np.asarray(c), size) for c in columns))
        self.count += size
        return first

    def edge(self, source: np.ndarray, target: np.ndarray, kind: EdgeKind | np.ndarray) -> None:
        source, target = np.broadcast_arrays(np.atleast_1d(source), np.atleast_1d(target))
        self.edges.append(
            (source, target, np.broadcast_to(np.asarray(kind, np.int8), source.shape))
        )


def assemble(job: Job) -> JobGraph:
    """The job graph, sorted; durations are those of the programs and prices."""
    graph, met = _Graph(), _Meetings(job)
    names: dict[str, int] = {}
    pipeline = job.roles.rank // job.stage_ranks
    base, marks = [], []
    for role in range(len(job.roles)):
        first, begin, end = _rank(graph, job, role, int(pipeline[role]), names, met)
        base.append(first)
        marks.append((begin, end))
    met.join(graph, names)
    _transfers(graph, job, np.array(base), met.entries)
    return _finished(graph, job, tuple(names), marks, met)


def _rank(
    graph: _Graph, job: Job, role: int, pipeline: int, names: dict[str, int], met: _Meetings
) -> tuple[int, int, int]:
    """Tasks of one rank; gives the first one, and the marks of the step."""
    program = job.programs[pipeline]
    rank, n = int(job.roles.rank[role]), len(program)
    own = np.array([names.setdefault(name, len(names)) for name in program.names])[program.name]
    talks = program.message >= 0
    price = job.prices(program.messages, role)
    device = program.lane != Lane.HOST
    plain = program.dur_ns
    if job.routed is not None:
        plain = plain + np.rint((job.load[role] - 1) * job.routed[pipeline]).astype(np.int64)
    slow = np.rint(plain * np.where(device, job.slow[role], 1.0)).astype(np.int64)
    dur = np.where(talks, price[program.message] if len(price) else 0, slow)
    lane = role * (_LANES + 1) + program.lane.astype(np.int64)
    kind = np.where(talks, TaskKind.COMM, np.where(device, TaskKind.KERNEL, TaskKind.HOST))
    collective = met.collectives(role, program)
    first = graph.tasks(rank, lane, kind, dur, own, collective, size=n)
    entry = np.arange(n) + first
    rows, arrive = met.arrivals(graph, role, program, first, (rank, lane, own, collective))
    entry[rows] = arrive
    graph.edge(program.source + first, entry[program.target], EdgeKind.STREAM)
    host = role * (_LANES + 1) + _LANES
    step = names.setdefault("step", len(names))
    begin = graph.tasks(rank, host, TaskKind.MARK, 0, step, -1, size=2)
    graph.edge(np.array([begin]), entry[program.begin], EdgeKind.WINDOW)
    graph.edge(program.end + first, np.array([begin + 1]), EdgeKind.MARK)
    met.entries.append(entry)
    return first, begin, begin + 1


class _Meetings:
    """Messages of all roles, and where several roles take part in one."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.entries: list[np.ndarray] = []  # of each role the task at which each piece waits
        self.several = {  # whether other roles meet a role; transfers between stages are links
            kind: np.bincount(group)[group] > 1
            for kind, group in job.roles.group.items()
            if kind != "pp"
        }
        self.first: dict[tuple[str, int], int] = {}  # first collective of a group's messages
        self.kind: list[np.ndarray] = []
        self.bytes: list[np.ndarray] = []
        self.group: list[np.ndarray] = []
        self.groups: dict[tuple[str, int], int] = {}
        self.ranks: list[tuple[int, ...]] = []
        self.count = 0
        self.waiting: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def collectives(self, role: int, program: Program) -> np.ndarray:
        """Collective of each piece, -1 for computations; roles that meet get equal ones."""
        result = np.full(len(program), -1, np.int64)
        kinds = np.array([m.group for m in program.messages], object)
        codes = np.array([m.collective for m in program.messages], np.int8)
        sizes = np.array([m.bytes for m in program.messages], np.int64)
        for kind in dict.fromkeys(kinds.tolist()):
            rows = np.flatnonzero(np.append(kinds == kind, False)[program.message])
            if not len(rows):
                continue
            several = kind in self.several and bool(self.several[kind][role])
            owner = int(self.job.roles.group[kind][role]) if several else -role - 1
            key = (kind, owner)
            if key not in self.first:
                self.first[key] = self.count
                self.count += len(rows)
                self.kind.append(codes[program.message[rows]])
                self.bytes.append(sizes[program.message[rows]])
                self.groups[key] = len(self.ranks)
                self.ranks.append(self.job.members(kind, role))
                self.group.append(np.full(len(rows), self.groups[key], np.int32))
            result[rows] = self.first[key] + np.arange(len(rows))
        return result

    def arrivals(
        self, graph: _Graph, role: int, program: Program, first: int,
        columns: tuple[int, np.ndarray, np.ndarray, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Tasks that arrive where roles meet: the pieces, and their arrivals."""
        rank, lane, name, collective = columns
        meets = np.array(
            [kind in self.several and self.several[kind][role]
             for kind in (m.group for m in program.messages)] + [False], np.bool_,
        )  # fmt: skip
        rows = np.flatnonzero(meets[program.message])
        size = len(rows)
        begin = graph.tasks(
            rank, lane[rows], TaskKind.ARRIVE, 0, name[rows], collective[rows], size=size
        )
        arrive = begin + np.arange(size)
        self.waiting.append((arrive, rows + first, collective[rows]))
        return rows, arrive

    def join(self, graph: _Graph, names: dict[str, int]) -> None:
        """The last arrival of each meeting, and the edges through it."""
        arrive, piece, collective = (np.concatenate(c) for c in zip(*self.waiting, strict=True))
        found, place = np.unique(collective, return_inverse=True)
        name = names.setdefault("last arrival", len(names))
        first = graph.tasks(-1, -1, TaskKind.JOIN, 0, name, found, size=len(found))
        graph.edge(arrive, first + place, EdgeKind.RENDEZVOUS)
        graph.edge(first + place, piece, EdgeKind.RENDEZVOUS)

    def table(self) -> Collectives:
        """All messages."""
        empty = np.zeros(0)
        kind, size, group = (
            np.concatenate([empty, *parts]) for parts in (self.kind, self.bytes, self.group)
        )
        return Collectives(
            kind=kind.astype(np.int8),
            group=group.astype(np.int32),
            bytes=size.astype(np.int64),
            confidence=np.ones(self.count, np.float32),
        )


def _transfers(graph: _Graph, job: Job, base: I64, entries: list[np.ndarray]) -> None:
    """Rows that get something from another rank wait for the piece that sends it."""
    links = job.links
    pipeline, inside = np.divmod(job.roles.rank, job.stage_ranks)
    for role in range(len(job.roles)):
        own = np.flatnonzero(links.target_rank == pipeline[role])
        for source in np.unique(links.source_rank[own]):
            mine = own[links.source_rank[own] == source]
            peer = int(job.roles.of_rank[source * job.stage_ranks + inside[role]])
            sends = job.programs[source].sends[links.source_row[mine]] + base[peer]
            by_row = np.full(len(job.programs[pipeline[role]].sends), -1, np.int64)
            by_row[links.target_row[mine]] = sends
            rows, pieces = job.programs[pipeline[role]].entry
            waits = by_row[rows] >= 0
            graph.edge(by_row[rows[waits]], entries[role][pieces[waits]], EdgeKind.PEER)


def _finished(
    graph: _Graph, job: Job, names: tuple[str, ...], marks: list[tuple[int, int]], met: _Meetings
) -> JobGraph:
    rank, lane, kind, dur, name, collective = (
        np.concatenate(column) for column in zip(*graph.columns, strict=True)
    )
    source, target, edge_kind = (np.concatenate(c) for c in zip(*graph.edges, strict=True))
    order = np.argsort(target, kind="stable")
    ptr = np.zeros(graph.count + 1, np.int64)
    np.cumsum(np.bincount(target, minlength=graph.count), out=ptr[1:])
    roles, width = len(job.roles), _LANES + 1
    number = np.arange(roles * width) % width
    begin, end = (np.array(column, np.int64) for column in zip(*marks, strict=True))
    return sort_tasks(
        JobGraph(
            rank=rank.astype(np.int32),
            lane=lane.astype(np.int32),
            kind=kind.astype(np.int8),
            dur_ns=dur.astype(np.int64),
            name=name.astype(np.int32),
            event=np.full(graph.count, -1, np.int64),
            collective=collective.astype(np.int32),
            step=np.zeros(graph.count, np.int32),
            measured_start_ns=np.zeros(graph.count, np.int64),
            measured_end_ns=np.zeros(graph.count, np.int64),
            pred_ptr=ptr,
            pred=source[order],
            edge_kind=edge_kind[order],
            edge_delay_ns=np.zeros(len(source), np.int64),
            names=names,
            lanes=Lanes(
                rank=np.repeat(job.roles.rank, width).astype(np.int32),
                device=np.where(number == _LANES, -1, 0).astype(np.int32),
                number=number,
            ),
            collectives=met.table(),
            groups=tuple(met.ranks),
            steps=StepMarks(np.zeros(roles, np.int32), job.roles.rank.astype(np.int32), begin, end),
        )
    )
