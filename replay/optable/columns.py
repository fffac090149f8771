"""Columns of the job graph of an operation table: which task stands for what."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from foretrace.replay.graph import I64, Collectives, JobGraph, Lanes, StepMarks, TaskKind
from foretrace.replay.optable.match import Matches, packed, step_index
from foretrace.replay.optable.meetings import Meetings
from foretrace.replay.wavefront import Levels
from foretrace.traces.optable.operations import COLLECTIVES, TRANSFERS, Role
from foretrace.traces.optable.table import OpTable
from foretrace.traces.schema import COLLECTIVE_KINDS


@dataclass(frozen=True, slots=True)
class Numbering:
    """Task numbers before the tasks are sorted: begins, rows, arrivals, joins, ends.

    Attributes:
        begin: where each slot (step, worker) begins, shape ``(slots,)``.
        row: the work or transfer of each row, shape ``(rows,)``.
        entry: the arrival of each row that meets others, else ``row``.
        join: one task for each collective, then for each inferred meeting.
        end: where each slot ends, shape ``(slots,)``.
        count: number of tasks.
        matches: which rows belong together.
        meetings: inferred meetings.
    """

    begin: I64
    row: I64
    entry: I64
    join: I64
    end: I64
    count: int
    matches: Matches
    meetings: Meetings

    @classmethod
    def of(cls, table: OpTable, matches: Matches, meetings: Meetings) -> Numbering:
        """Number the tasks of a table."""
        slots, rows = int(table.slot[-1]) + 1, len(table)
        met = np.flatnonzero((matches.peer >= 0) | (matches.group >= 0))
        joins = matches.groups + len(meetings.latest_ns)
        bounds = np.cumsum([0, slots, rows, len(met), joins, slots])
        parts = [np.arange(a, b) for a, b in pairwise(bounds.tolist())]
        entry = parts[1].copy()
        entry[met] = parts[2]
        begin, row, _, join, end = parts
        return cls(begin, row, entry, join, end, int(bounds[-1]), matches, meetings)


def last_arrival_ns(table: OpTable, matches: Matches) -> I64:
    """When the last member of each row's transfer or collective arrived; else its start."""
    last = table.start_ns.copy()
    paired = np.flatnonzero(matches.peer >= 0)
    last[paired] = np.maximum(last[paired], table.start_ns[matches.peer[paired]])
    latest = np.full(matches.groups, np.iinfo(np.int64).min)
    members = np.flatnonzero(matches.group >= 0)
    np.maximum.at(latest, matches.group[members], table.start_ns[members])
    last[members] = latest[matches.group[members]]
    return last


def exec_ns(table: OpTable, last_ns: I64, matches: Matches) -> I64:
    """Duration of each row without its waiting, ns, shape ``(rows,)``.

    A transfer whose other side was not recorded lasts as long as the typical one of its type,
    or as it was recorded if that is shorter.
    """
    dur: I64 = np.maximum(table.end_ns - last_ns, 0)
    lone = np.isin(table.role, TRANSFERS) & (matches.peer < 0)
    for op in np.unique(table.op[lone]):
        alone, whole = lone & (table.op == op), ~lone & (table.op == op)
        if whole.any():
            dur[alone] = np.minimum(dur[alone], int(np.median(dur[whole])))
    return dur


def job_graph(
    table: OpTable,
    at: Numbering,
    lane: I64,
    levels: Levels,
    edges: tuple[I64, I64, np.ndarray],
) -> JobGraph:
    """Put the columns of all tasks together, sorted by level.

    Args:
        table: the table.
        at: task numbers before sorting.
        lane: lane of each row within its worker.
        levels: the sorted order.
        edges: source, target (numbers before sorting) and kind of each edge.
    """
    matches, rank = at.matches, _ranks(table)
    last = last_arrival_ns(table, matches)
    collective, collectives, groups = _collectives(table, matches, rank)
    lane_of_row, lanes = _lanes(table, rank, lane)
    head, tail = _slot_bounds(table.slot)
    met = np.flatnonzero(at.entry != at.row)
    member, joined = _joins(matches, at.meetings, last)
    blocks = (head, np.arange(len(table)), met, member, tail)
    owner = np.concatenate(blocks)[levels.order]
    part = np.repeat(np.arange(5), [len(block) for block in blocks])[levels.order]
    is_row, is_join = part == 1, part == 3
    starts = (_first_start(table)[head], last, table.start_ns[met], joined, _latest(table)[tail])
    start = np.concatenate(starts)[levels.order]
    end = np.where(is_row, table.end_ns[owner], start)
    meets = np.isin(part, (1, 2)) | (
        is_join & (levels.order < len(at.begin) + len(table) + len(met) + matches.groups)
    )
    ptr, pred, edge_kind = _by_target(levels, edges)
    new = levels.number
    return JobGraph(
        rank=np.where(is_join, -1, rank[owner]).astype(np.int32),
        lane=np.where(is_join, -1, lane_of_row[owner]).astype(np.int32),
        kind=_kinds(matches, part, owner),
        dur_ns=np.where(is_row, exec_ns(table, last, matches)[owner], 0),
        name=table.op[owner],
        event=np.where(is_row, owner, -1),
        collective=np.where(meets, collective[owner], -1).astype(np.int32),
        step=table.step[owner].astype(np.int32),
        measured_start_ns=start,
        measured_end_ns=end,
        pred_ptr=ptr,
        pred=pred,
        edge_kind=edge_kind,
        edge_delay_ns=np.zeros(len(pred), np.int64),
        names=tuple(o.name for o in table.operations),
        lanes=lanes,
        collectives=collectives,
        groups=groups,
        steps=StepMarks(table.step[head].astype(np.int32), rank[head], new[at.begin], new[at.end]),
    )


def _joins(matches: Matches, meetings: Meetings, last_ns: I64) -> tuple[I64, I64]:
    """A member of each collective and meeting, and when its last member was there, ns."""
    count = matches.groups + len(meetings.latest_ns)
    member = np.zeros(count, np.int64)
    members = np.flatnonzero(matches.group >= 0)
    member[matches.group[members]] = members
    member[matches.groups + meetings.group] = meetings.row
    return member, np.append(last_ns[member[: matches.groups]], meetings.latest_ns)


def _first_start(table: OpTable) -> I64:
    """First start of any worker in the step of each row, ns."""
    first: I64 = np.minimum.reduceat(table.start_ns, np.flatnonzero(_changes(table.step)))
    return first[step_index(table)]


def _by_target(levels: Levels, edges: tuple[I64, I64, np.ndarray]) -> tuple[I64, I64, np.ndarray]:
    """Edges in the sorted numbers, CSR by target."""
    source, target, kind = edges
    source, target = levels.number[source], levels.number[target]
    order = np.argsort(target, kind="stable")
    ptr = np.zeros(len(levels.order) + 1, np.int64)
    np.cumsum(np.bincount(target, minlength=len(levels.order)), out=ptr[1:])
    return ptr, source[order], kind[order]


def _kinds(matches: Matches, part: np.ndarray, owner: I64) -> np.ndarray:
    """Kind of each task from its part of the numbering."""
    meets = (matches.peer >= 0) | (matches.group >= 0)
    row = np.where(meets[owner], TaskKind.COMM, TaskKind.KERNEL)
    other = np.array(
        [TaskKind.SKEW, TaskKind.KERNEL, TaskKind.ARRIVE, TaskKind.JOIN, TaskKind.MARK], np.int8
    )
    return np.where(part == 1, row, other[part]).astype(np.int8)


def _ranks(table: OpTable) -> np.ndarray:
    """Global rank of each row; the worker's number where the table states none."""
    worker = table.stage * table.layout.dp + table.dp
    return table.rank if (table.rank >= 0).all() else worker


def _changes(values: np.ndarray) -> np.ndarray:
    return np.append(True, values[1:] != values[:-1])


def _slot_bounds(slot: I64) -> tuple[I64, I64]:
    """First and last row of each slot."""
    head = np.flatnonzero(_changes(slot))
    return head, np.append(head[1:], len(slot)) - 1


def _latest(table: OpTable) -> I64:
    """End of each row's slot, ns."""
    head, _ = _slot_bounds(table.slot)
    latest: I64 = np.maximum.reduceat(table.end_ns, head)[table.slot]
    return latest


def _lanes(table: OpTable, rank: np.ndarray, lane: I64) -> tuple[I64, Lanes]:
    """Number of each row's lane, and the lanes."""
    width = int(lane.max()) + 1
    code, of_row = np.unique(rank.astype(np.int64) * width + lane, return_inverse=True)
    found = (code // width).astype(np.int32)
    return of_row, Lanes(found, np.zeros(len(code), np.int32), code % width)


_KIND_OF_ROLE = {
    Role.SEND: "send",
    Role.RECV: "recv",
    Role.GATHER: "all_gather",
    Role.REDUCE: "reduce_scatter",
    Role.ENDS: "all_reduce",
    Role.ALL: "all_reduce",
}


def _collectives(
    table: OpTable, matches: Matches, rank: np.ndarray
) -> tuple[I64, Collectives, tuple[tuple[int, ...], ...]]:
    """Collective of each row (-1 for none), what they are, and their groups of ranks.

    Collectives come first, in the numbers of ``matches.group``, then the pairs of transfers.
    """
    rows = np.arange(len(table))
    sender = np.flatnonzero((matches.peer >= 0) & (table.role == Role.SEND))
    of_row = matches.group.copy()
    of_row[sender] = of_row[matches.peer[sender]] = np.arange(len(sender)) + matches.groups
    inside = rows[of_row >= 0]
    role = table.role
    wide = np.isin(role, COLLECTIVES)
    same_stage = np.isin(role, (Role.GATHER, Role.REDUCE))
    other = np.where(matches.peer >= 0, matches.peer, rows)
    keys = (
        np.where(wide, role, 0),
        np.where(same_stage | (role == Role.ALL), 0, table.dp + 1),
        np.where(same_stage, table.stage + 1, 0),
        np.where(wide, 0, np.minimum(table.stage, table.stage[other])),
        np.where(wide, 0, np.maximum(table.stage, table.stage[other])),
    )
    code, _ = packed(keys)
    names, group_of = np.unique(code[inside], return_inverse=True)
    count = matches.groups + len(sender)
    group, example = np.zeros(count, np.int32), np.zeros(count, np.int64)
    group[of_row[inside]], example[of_row[inside]] = group_of, inside
    kinds = np.array([COLLECTIVE_KINDS.index(_KIND_OF_ROLE.get(Role(r), "send")) for r in Role])
    collectives = Collectives(
        kind=kinds[role[example]].astype(np.int8),
        group=group,
        bytes=np.full(count, -1, np.int64),
        confidence=np.ones(count, np.float32),
    )
    width = int(rank.max()) + 1
    pairs = np.unique(group_of * width + rank[inside])
    cuts = np.searchsorted(pairs, np.arange(1, len(names)) * width)
    members = np.split(pairs % width, cuts) if len(names) else []
    return of_row, collectives, tuple(tuple(m.tolist()) for m in members)
