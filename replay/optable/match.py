"""Which rows of a table belong together: transfers with their peers, collectives, computes.

Everything is matched by order, never by time: the k-th send of a stage is the k-th receive of
its neighbour, as communication libraries require.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import I64
from foretrace.traces.optable.operations import COLLECTIVES, TRANSFERS, Role
from foretrace.traces.optable.table import OpTable


@dataclass(frozen=True, slots=True)
class Matches:
    """How the rows of a table depend on each other; arrays of shape ``(n,)``.

    Attributes:
        peer: row of the other side of a transfer, -1 for none.
        group: number of the row's collective, -1 for none.
        groups: number of collectives.
        compute: row of the compute that a transfer feeds or is fed by, -1 for none.
        unmatched: transfers without their other side.
    """

    peer: I64
    group: I64
    groups: int
    compute: I64
    unmatched: int

    @property
    def problems(self) -> tuple[str, ...]:
        """What is odd about the matching, one line each."""
        if not self.unmatched:
            return ()
        return (
            f"{self.unmatched} transfers lack their other side; "
            "they take as long as the typical one of their type",
        )


def match(table: OpTable) -> Matches:
    """Match the rows of a table."""
    role = table.role
    number = ordinal(table.slot, table.op)
    peer, unmatched = _peers(table, role, number)
    group, groups = _groups(table, role, number)
    return Matches(peer, group, groups, _computes(table, role, number), unmatched)


def ordinal(*keys: np.ndarray) -> I64:
    """How many earlier rows hold the same keys, shape ``(n,)``."""
    code, _ = packed(keys)
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    new = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    run = np.arange(len(ordered)) - np.repeat(new, np.diff(np.append(new, len(ordered))))
    result = np.empty(len(ordered), np.int64)
    result[order] = run
    return result


def packed(keys: tuple[np.ndarray, ...]) -> tuple[I64, int]:
    """One code for each combination of small non-negative keys, and the number of codes."""
    code = np.zeros(len(keys[0]), np.int64)
    size = 1
    for key in keys:
        width = int(key.max(initial=0)) + 1
        code = code * width + key
        size *= width
    return code, size


def step_index(table: OpTable) -> I64:
    """Number of each row's step among the table's steps, shape ``(n,)``."""
    index: I64 = np.cumsum(np.diff(table.step, prepend=table.step[:1]) != 0)
    return index


def _peers(table: OpTable, role: np.ndarray, number: I64) -> tuple[I64, int]:
    """The other side of each transfer and how many have none."""
    peer = np.full(len(table), -1, np.int64)
    rows = np.flatnonzero(np.isin(role, TRANSFERS))
    if not len(rows):
        return peer, 0
    backward = np.array([o.backward for o in table.operations])[table.op[rows]]
    send = role[rows] == Role.SEND
    ahead = np.where(backward, -1, 1) * send
    receiver = (table.stage[rows] + ahead) % table.layout.pp
    keys = (step_index(table)[rows], table.dp[rows], receiver, backward, number[rows])
    code, _ = packed(keys)
    senders, receivers = rows[send], rows[~send]
    order = np.argsort(code[~send], kind="stable")
    sought, known = code[send], code[~send][order]
    at = np.minimum(np.searchsorted(known, sought), max(len(known) - 1, 0))
    hit = known[at] == sought if len(known) else np.zeros(len(sought), bool)
    peer[senders[hit]] = receivers[order[at[hit]]]
    peer[receivers[order[at[hit]]]] = senders[hit]
    return peer, int(len(rows) - 2 * hit.sum())


def _groups(table: OpTable, role: np.ndarray, number: I64) -> tuple[I64, int]:
    """The collective of each row: same step, type and turn, over the workers its role names."""
    group = np.full(len(table), -1, np.int64)
    rows = np.flatnonzero(np.isin(role, COLLECTIVES))
    if not len(rows):
        return group, 0
    of_stage = np.isin(role[rows], (Role.GATHER, Role.REDUCE))
    of_dp = role[rows] == Role.ENDS
    stage = np.where(of_stage, table.stage[rows], 0)
    dp = np.where(of_dp, table.dp[rows], 0)
    code, _ = packed((step_index(table)[rows], table.op[rows], stage, dp, number[rows]))
    found, group[rows] = np.unique(code, return_inverse=True)
    return group, len(found)


def _computes(table: OpTable, role: np.ndarray, number: I64) -> I64:
    """The compute behind each send and after each receive.

    The k-th receive of a worker feeds the k-th compute that needs one; the very first forward
    and the very first backward of the model need none, and the last of each send nothing.
    """
    compute = np.full(len(table), -1, np.int64)
    backward = np.array([o.backward for o in table.operations])[table.op]
    chunk = np.maximum(table.chunk, 0)
    part = chunk * table.layout.pp + table.stage
    last = int(part[np.isin(role, (Role.FORWARD, Role.BACKWARD))].max(initial=0))
    for is_backward, work in ((False, Role.FORWARD), (True, Role.BACKWARD)):
        first_part, last_part = (last, 0) if is_backward else (0, last)
        for way, bare in ((Role.RECV, first_part), (Role.SEND, last_part)):
            moved = np.flatnonzero((role == way) & (backward == is_backward))
            works = np.flatnonzero((role == work) & (part != bare))
            _join(compute, table.slot, moved, works)
    return compute


def _join(compute: I64, slot: I64, moved: I64, works: I64) -> None:
    """Pair the k-th transfer of each slot with its k-th compute."""
    if not len(moved) or not len(works):
        return
    nth, of = ordinal(slot[moved]), ordinal(slot[works])
    width = int(max(nth.max(), of.max())) + 1
    sought, known = slot[moved] * width + nth, slot[works] * width + of  # both ascending
    at = np.minimum(np.searchsorted(known, sought), len(known) - 1)
    hit = known[at] == sought
    compute[moved[hit]] = works[at[hit]]
