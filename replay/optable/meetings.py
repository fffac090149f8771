"""Meetings of workers that no row shows: after its last backward a worker waits for others.

Training loops reduce the loss over the data-parallel ranks of the last stage, or call a barrier,
without recording it. Such a wait must not be taken for a constant of the worker: it depends on
when the others arrive. It is inferred where the table leaves little doubt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import I64
from foretrace.traces.optable.operations import TRANSFERS, Role
from foretrace.traces.optable.table import OpTable

NEARLY_ALWAYS = 0.95
"""Share of all starts that must come after the last of the others was ready."""
EXPLAINS = 0.5
"""A meeting is inferred when the gaps vary at most this much of what they vary without it."""


@dataclass(frozen=True, slots=True)
class Meetings:
    """Inferred meetings.

    Attributes:
        row: rows that wait for others, shape ``(members,)``.
        group: meeting of each, shape ``(members,)``.
        latest_ns: when the last member of each meeting was ready, shape ``(meetings,)``.
        where: who meets, one line each.
    """

    row: I64
    group: I64
    latest_ns: I64
    where: tuple[str, ...]


_NOTHING = np.zeros(0, np.int64)
NONE = Meetings(_NOTHING, _NOTHING, _NOTHING, ())


def infer_meetings(table: OpTable, fit: np.ndarray) -> Meetings:
    """Find which workers wait for each other after their last backward.

    Args:
        table: the table.
        fit: rows that may be looked at, bool, shape ``(n,)``.
    """
    tail, ready = _tails(table)
    if not len(tail):
        return NONE
    step = np.unique(table.step[tail], return_inverse=True)[1]
    found, where = [], []
    for text, members in _candidates(table, tail):
        if _they_wait(table, fit, tail, ready, members, step):
            found.append(members)
            where.append(text)
    if not found:
        return NONE
    members = np.concatenate(found)
    which = np.repeat(np.arange(len(found)), [len(m) for m in found])
    kept, group = np.unique(which * (int(step.max()) + 1) + step[members], return_inverse=True)
    latest = np.full(len(kept), np.iinfo(np.int64).min)
    np.maximum.at(latest, group, ready[members])
    return Meetings(tail[members], group, latest, tuple(where))


def _tails(table: OpTable) -> tuple[I64, I64]:
    """The first row of each slot behind its last backward, and when the worker was ready for it."""
    rows = np.arange(len(table))
    slots = int(table.slot[-1]) + 1
    role = table.role
    last = np.full(slots, -1)
    last[table.slot[role == Role.BACKWARD]] = rows[role == Role.BACKWARD]
    instant = table.end_ns == table.start_ns
    behind = (last[table.slot] >= 0) & (rows > last[table.slot]) & ~instant
    behind &= ~np.isin(role, TRANSFERS)
    tail = np.full(slots, -1)
    tail[table.slot[behind][::-1]] = rows[behind][::-1]
    tail = tail[tail >= 0]
    before = rows < _of_slot(table, tail)
    ready = np.full(slots, np.iinfo(np.int64).min)
    np.maximum.at(ready, table.slot[before], table.end_ns[before])
    return tail, ready[table.slot[tail]]


def _of_slot(table: OpTable, tail: I64) -> I64:
    """The tail row of each row's slot, -1 for none, shape ``(n,)``."""
    of_slot = np.full(int(table.slot[-1]) + 1, -1)
    of_slot[table.slot[tail]] = tail
    result: I64 = of_slot[table.slot]
    return result


def _candidates(table: OpTable, tail: I64) -> Iterator[tuple[str, I64]]:
    """Who may meet: the data-parallel ranks of a stage, or the stages of a data-parallel rank."""
    for what, values in (
        ("the dp ranks of stage", table.stage),
        ("the stages of dp rank", table.dp),
    ):
        for value in np.unique(values[tail]).tolist():
            yield f"{what} {value}", np.flatnonzero(values[tail] == value)


def _they_wait(
    table: OpTable, fit: np.ndarray, tail: I64, ready: I64, members: I64, step: I64
) -> bool:
    """Whether, in the rows that may be looked at, the members start when the last is ready."""
    seen = members[fit[tail[members]]]
    if len(seen) < 2 or len(seen) == len(np.unique(step[seen])):
        return False  # nobody to wait for
    latest = np.full(int(step.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, step[seen], ready[seen])
    start = table.start_ns[tail[seen]]
    own, joint = start - ready[seen], start - latest[step[seen]]
    if (joint >= 0).mean() < NEARLY_ALWAYS:
        return False
    worker = table.dp[tail[seen]] * table.layout.pp + table.stage[tail[seen]]
    return _variation(joint, worker) <= EXPLAINS * _variation(own, worker)


def _variation(gap_ns: I64, worker: np.ndarray) -> float:
    """Mean distance of the gaps from their worker's median, ns."""
    order = np.lexsort((gap_ns, worker))
    gap, worker = gap_ns[order], worker[order]
    first = np.flatnonzero(np.append(True, np.diff(worker) != 0))
    count = np.diff(np.append(first, len(gap)))
    median = np.repeat(gap[first + count // 2], count)
    return float(np.abs(gap - median).mean())
