"""One clock for all ranks: offsets from the ends of collectives.

All members of an all-reduce, all-gather or reduce-scatter leave it together (NCCL on one host:
within tens of microseconds), so differences of the recorded ends are clock offsets plus noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import lsqr

from foretrace.replay.graph import I32, I64
from foretrace.traces.schema import COLLECTIVE_KINDS

ANCHOR_KINDS = tuple(
    COLLECTIVE_KINDS.index(k)
    for k in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
)
"""Kinds whose members end together. Broadcast and reduce let their root go early."""

ROUNDS = 8
HUBER = 1.5


@dataclass(frozen=True, slots=True)
class Alignment:
    """Clock corrections of a job.

    Attributes:
        offset_ns: rank -> ns to *add* to its times.
        residual_ns: median absolute distance of an end from its collective's common end, all
            ranks; -1 where nothing could be compared.
        rank_residual_ns: the same per rank.
        anchors: collectives used.
    """

    offset_ns: dict[int, int]
    residual_ns: int
    rank_residual_ns: dict[int, int]
    anchors: int


def align(ptr: I64, rank: I32, end_ns: I64) -> Alignment:
    """Solve for one offset per rank from matched ends.

    A robust least squares (Huber weights) over ``end = time of the collective - offset(rank)``;
    the lowest rank's clock is kept, in each set of ranks that anchors connect, and ranks without
    any anchor get 0.

    Args:
        ptr: members of collective i are ``ptr[i]:ptr[i + 1]``, shape ``(c + 1,)``.
        rank: rank of each member.
        end_ns: recorded end of each member.
    """
    ranks, column = np.unique(rank, return_inverse=True)
    count = len(ptr) - 1
    if count == 0 or len(ranks) < 2:
        return Alignment({int(r): 0 for r in ranks}, -1, {}, 0)
    row = np.repeat(np.arange(count), np.diff(ptr))
    base = int(end_ns.min())
    value = (end_ns - base).astype(np.float64)
    members = np.arange(len(rank))
    data = np.concatenate([np.ones(len(rank)), -np.ones(len(rank))])
    at = (np.tile(members, 2), np.concatenate([row, count + column]))
    design = sparse.csr_matrix((data, at), shape=(len(rank), count + len(ranks)))
    weight = np.ones(len(rank))
    solution = np.zeros(design.shape[1])
    # Start from the means: the solver then works on microseconds, not on whole recordings.
    solution[:count] = np.bincount(row, value) / np.bincount(row)
    for _ in range(ROUNDS):
        residual = value - design @ solution
        step = lsqr(sparse.diags(weight) @ design, weight * residual, atol=1e-10, btol=1e-10)[0]
        solution += step
        residual = np.abs(value - design @ solution)
        scale = max(1.4826 * float(np.median(residual)), 1.0)
        weight = np.sqrt(np.minimum(1.0, HUBER * scale / np.maximum(residual, 1e-9)))
    offset = solution[count:] - solution[count + _reference(row, column, count, len(ranks))]
    return Alignment(
        offset_ns={int(r): round(o) for r, o in zip(ranks, offset, strict=True)},
        residual_ns=round(float(np.median(residual))),
        rank_residual_ns={
            int(r): round(float(np.median(residual[column == i]))) for i, r in enumerate(ranks)
        },
        anchors=count,
    )


def _reference(row: I64, column: I64, count: int, ranks: int) -> I64:
    """The lowest rank that anchors connect each rank with, as columns, shape ``(ranks,)``."""
    size = count + ranks
    links = sparse.csr_matrix((np.ones(len(row)), (row, count + column)), shape=(size, size))
    label = connected_components(links, directed=False)[1][count:]
    _, first = np.unique(label, return_index=True)
    lowest: I64 = first[np.searchsorted(np.unique(label), label)]
    return lowest
