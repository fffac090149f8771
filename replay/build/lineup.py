"""The operations of one group's members side by side.

By sequence number where every member has one. Else by order, after finding how far each
member's recording window is shifted, and around operations that some member lost.
"""

from __future__ import annotations

from difflib import SequenceMatcher

import numpy as np

from foretrace.replay.build.communicators import Communicator
from foretrace.replay.graph import I64

MAX_SHIFT = 8
"""Windows are taken to begin at most this many operations apart."""

CLEARLY = 0.5
"""Another shift wins only where its ends agree at least this much better than without one."""


def line_up(members: list[Communicator]) -> tuple[I64, bool]:
    """Positions of common operations: shape ``(common, members)``, and whether by sequence."""
    if all((c.seq >= 0).all() and len(np.unique(c.seq)) == len(c.seq) for c in members):
        keys = [c.seq for c in members]
        by_seq = True
    else:
        keys = [_positions(members[0], c) for c in members]
        by_seq = False
    common = keys[0]
    for key in keys[1:]:
        common = np.intersect1d(common, key)
    common = common[common >= 0]
    columns = []
    for key in keys:
        order = np.argsort(key, kind="stable")
        columns.append(order[np.searchsorted(key[order], common)])
    return np.stack(columns, axis=1).astype(np.int64), by_seq


def _positions(reference: Communicator, comm: Communicator) -> I64:
    """For each operation of a member the position of its counterpart in the reference, < 0 none."""
    count = len(comm.kinds)
    if comm is reference:
        return np.arange(count)
    shift = _window_shift(reference, comm)
    if _agreement(reference, comm, shift) == 1.0:
        at = np.arange(count) + shift
        return np.where(at < len(reference.kinds), at, -1)
    # Something was lost in between: the longest common runs keep the rest in step.
    result = np.full(count, -1, np.int64)
    a, b = reference.kinds.tolist(), comm.kinds.tolist()
    for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        result[block.b : block.b + block.size] = np.arange(block.a, block.a + block.size)
    return result


def _window_shift(reference: Communicator, comm: Communicator) -> int:
    """How many operations later than the reference's the member's window begins.

    Kinds decide first. Among shifts whose kinds agree fully the ends do: under the right one
    their differences vary least, whatever the clocks.
    """
    shifts = sorted(range(-MAX_SHIFT, MAX_SHIFT + 1), key=abs)
    full = [s for s in shifts if _agreement(reference, comm, s) == 1.0]
    if not full:
        return max(shifts, key=lambda s: _agreement(reference, comm, s))
    varies = {s: _variation(reference, comm, s) for s in full}
    best = min(full, key=lambda s: varies[s])
    return best if varies[best] < CLEARLY * varies[full[0]] else full[0]


def _overlap(reference: Communicator, comm: Communicator, shift: int) -> tuple[slice, slice]:
    """The stretches of both that stand beside each other under a shift."""
    lo, hi = max(0, shift), min(len(reference.kinds), len(comm.kinds) + shift)
    return slice(lo, max(hi, lo)), slice(lo - shift, max(hi, lo) - shift)


def _agreement(reference: Communicator, comm: Communicator, shift: int) -> float:
    """Share of the operations side by side that are of one kind; less where few are."""
    a, b = _overlap(reference, comm, shift)
    beside = a.stop - a.start
    shorter = min(len(reference.kinds), len(comm.kinds))
    if beside < max(1, shorter - MAX_SHIFT):
        return 0.0
    return float((reference.kinds[a] == comm.kinds[b]).mean())


def _variation(reference: Communicator, comm: Communicator, shift: int) -> float:
    """Median deviation of the differences between ends under a shift, ns."""
    a, b = _overlap(reference, comm, shift)
    apart = (comm.ends[b] - reference.ends[a]).astype(np.float64)
    if len(apart) < 3:
        return np.inf if shift else 0.0
    return float(np.median(np.abs(apart - np.median(apart)))) + 1.0
