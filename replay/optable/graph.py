"""The job graph of an operation table.

Each worker has one lane for its computes and the collectives between them, and one lane for
each kind of transfer. A transfer or collective is an arrival (when its lane got there) and an
execution that begins when its last member has arrived; what a row lasted before that was waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import I64, EdgeKind, JobGraph
from foretrace.replay.optable.columns import Numbering, job_graph
from foretrace.replay.optable.issue import issue_edges, runs_alongside
from foretrace.replay.optable.match import Matches, match
from foretrace.replay.optable.meetings import NONE, Meetings, infer_meetings
from foretrace.replay.wavefront import by_level, ranges
from foretrace.traces.errors import GraphError
from foretrace.traces.optable.operations import TRANSFERS, Role
from foretrace.traces.optable.table import OpTable

Edges = tuple[I64, I64, EdgeKind]


@dataclass(frozen=True, slots=True)
class OpGraph:
    """A job graph of an operation table and how the two belong together.

    Attributes:
        graph: the job graph; a task's ``event`` is its row of the table.
        level_ptr: first task of each level, shape ``(levels + 1,)``.
        table: the table.
        matches: which rows belong together.
        meetings: inferred meetings.
        exec_task: task of each row's work or transfer, shape ``(rows,)``.
        entry_task: task of each row that waits for the worker: its arrival, or its work.
    """

    graph: JobGraph
    level_ptr: I64
    table: OpTable
    matches: Matches
    meetings: Meetings
    exec_task: I64
    entry_task: I64

    @property
    def exec_ns(self) -> I64:
        """Duration of each row without waiting, ns, shape ``(rows,)``."""
        return self.graph.dur_ns[self.exec_task]


def build_graph(table: OpTable) -> OpGraph:
    """The job as its data alone would have it: order within lanes, data, collectives.

    Args:
        table: the table.

    Raises:
        GraphError: the table's order contradicts itself.
    """
    return _assembled(table, match(table), NONE, issued=False)


def build_issued_graph(table: OpTable, fit: np.ndarray, matches: Matches | None = None) -> OpGraph:
    """The job as its workers ran it.

    Operations also wait for those that their worker issued before and that, by the table, held
    it up; and for meetings that no row shows.

    Args:
        table: the table.
        fit: rows from which meetings may be inferred, bool, shape ``(rows,)``.
        matches: which rows belong together, where that is known already.

    Raises:
        GraphError: the table's order contradicts itself.
    """
    return _assembled(table, matches or match(table), infer_meetings(table, fit), issued=True)


def _assembled(table: OpTable, matches: Matches, meetings: Meetings, issued: bool) -> OpGraph:
    beside = runs_alongside(table)
    lane = np.where(np.isin(table.role, TRANSFERS) | beside, table.op + 1, 0)
    at = Numbering.of(table, matches, meetings)
    edges = [
        *_lane_edges(table, lane, at),
        *_data_edges(table, matches, at),
        _edge(at, *_beside_edges(table, lane, beside), EdgeKind.EVENT),
        *_collective_edges(matches, at),
        *_meeting_edges(table, lane, meetings, at.join[matches.groups :], at),
    ]
    if issued:
        edges += _issue_edges(table, at)
    source = np.concatenate([e[0] for e in edges])
    target = np.concatenate([e[1] for e in edges])
    kind = np.repeat(np.array([e[2] for e in edges], np.int8), [len(e[0]) for e in edges])
    try:
        levels = by_level(at.count, source, target)
    except GraphError as error:
        raise GraphError(f"{table.source}: {error}") from error
    graph = job_graph(table, at, lane, levels, (source, target, kind))
    new = levels.number
    return OpGraph(graph, levels.ptr, table, matches, meetings, new[at.row], new[at.entry])


def _edge(at: Numbering, earlier: I64, later: I64, kind: EdgeKind) -> Edges:
    """Rows ``later`` do not enter before rows ``earlier`` have ended."""
    return at.row[earlier], at.entry[later], kind


def _issue_edges(table: OpTable, at: Numbering) -> list[Edges]:
    """Order in which each worker issued its operations."""
    earlier, later, ended = issue_edges(table, at.matches.compute)
    arrived = ~ended & (at.entry[earlier] != at.row[earlier])
    return [
        _edge(at, earlier[ended], later[ended], EdgeKind.HOST_ORDER),
        (at.entry[earlier[arrived]], at.entry[later[arrived]], EdgeKind.HOST_ORDER),
    ]


def _lane_edges(table: OpTable, lane: I64, at: Numbering) -> list[Edges]:
    """Order within each lane, and each lane's begin and end."""
    code = table.slot * (int(lane.max()) + 1) + lane
    order = np.argsort(code, kind="stable")
    same = code[order[1:]] == code[order[:-1]]
    first = order[np.flatnonzero(np.append(True, ~same))]
    last = order[np.flatnonzero(np.append(~same, True))]
    return [
        _edge(at, order[:-1][same], order[1:][same], EdgeKind.STREAM),
        (at.begin[table.slot[first]], at.entry[first], EdgeKind.WINDOW),
        (at.row[last], at.end[table.slot[last]], EdgeKind.MARK),
    ]


def _data_edges(table: OpTable, matches: Matches, at: Numbering) -> list[Edges]:
    """A compute waits for what it receives; a send waits for what it sends."""
    role = table.role
    sends = np.flatnonzero((role == Role.SEND) & (matches.compute >= 0))
    recvs = np.flatnonzero((role == Role.RECV) & (matches.compute >= 0))
    return [
        _edge(at, matches.compute[sends], sends, EdgeKind.EVENT),
        _edge(at, recvs, matches.compute[recvs], EdgeKind.EVENT),
    ]


def _beside_edges(table: OpTable, lane: I64, beside: np.ndarray) -> tuple[I64, I64]:
    """What gathers and reductions that run beside the computes wait for, and what waits for them.

    A gather holds up the first forward of its chunk. A reduction waits for the last backward of
    its chunk and holds up what the worker does after all of its backwards.
    """
    role = table.role
    if not beside.any():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    chunk = np.maximum(table.chunk, 0)
    part = table.slot * (int(chunk.max()) + 1) + chunk
    rows = np.arange(len(table))
    gathers, reduces = rows[beside & (role == Role.GATHER)], rows[beside & (role == Role.REDUCE)]
    backwards = rows[role == Role.BACKWARD]
    finished = _last(table.slot, backwards)
    tail = rows[(lane == 0) & (rows > finished[table.slot])]
    source = np.concatenate([gathers, _last(part, backwards)[part[reduces]], reduces])
    first_forward, first_tail = _first(part, rows[role == Role.FORWARD]), _first(table.slot, tail)
    target = np.concatenate(
        [first_forward[part[gathers]], reduces, first_tail[table.slot[reduces]]]
    )
    keep = (source >= 0) & (target >= 0)
    return source[keep], target[keep]


def _first(key: I64, rows: I64) -> I64:
    """The first of ``rows`` with each key, -1 for none."""
    return _last(key, rows[::-1])


def _last(key: I64, rows: I64) -> I64:
    """The last of ``rows`` with each key, -1 for none."""
    result = np.full(int(key.max()) + 1, -1, np.int64)
    result[key[rows]] = rows
    return result


def _collective_edges(matches: Matches, at: Numbering) -> list[Edges]:
    """Executions wait for the arrivals of all members."""
    met = np.flatnonzero((matches.peer >= 0) | (matches.group >= 0))
    paired = np.flatnonzero(matches.peer >= 0)
    members = np.flatnonzero(matches.group >= 0)
    join = at.join[matches.group[members]]
    return [
        (at.entry[met], at.row[met], EdgeKind.RENDEZVOUS),
        (at.entry[matches.peer[paired]], at.row[paired], EdgeKind.PEER),
        (at.entry[members], join, EdgeKind.RENDEZVOUS),
        (join, at.row[members], EdgeKind.RENDEZVOUS),
    ]


def _meeting_edges(
    table: OpTable, lane: I64, meetings: Meetings, join: I64, at: Numbering
) -> list[Edges]:
    """Who meets waits until the last member has ended all that it did before."""
    if not len(meetings.row):
        return []
    of_slot = np.full(int(table.slot[-1]) + 1, -1)
    of_slot[table.slot[meetings.row]] = meetings.row
    before = np.flatnonzero(np.arange(len(table)) < of_slot[table.slot])
    lanes = int(lane.max()) + 1
    last = _last(table.slot * lanes + lane, before)
    last = last[last >= 0]
    by_slot = np.argsort(table.slot[meetings.row], kind="stable")  # a worker may meet twice
    slots = table.slot[meetings.row][by_slot]
    low = np.searchsorted(slots, table.slot[last])
    count = np.searchsorted(slots, table.slot[last], side="right") - low
    member = by_slot[ranges(low, count)]
    return [
        (at.row[np.repeat(last, count)], join[meetings.group[member]], EdgeKind.THREAD),
        (join[meetings.group], at.entry[meetings.row], EdgeKind.THREAD),
    ]
