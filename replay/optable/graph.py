"""The job graph of an operation table.

Each worker has one lane for its computes and the collectives between them, and one lane for
each kind of transfer. A transfer or collective is an arrival (when its lane got there) and an
execution that begins when its last member has arrived; what a row lasted before that was waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import (
    F32,
    I64,
    Collectives,
    EdgeKind,
    JobGraph,
    Lanes,
    StepMarks,
    TaskKind,
)
from foretrace.replay.optable.issue import issue_edges, runs_alongside
from foretrace.replay.optable.match import Matches, match
from foretrace.replay.optable.operations import TRANSFERS, Role
from foretrace.replay.optable.table import OpTable
from foretrace.replay.wavefront import Levels, by_level
from foretrace.traces.schema import COLLECTIVE_KINDS

Edges = tuple[I64, I64, EdgeKind]


@dataclass(frozen=True, slots=True)
class OpGraph:
    """A job graph of an operation table and how the two belong together.

    Attributes:
        graph: the job graph, tasks sorted by level. A task's ``event`` is its row of the table.
        levels: the levels, for :func:`foretrace.replay.wavefront.ends_of_many`.
        table: the table.
        matches: which rows belong together.
        exec_task: task of each row's work or transfer, shape ``(rows,)``.
        entry_task: task that waits for the worker: the arrival, or ``exec_task`` for work.
        begin_task: task at which each slot (step, worker) begins, shape ``(slots,)``.
    """

    graph: JobGraph
    levels: Levels
    table: OpTable
    matches: Matches
    exec_task: I64
    entry_task: I64
    begin_task: I64

    @property
    def exec_ns(self) -> I64:
        """Duration of each row without waiting, shape ``(rows,)``."""
        return self.graph.dur_ns[self.exec_task]


def build_graph(table: OpTable, issue_order: bool = False) -> OpGraph:
    """Turn an operation table into a job graph.

    Args:
        table: the table.
        issue_order: whether operations also wait for those that the worker issued before and,
            by the table, waits for: how the job really ran. Without it transfers depend on
            their data alone.

    Raises:
        GraphError: the table's order contradicts itself.
    """
    matches = match(table)
    n, slots = len(table), int(table.slot[-1]) + 1
    comm = np.flatnonzero((matches.peer >= 0) | (matches.group >= 0))
    exec_task = np.arange(slots, slots + n)
    entry_task = exec_task.copy()
    entry_task[comm] = np.arange(slots + n, slots + n + len(comm))
    first_join = slots + n + len(comm)
    lane = _lanes(table)
    edges = [
        *_lane_edges(table.slot, lane, exec_task, entry_task),
        *_data_edges(table, matches, exec_task, entry_task),
        *_meeting_edges(matches, comm, exec_task, entry_task, first_join),
    ]
    if issue_order:
        edges.append((*_tasks(issue_edges(table), exec_task, entry_task), EdgeKind.HOST_ORDER))
    source = np.concatenate([e[0] for e in edges])
    target = np.concatenate([e[1] for e in edges])
    kind = np.repeat([np.int8(e[2]) for e in edges], [len(e[0]) for e in edges])
    levels, edge = by_level(first_join + matches.groups, source, target)
    new = levels.number
    graph = _graph(table, matches, comm, lane, levels, source, kind, edge)
    return OpGraph(graph, levels, table, matches, new[exec_task], new[entry_task], new[:slots])


def _lanes(table: OpTable) -> I64:
    """Lane of each row within its worker: 0 compute, then one for each kind of transfer."""
    role = table.role
    apart = np.isin(role, TRANSFERS) | runs_alongside(table)
    return np.where(apart, table.op + 1, 0)


def _lane_edges(slot: I64, lane: I64, exec_task: I64, entry_task: I64) -> list[Edges]:
    """Order within each lane, and each lane's begin."""
    code = slot * (int(lane.max()) + 1) + lane
    order = np.argsort(code, kind="stable")
    same = code[order[1:]] == code[order[:-1]]
    before, after = order[:-1][same], order[1:][same]
    first = order[np.flatnonzero(np.append(True, ~same))]
    return [
        (exec_task[before], entry_task[after], EdgeKind.STREAM),
        (slot[first], entry_task[first], EdgeKind.WINDOW),
    ]


def _data_edges(table: OpTable, matches: Matches, exec_task: I64, entry_task: I64) -> list[Edges]:
    """A compute waits for what it receives; a send waits for what it sends."""
    role = table.role
    sends = np.flatnonzero((role == Role.SEND) & (matches.compute >= 0))
    recvs = np.flatnonzero((role == Role.RECV) & (matches.compute >= 0))
    before, after = _alongside_edges(table)
    return [
        (exec_task[matches.compute[sends]], entry_task[sends], EdgeKind.EVENT),
        (exec_task[recvs], entry_task[matches.compute[recvs]], EdgeKind.EVENT),
        (exec_task[before], entry_task[after], EdgeKind.EVENT),
    ]


def _alongside_edges(table: OpTable) -> tuple[I64, I64]:
    """What gathers and reductions that run beside the computes wait for, and what waits for them.

    A gather holds up the first forward of its chunk. A reduction waits for the last backward of
    its chunk and holds up what the compute lane does after all backwards.
    """
    role, chunk = table.role, np.maximum(table.chunk, 0)
    beside = runs_alongside(table)
    width = int(chunk.max()) + 1
    part = table.slot * width + chunk
    rows = np.arange(len(table))
    gathers, reduces = rows[beside & (role == Role.GATHER)], rows[beside & (role == Role.REDUCE)]
    forwards, backwards = rows[role == Role.FORWARD], rows[role == Role.BACKWARD]
    first = np.full(int(part[-1]) + width, -1)
    first[part[forwards][::-1]] = forwards[::-1]
    last, end = np.full(len(first), -1), np.full(int(table.slot[-1]) + 1, -1)
    last[part[backwards]] = backwards
    end[table.slot[backwards]] = backwards
    tail = rows[(_lanes_of(beside, role) == 0) & (rows > end[table.slot])]
    after = np.full(len(end), -1)
    after[table.slot[tail][::-1]] = tail[::-1]
    source = np.concatenate([gathers, last[part[reduces]], reduces])
    target = np.concatenate([first[part[gathers]], reduces, after[table.slot[reduces]]])
    keep = (source >= 0) & (target >= 0)
    return source[keep], target[keep]


def _lanes_of(beside: np.ndarray, role: np.ndarray) -> np.ndarray:
    return (beside | np.isin(role, TRANSFERS)).astype(np.int8)


def _meeting_edges(
    matches: Matches, comm: I64, exec_task: I64, entry_task: I64, first_join: int
) -> list[Edges]:
    """Executions wait for the arrivals of all members."""
    peers = comm[matches.peer[comm] >= 0]
    members = comm[matches.group[comm] >= 0]
    join = first_join + matches.group[members]
    return [
        (entry_task[comm], exec_task[comm], EdgeKind.RENDEZVOUS),
        (entry_task[matches.peer[peers]], exec_task[peers], EdgeKind.PEER),
        (entry_task[members], join, EdgeKind.RENDEZVOUS),
        (join, exec_task[members], EdgeKind.RENDEZVOUS),
    ]


def _tasks(rows: tuple[I64, I64], exec_task: I64, entry_task: I64) -> tuple[I64, I64]:
    return exec_task[rows[0]], entry_task[rows[1]]


def last_arrival_ns(table: OpTable, matches: Matches) -> I64:
    """When the last member of each row's transfer or collective arrived; its start otherwise."""
    last = table.start_ns.copy()
    paired = np.flatnonzero(matches.peer >= 0)
    np.maximum.at(last, paired, table.start_ns[matches.peer[paired]])
    members = np.flatnonzero(matches.group >= 0)
    latest = np.full(matches.groups, np.iinfo(np.int64).min)
    np.maximum.at(latest, matches.group[members], table.start_ns[members])
    last[members] = latest[matches.group[members]]
    return last


def exec_ns(table: OpTable, matches: Matches) -> I64:
    """Duration of each row without its waiting, ns, shape ``(rows,)``.

    A transfer whose other side was not recorded lasts as long as the typical one of its type,
    or as it was recorded if that is shorter.
    """
    dur = np.maximum(table.end_ns - last_arrival_ns(table, matches), 0)
    lone = np.isin(table.role, TRANSFERS) & (matches.peer < 0)
    for op in np.unique(table.op[lone]):
        whole = dur[(table.op == op) & ~lone]
        if len(whole):
            alone = lone & (table.op == op)
            dur[alone] = np.minimum(dur[alone], int(np.median(whole)))
    return dur


def _graph(
    table: OpTable, matches: Matches, comm: I64, lane: I64, levels: Levels,
    source: I64, kind: np.ndarray, edge: I64,
) -> JobGraph:  # fmt: skip
    """All columns, tasks in the order begins, rows, arrivals, joins; then by level."""
    slots = int(table.slot[-1]) + 1
    head = np.searchsorted(table.slot, np.arange(slots))
    row = np.concatenate([head, np.arange(len(table)), comm])
    joins = np.full(matches.groups, -1)
    order = levels.order
    last = last_arrival_ns(table, matches)
    begin = np.minimum.reduceat(table.start_ns, np.searchsorted(table.step, np.unique(table.step)))
    begin = begin[np.searchsorted(np.unique(table.step), table.step[head])]
    any_member = np.zeros(matches.groups, np.int64)
    members = np.flatnonzero(matches.group >= 0)
    any_member[matches.group[members]] = members
    is_comm = (matches.peer >= 0) | (matches.group >= 0)
    collective = np.where(matches.group >= 0, matches.group, _pairs(matches) + matches.groups)
    collective[~is_comm] = -1
    worker = table.dp.astype(np.int64) * table.layout.pp + table.stage
    lanes = int(lane.max()) + 1

    def column(begins, rows, arrivals, joined):  # type: ignore[no-untyped-def]
        parts = [np.broadcast_to(np.asarray(p), s) for p, s in (
            (begins, (slots,)), (rows, (len(table),)), (arrivals, (len(comm),)),
            (joined, (matches.groups,)))]
        return np.concatenate(parts)[order]

    raise NotImplementedError
