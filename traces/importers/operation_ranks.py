"""Coarse operations of many ranks (forward, backward, send ...) to the tables of each rank.

Every step of such a recording has a clock of its own. Steps are laid out one after the other,
each beginning when the last rank has ended the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foretrace.traces import arrow
from foretrace.traces.importers.tables import counts_of, event_table, span_of, table_of
from foretrace.traces.manifest import Dropped, GroupInfo, RankInfo, StepInfo
from foretrace.traces.store import RankTables

I64 = NDArray[np.int64]
_Columns = dict[str, Any]

WORK_THREAD = 1
"""Thread number of a rank's work; communication has lanes of its own above it."""

STEPS_LAID_OUT = "steps laid out one after the other: the time between them is not known"


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of all ranks; arrays of shape ``(rows,)``.

    Attributes:
        rank: global rank.
        step: step number.
        name: index into ``names``.
        names: distinct names.
        thread: lane within the rank.
        start_ns: start, on the clock of the step or on one for all.
        dur_ns: duration.
        detail: index into ``details``.
        details: distinct JSON texts of what else is known.
    """

    rank: I64
    step: I64
    name: I64
    names: tuple[str, ...]
    thread: I64
    start_ns: I64
    dur_ns: I64
    detail: I64
    details: tuple[str, ...]


@dataclass(slots=True)
class Messages:
    """Communication operations among the rows; arrays of shape ``(operations,)``.

    Attributes:
        row: row of the operation.
        kind: one of ``schema.COLLECTIVE_KINDS``.
        peer: global rank of the other side of a transfer, -1 for collectives.
        group: index into ``groups``.
        seq: number of the operation within its group and kind.
        groups: members of each group.
    """

    row: I64
    kind: list[str]
    peer: I64
    group: I64
    seq: I64
    groups: list[GroupInfo] = field(default_factory=list)


def one_clock(step: I64, start_ns: I64, end_ns: I64) -> tuple[I64, bool]:
    """What to add to the times of each row so that steps follow each other, and whether any is.

    Times that are on one clock already, which shows in steps that do not overlap, stay.
    """
    steps, index = np.unique(step, return_inverse=True)
    first = np.full(len(steps), np.iinfo(np.int64).max)
    last = np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(first, index, start_ns)
    np.maximum.at(last, index, end_ns)
    if (first[1:] >= last[:-1]).all():
        return np.zeros(len(step), np.int64), False
    begin = np.concatenate([[0], np.cumsum((last - first)[:-1])])
    offset: I64 = (begin - first)[index]
    return offset, True


def rank_tables(ops: Operations, messages: Messages | None, info: RankInfo) -> list[RankTables]:
    """The tables of each rank.

    Args:
        ops: all operations.
        messages: which of them communicate.
        info: what holds for all ranks; what the tables lack is noted with the first one only.
    """
    offset, laid_out = one_clock(ops.step, ops.start_ns, ops.start_ns + ops.dur_ns)
    start = ops.start_ns + offset
    ranks = np.unique(ops.rank).tolist()
    found = [_one_rank(ops, messages, rank, start) for rank in ranks]
    for tables in found:
        own = tables.info
        if laid_out:
            own.dropped.append(Dropped(reason=STEPS_LAID_OUT, count=len(own.steps)))
        own.world_size, own.rank_from = info.world_size, info.rank_from
        own.layout = dict(info.layout)
        own.labels = dict(info.labels) | ({"steps": "laid out"} if laid_out else {})
    found[0].info.dropped[:0] = info.dropped
    return found


def _one_rank(ops: Operations, messages: Messages | None, rank: int, start: I64) -> RankTables:
    rows = np.flatnonzero(ops.rank == rank)
    steps = _steps(ops.step[rows], start[rows], start[rows] + ops.dur_ns[rows])
    calls = messages.row[np.isin(messages.row, rows)] if messages else np.zeros(0, np.int64)
    events, place = event_table(_columns(ops, rows, calls, start, steps))
    info = RankInfo(
        rank=rank,
        groups=messages.groups if messages else [],
        steps=steps,
        span_ns=span_of(events),
        counts=counts_of(events),
        dropped=[Dropped(reason="step mark made from the rows of the step", count=len(steps))],
    )
    if messages is None:
        return RankTables(info, events, table_of("collectives", {"p2p": np.zeros(0, np.bool_)}))
    work = place[np.searchsorted(rows, calls)]
    issued = place[len(rows) : len(rows) + len(calls)]
    return RankTables(info, events, _collectives(messages, rank, calls, work, issued))


def _steps(step: I64, start: I64, end: I64) -> list[StepInfo]:
    numbers, index = np.unique(step, return_inverse=True)
    first = np.full(len(numbers), np.iinfo(np.int64).max)
    last = np.full(len(numbers), np.iinfo(np.int64).min)
    np.minimum.at(first, index, start)
    np.maximum.at(last, index, end)
    marks = [
        StepInfo(step=n, start_ns=a, end_ns=b, thread=WORK_THREAD)
        for n, a, b in zip(numbers.tolist(), first.tolist(), last.tolist(), strict=True)
    ]
    return sorted(marks, key=lambda s: s.start_ns)


def _columns(ops: Operations, at: I64, calls: I64, start: I64, steps: list[StepInfo]) -> _Columns:
    """Rows of the events: the operations, the calls that carry them out, and step marks."""
    marks, rows = len(steps), np.concatenate([at, calls])
    communicates = np.isin(at, calls).astype(np.int32)
    kind = [communicates, np.zeros(len(calls), np.int32), np.ones(marks, np.int32)]
    on_work = np.full(len(calls) + marks, WORK_THREAD)
    names = [*ops.names, *(f"ProfilerStep#{s.step}" for s in steps)]
    name = np.append(ops.name[rows], len(ops.names) + np.arange(marks))
    begins = np.array([s.start_ns for s in steps], np.int64)
    ends = np.array([s.end_ns for s in steps], np.int64)
    return {
        "kind": arrow.coded(np.concatenate(kind), ["host_op", "annotation"]),
        "name": _coded(name, names),
        "start_ns": np.append(start[rows], begins),
        "dur_ns": np.append(ops.dur_ns[rows], ends - begins),
        "thread": np.append(ops.thread[at], on_work),
        "step": np.append(ops.step[rows], [s.step for s in steps]).astype(np.int32),
        "inputs": _coded(
            np.append(ops.detail[rows], np.full(marks, len(ops.details))), [*ops.details, ""]
        ),
    }


def _coded(codes: I64, values: list[str]) -> pa.DictionaryArray:
    used, inverse = np.unique(codes, return_inverse=True)
    return arrow.coded(inverse, [values[i] for i in used.tolist()])


def _collectives(messages: Messages, rank: int, calls: I64, work: I64, issued: I64) -> pa.Table:
    """One row per operation; its call is at once what waits for it, for calls block here."""
    order = np.argsort(work, kind="stable")
    at = np.searchsorted(messages.row, calls)[order]
    kinds = [messages.kind[i] for i in at.tolist()]
    groups = [messages.groups[g] for g in messages.group[at].tolist()]
    return table_of(
        "collectives",
        {
            "kind": kinds,
            "call_event": issued[order],
            "work_event": work[order],
            "wait_event": issued[order],
            "group": messages.group[at],
            "group_key": [g.name for g in groups],
            "group_size": [g.size for g in groups],
            "group_rank": [g.ranks.index(rank) if rank in g.ranks else -1 for g in groups],
            "seq": messages.seq[at],
            "p2p": np.array([k in ("send", "recv") for k in kinds], np.bool_),
            "peer": messages.peer[at],
            "source": ["table"] * len(at),
        },
    )
