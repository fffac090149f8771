"""Columns that the compiled loops of the replay with rates share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

ALONE, COMPUTES, ARRIVES, MOVES = 0, 1, 2, 3
"""Roles: at full rate always; computes; begins to hold its share; moves data."""

ARRIVED, BEGUN, ENDED = 0, 1, 2
"""What happens to a task in the list of events of :func:`work_done`."""

MILLION = 1_000_000


class Shares(NamedTuple):
    """What tasks take from their device and how they feel what others take.

    Attributes:
        role: one of the roles, shape ``(n,)``.
        device: device of each task with a role, shape ``(n,)``.
        holds: multiprocessors that an ARRIVES task takes and a MOVES task gives back.
        moves: millionths of the memory bandwidth that a MOVES task takes while it runs.
        row: row of ``table`` of each COMPUTES task.
        table: slowdown by row and held multiprocessors, at least 1.
        evicted: extra cost of a COMPUTES task's data per share of the bandwidth that others
            take, -1 where memory does not matter to it.
        disturbed: slowdown of a MOVES task while its party computes beside it.
        party: tasks that move data together and go at the pace of the slowest, shape ``(n,)``.
        party_ptr: shape ``(parties + 1,)``.
        member: MOVES tasks by party.
    """

    role: I8
    device: I32
    holds: I64
    moves: I64
    row: I32
    table: F64
    evicted: F64
    disturbed: F64
    party: I64
    party_ptr: I64
    member: I64


class State(NamedTuple):
    """Where everything stands; changed in place.

    Attributes:
        held: multiprocessors taken, by device.
        moving: millionths of the memory bandwidth taken, by device.
        computing: running COMPUTES tasks, by device.
        first: first running COMPUTES (column 0) and MOVES task (column 1) of each device, -1.
        after: the next one on the device, -1, shape ``(n,)``.
        before: the one before, -1, shape ``(n,)``.
        runs: whether a task runs.
        left: work left in whole ns at full rate, negative where it is counted from 0.
        part: fraction of a ns on top, 0 to 1.
        since: when ``left`` was put down.
        slow: slowdown since then.
        beside: devices on which a party moves data and something computes, by party.
        changed: tasks whose slowdown changed in the last event.
        changes: how many they are, in ``changes[0]``.
    """

    held: I64
    moving: I64
    computing: I64
    first: I64
    after: I64
    before: I64
    runs: Bool
    left: I64
    part: F64
    since: I64
    slow: F64
    beside: I64
    changed: I64
    changes: I64


class Successors(NamedTuple):
    """Edges by source.

    Attributes:
        ptr: shape ``(n + 1,)``.
        target: task that waits, shape ``(m,)``.
        from_start: whether it counts from the source's start.
        delay_ns: constant on the edge.
        missing: predecessors of each task, shape ``(n,)``; changed in place.
    """

    ptr: I64
    target: I64
    from_start: Bool
    delay_ns: I64
    missing: I64


class Clock(NamedTuple):
    """When tasks start and end, and what may start next; changed in place.

    Attributes:
        start: ns, shape ``(n,)``.
        end: ns, shape ``(n,)``.
        ready: the latest that any predecessor said so far.
        version: number of each task's last plan to end; older plans are void.
        free: a stack of tasks that wait for nothing more.
        depth: how many are on it, in ``depth[0]``.
    """

    start: I64
    end: I64
    ready: I64
    version: I64
    free: I64
    depth: I64
