"""How each worker issued its operations, as far as the table shows that they held it up."""

from __future__ import annotations

import numpy as np

from foretrace.replay.graph import I64
from foretrace.replay.wavefront import ranges
from foretrace.traces.optable.operations import TRANSFERS, Role
from foretrace.traces.optable.table import OpTable

OVERLAP = 0.2
"""An operation runs into the next one when it ends later than that one's start by this share of
its length: less is rounding (single-precision seconds move by tens of microseconds)."""
SELDOM = 0.1
"""Share of overlapping rows up to which an operation type counts as holding up what follows."""
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


def issue_edges(table: OpTable, compute: I64) -> tuple[I64, I64, np.ndarray]:
    """Each row and those issued just before it on the same worker.

    Transfers that were issued at once do not wait for each other. Where the table shows that an
    operation type runs beside what follows it, that waits only until it was issued, and for the
    end of the last work before. A send is issued when what it sends is there, however late its
    stream gets to it.

    Args:
        table: the table.
        compute: row of the compute behind each transfer, -1 unknown, shape ``(rows,)``.

    Returns:
        ``(earlier row, later row, whether the later waits for the earlier's end)``.
    """
    transfer = np.isin(table.role, TRANSFERS)
    joined = transfer[1:] & transfer[:-1] & (np.diff(table.start_ns) == 0)
    joined &= np.diff(table.slot) == 0
    first = np.flatnonzero(np.append(True, ~joined))
    size = np.diff(np.append(first, len(table)))
    batch = np.repeat(np.arange(len(first)), size)
    follows = (batch > 0) & (table.slot == table.slot[first[np.maximum(batch - 1, 0)]])
    later = np.flatnonzero(follows)
    count = size[batch[later] - 1]
    earlier = ranges(first[batch[later] - 1], count)
    later = np.repeat(later, count)
    ended = _one_after_the_other(table, earlier, later)
    work = np.flatnonzero(~transfer)
    loose = later[~ended | ((table.role[later] == Role.RECV) & transfer[earlier])]
    before = np.searchsorted(work, first[batch[loose]]) - 1
    before, loose = work[before[before >= 0]], loose[before >= 0]
    same = table.slot[before] == table.slot[loose]
    before, loose = before[same], loose[same]
    kept = _one_after_the_other(table, before, loose)
    earlier = np.concatenate([earlier, before[kept]])
    later = np.concatenate([later, loose[kept]])
    ended = np.append(ended, np.ones(int(kept.sum()), bool))
    sent = (table.role[later] == Role.SEND) & (compute[later] >= 0)
    real = ~sent | (compute[later] == earlier)
    return earlier[real], later[real], ended[real]


def _one_after_the_other(table: OpTable, earlier: I64, later: I64) -> np.ndarray:
    """Whether the earlier row holds up what follows it, decided by its operation type."""
    kinds = len(table.operations)
    op = table.op[earlier]
    overlap = np.bincount(op, _runs_into(table, earlier, later), kinds)
    result: np.ndarray = (overlap <= SELDOM * np.bincount(op, minlength=kinds))[op]
    return result


def _runs_into(table: OpTable, earlier: I64, later: I64) -> np.ndarray:
    length = table.end_ns[earlier] - table.start_ns[earlier]
    result: np.ndarray = table.end_ns[earlier] - table.start_ns[later] > OVERLAP * length
    return result
