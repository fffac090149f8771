"""One clock for all ranks: offsets from the ends of collectives.

All members of an all-reduce, all-gather or reduce-scatter leave it together (NCCL on one host:
within tens of microseconds), so differences of the recorded ends are clock offsets plus noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from foretrace.replay.alignkernel import robust_fit
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
    offset, _, residual = _solve(ends, drifting=False)
    offset = _against_reference(ends, offset)
    span = max(float(np.ptp(ends.value)), 1.0)
    middle = base + round(float(ends.value.min()) + span / 2)
    size = np.abs(residual)
    order = np.argsort(column, kind="stable")
    by_rank = np.split(size[order], np.cumsum(np.bincount(column))[:-1])
    return Alignment(
        offset_ns={int(r): round(o) for r, o in zip(ranks, offset, strict=True)},
        drift_ppm={int(r): float(d / span * 1e6) for r, d in zip(ranks, drift, strict=True) if d},
        reference_ns=middle,
        residual_ns=round(float(np.median(size))),
        rank_residual_ns={
            int(r): round(float(np.median(own))) for r, own in zip(ranks, by_rank, strict=True)
        },
        anchors=count,
    )


def _solve(ends: _Ends, *, drifting: bool) -> tuple[F64, F64, F64]:
    """Offsets, drifts (0 unless asked for) and residuals."""
    ptr = np.searchsorted(ends.row, np.arange(ends.count + 1))
    shape, huber = (ends.ranks, drifting), (ROUNDS, HUBER)
    found = robust_fit(ptr, ends.column, ends.value, ends.phase, shape, huber)
    offset, drift, residual = found
    return offset, drift, residual


def _drifts(ends: _Ends) -> F64:
    """How far each rank's clock drifts over the recording, ns, shape ``(ranks,)``.

    Only ranks that meet often enough can tell their drifts apart; a few common collectives
    would turn noise into drift. Within each set of such ranks the lowest one's clock is kept.
    """
    drift = np.zeros(ends.ranks)
    label = _often_together(ends)
    lowest = np.full(ends.count, ends.ranks)
    highest = np.full(ends.count, -1)
    np.minimum.at(lowest, ends.row, label[ends.column])
    np.maximum.at(highest, ends.row, label[ends.column])
    whole = np.flatnonzero((lowest == highest)[ends.row])  # collectives within one set
    if not len(whole):
        return drift
    whole = whole[np.argsort(label[ends.column[whole]], kind="stable")]
    groups, first = np.unique(label[ends.column[whole]], return_index=True)
    members = np.bincount(label)
    span = float(np.ptp(ends.value))
    for group, keep in zip(groups, np.split(whole, first[1:]), strict=True):
        if members[group] < 2:
            continue
        part = _part(ends, keep)
        _, found, residual = _solve(part, drifting=True)
        found = _against_reference(part, found)
        if _is_significant(part, found, residual):
            # Phases of the part and of the whole recording differ by their spans.
            drift[label == group] = found * span / max(float(np.ptp(part.value)), 1.0)
    return drift


def _part(ends: _Ends, keep: I64) -> _Ends:
    """Some members as ends of their own."""
    row = np.unique(ends.row[keep], return_inverse=True)[1]
    column = np.unique(ends.column[keep], return_inverse=True)[1]
    return _Ends(row, column, ends.value[keep], int(row.max()) + 1, int(column.max()) + 1)


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
