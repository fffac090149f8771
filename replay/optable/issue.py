"""How each worker issued its operations, as far as the table shows that they held it up."""

from __future__ import annotations

import numpy as np

from foretrace.replay.graph import I64
from foretrace.replay.optable.operations import TRANSFERS, Role
from foretrace.replay.optable.table import OpTable
from foretrace.replay.wavefront import ranges

OVERLAP = 0.2
"""An operation runs into the next one when it ends later than that one's start by this share of
its length: less is rounding (single-precision seconds move by tens of microseconds)."""
SELDOM = 0.1
"""Share of overlapping pairs up to which two operation types count as one after the other."""
OFTEN = 0.25
"""Share of overlapping rows from which a collective counts as running beside the computes."""


def runs_alongside(table: OpTable) -> np.ndarray:
    """Rows of data-parallel collectives that run while their worker computes, shape ``(n,)``.

    Decided for each operation type, by how often its rows overlap a forward or backward.
    """
    role = table.role
    result = np.zeros(len(table), bool)
    work = np.flatnonzero(np.isin(role, (Role.FORWARD, Role.BACKWARD)))
    rows = np.flatnonzero(np.isin(role, (Role.GATHER, Role.REDUCE)))
    if not len(work) or not len(rows):
        return result
    nth = np.searchsorted(work, rows)
    before, after = work[np.maximum(nth - 1, 0)], work[np.minimum(nth, len(work) - 1)]
    into_next = (table.slot[after] == table.slot[rows]) & (after > rows)
    into_next &= _runs_into(table, rows, after)
    from_last = (table.slot[before] == table.slot[rows]) & (before < rows)
    from_last &= _runs_into(table, before, rows)
    for op in np.unique(table.op[rows]):
        mine = table.op[rows] == op
        if (into_next | from_last)[mine].mean() > OFTEN:
            result[table.op == op] = True
    return result


def issue_edges(table: OpTable) -> tuple[I64, I64]:
    """Rows that wait for the rows issued just before them on the same worker.

    Transfers that were issued as one batch (same start and end) do not wait for each other.
    Pairs of operation types that the table shows to overlap are left out.

    Returns:
        ``(earlier row, later row)``.
    """
    transfer = np.isin(table.role, TRANSFERS)
    joined = transfer[1:] & transfer[:-1] & (np.diff(table.start_ns) == 0)
    joined &= np.diff(table.end_ns) == 0
    joined &= np.diff(table.slot) == 0
    first = np.flatnonzero(np.append(True, ~joined))
    size = np.diff(np.append(first, len(table)))
    batch = np.repeat(np.arange(len(first)), size)
    follows = (batch > 0) & (table.slot == table.slot[first[np.maximum(batch - 1, 0)]])
    later = np.flatnonzero(follows)
    count = size[batch[later] - 1]
    earlier = ranges(first[batch[later] - 1], count)
    later = np.repeat(later, count)
    kinds = len(table.operations)
    pair = table.op[earlier] * kinds + table.op[later]
    overlap = np.bincount(pair, _runs_into(table, earlier, later), kinds * kinds)
    total = np.bincount(pair, minlength=kinds * kinds)
    keep = (overlap <= SELDOM * total)[pair]
    return earlier[keep], later[keep]


def _runs_into(table: OpTable, earlier: I64, later: I64) -> np.ndarray:
    length = table.end_ns[earlier] - table.start_ns[earlier]
    result: np.ndarray = table.end_ns[earlier] - table.start_ns[later] > OVERLAP * length
    return result
