"""One clock for all ranks: offsets from the ends of collectives.

All members of an all-reduce, all-gather or reduce-scatter leave it together (NCCL on one host:
within tens of microseconds), so differences of the recorded ends are clock offsets plus noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import lsqr

from foretrace.replay.graph import F64, I32, I64
from foretrace.traces.schema import COLLECTIVE_KINDS

ANCHOR_KINDS = tuple(
    COLLECTIVE_KINDS.index(k)
    for k in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
)
"""Kinds whose members end together. Broadcast and reduce let their root go early."""

ROUNDS = 8
HUBER = 1.5


MIN_ANCHORS = 30
"""Ranks that share fewer collectives cannot tell their drifts apart."""

SIGNIFICANT = 4.0
"""A drift counts when it moves a clock, over the recording, by this many standard errors."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Clock corrections of a job.

    Attributes:
        offset_ns: rank -> ns to *add* to its times.
        drift_ppm: rank -> further ns to add for each millisecond after ``reference_ns``, in
            millionths; empty where no clock drifts measurably.
        reference_ns: the instant at which the offsets hold.
        residual_ns: median absolute distance of an end from its collective's common end, all
            ranks; -1 where nothing could be compared.
        rank_residual_ns: the same per rank.
        anchors: collectives used.
    """

    offset_ns: dict[int, int]
    drift_ppm: dict[int, float]
    reference_ns: int
    residual_ns: int
    rank_residual_ns: dict[int, int]
    anchors: int

    def correct(self, rank: int, time_ns: I64) -> I64:
        """A rank's recorded times on the job's clock."""
        drift = self.drift_ppm.get(rank, 0.0)
        moved = time_ns + self.offset_ns.get(rank, 0)
        if drift:
            moved = moved + np.rint((time_ns - self.reference_ns) * (drift * 1e-6)).astype(np.int64)
        return moved


@dataclass(frozen=True, slots=True)
class _Ends:
    """Matched ends as the solver sees them; arrays of shape ``(members,)``.

    Attributes:
        row: collective of each member.
        column: rank of each member, as a column.
        value: recorded end, ns after the first.
        count: collectives.
        ranks: ranks.
    """

    row: I64
    column: I64
    value: F64
    count: int
    ranks: int

    @property
    def phase(self) -> F64:
        """Where in the recording each member's collective lies, -0.5 to 0.5.

        The same for all members: a member's own end would explain itself.
        """
        common = (np.bincount(self.row, self.value) / np.bincount(self.row))[self.row]
        phase: F64 = (common - self.value.min()) / max(float(np.ptp(self.value)), 1.0) - 0.5
        return phase


def align(ptr: I64, rank: I32, end_ns: I64) -> Alignment:
    """Solve for one offset per rank, and for drifts where they show, from matched ends.

    A robust least squares (Huber weights) over ``end = time of the collective - offset(rank) -
    drift(rank) * phase``; the lowest rank's clock is kept, in each set of ranks that anchors
    connect, and ranks without any anchor get 0.

    Args:
        ptr: members of collective i are ``ptr[i]:ptr[i + 1]``, shape ``(c + 1,)``.
        rank: rank of each member.
        end_ns: recorded end of each member.
    """
    ranks, column = np.unique(rank, return_inverse=True)
    count = len(ptr) - 1
    if count == 0 or len(ranks) < 2:
        return Alignment({int(r): 0 for r in ranks}, {}, 0, -1, {}, 0)
    row = np.repeat(np.arange(count), np.diff(ptr))
    base = int(end_ns.min())
    ends = _Ends(row, column, (end_ns - base).astype(np.float64), count, len(ranks))
    drift = _drifts(ends)
    ends = replace(ends, value=ends.value + drift[column] * ends.phase)
    solution, residual = _solve(ends, drifting=False)
    offset = _against_reference(ends, solution[count : count + len(ranks)])
    span = max(float(np.ptp(ends.value)), 1.0)
    middle = base + round(float(ends.value.min()) + span / 2)
    size = np.abs(residual)
    return Alignment(
        offset_ns={int(r): round(o) for r, o in zip(ranks, offset, strict=True)},
        drift_ppm={int(r): float(d / span * 1e6) for r, d in zip(ranks, drift, strict=True) if d},
        reference_ns=middle,
        residual_ns=round(float(np.median(size))),
        rank_residual_ns={
            int(r): round(float(np.median(size[column == i]))) for i, r in enumerate(ranks)
        },
        anchors=count,
    )


def _solve(ends: _Ends, *, drifting: bool) -> tuple[F64, F64]:
    """Times of the collectives, offsets and, where asked for, drifts; and the residuals."""
    size = len(ends.row)
    members = np.arange(size)
    blocks = [(ends.row, np.ones(size)), (ends.count + ends.column, -np.ones(size))]
    if drifting:
        blocks.append((ends.count + ends.ranks + ends.column, -ends.phase))
    columns, data = (np.concatenate([b[i] for b in blocks]) for i in range(2))
    width = ends.count + ends.ranks * (2 if drifting else 1)
    at = (np.tile(members, len(blocks)), columns)
    design = sparse.csr_matrix((data, at), shape=(size, width))
    weight = np.ones(size)
    solution = np.zeros(width)
    # Start from the means: the solver then works on microseconds, not on whole recordings.
    solution[: ends.count] = np.bincount(ends.row, ends.value) / np.bincount(ends.row)
    residual = ends.value
    for _ in range(ROUNDS):
        residual = ends.value - design @ solution
        step = lsqr(sparse.diags(weight) @ design, weight * residual, atol=1e-10, btol=1e-10)[0]
        solution += step
        residual = ends.value - design @ solution
        scale = max(1.4826 * float(np.median(np.abs(residual))), 1.0)
        weight = np.sqrt(np.minimum(1.0, HUBER * scale / np.maximum(np.abs(residual), 1e-9)))
    return solution, residual


def _drifts(ends: _Ends) -> F64:
    """How far each rank's clock drifts over the recording, ns, shape ``(ranks,)``.

    Only ranks that meet often enough can tell their drifts apart; a few common collectives
    would turn noise into drift. Within each set of such ranks the lowest one's clock is kept.
    """
    drift = np.zeros(ends.ranks)
    label = _often_together(ends)
    for group in np.unique(label):
        inside = label[ends.column] == group
        whole = np.bincount(ends.row, ~inside, minlength=ends.count) == 0
        keep = inside & whole[ends.row]
        if (label == group).sum() < 2 or not keep.any():
            continue
        row = np.unique(ends.row[keep], return_inverse=True)[1]
        column = np.unique(ends.column[keep], return_inverse=True)[1]
        part = _Ends(row, column, ends.value[keep], int(row.max()) + 1, int(column.max()) + 1)
        solution, residual = _solve(part, drifting=True)
        found = _against_reference(part, solution[part.count + part.ranks :])
        if _is_significant(part, found, residual):
            # Phases of the part and of the whole recording differ by their spans.
            drift[label == group] = found * np.ptp(ends.value) / max(float(np.ptp(part.value)), 1.0)
    return drift


def _often_together(ends: _Ends) -> I64:
    """Number of the set of ranks that share many collectives, shape ``(ranks,)``."""
    shape = (ends.count, ends.ranks)
    member = sparse.csr_matrix((np.ones(len(ends.row)), (ends.row, ends.column)), shape=shape)
    together = (member.T @ member) >= MIN_ANCHORS
    label: I64 = connected_components(together, directed=False)[1]
    return label


def _is_significant(ends: _Ends, drift_ns: F64, residual: F64) -> bool:
    """Whether any rank's drift over the recording stands out of the noise."""
    scale = 1.4826 * np.median(np.abs(residual)) + 1.0
    count = np.bincount(ends.column)
    error = scale / (np.sqrt(count) * max(float(np.std(ends.phase)), 1e-3))
    return bool((np.abs(drift_ns) > SIGNIFICANT * error).any())


def _against_reference(ends: _Ends, values: F64) -> F64:
    """Values less those of the lowest rank that anchors connect each rank with."""
    relative: F64 = values - values[_reference(ends.row, ends.column, ends.count, ends.ranks)]
    return relative


def _reference(row: I64, column: I64, count: int, ranks: int) -> I64:
    """The lowest rank that anchors connect each rank with, as columns, shape ``(ranks,)``."""
    size = count + ranks
    links = sparse.csr_matrix((np.ones(len(row)), (row, count + column)), shape=(size, size))
    label = connected_components(links, directed=False)[1][count:]
    _, first = np.unique(label, return_index=True)
    lowest: I64 = first[np.searchsorted(np.unique(label), label)]
    return lowest
