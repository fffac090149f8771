"""Measured points correct the model near themselves.

Each keeps the logarithm of measured over modelled. A prediction takes the mean of its
neighbours' in size and scale, weighted by distance in octaves, and pulled to no correction where
there are none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.costs.collectives.cost import Collectives, take
from foretrace.replay.costs.collectives.fit_file import MachineFit, by_scope

_Column = NDArray[np.float64]
_SIZE_WIDTH, _SCALE_WIDTH = 0.7, 0.7  # octaves over which a measured ratio reaches
_PRIOR_WEIGHT = 0.15  # of "no correction", against 1 for a measurement at the very point
_OTHER_PICK = 0.2  # weight of a neighbour that runs another algorithm or protocol
_BLOCK = 4096  # rows at a time


def seen_operations(fit: MachineFit) -> Collectives:
    """The operations that a fit keeps as measured points."""
    names = ("kind", "size_bytes", "ranks", "nodes")
    return Collectives.of(*(np.array([getattr(p, name) for p in fit.points]) for name in names))


def correction(
    ops: Collectives,
    pick: NDArray[np.int64],
    seen: Collectives,
    seen_pick: NDArray[np.int64],
    fit: MachineFit,
) -> _Column:
    """Smoothed ratio measured / modelled of the neighbours of each row.

    Args:
        ops: what is priced.
        pick: what each runs as.
        seen: the fit's measured points.
        seen_pick: what each of them runs as.
        fit: has the ratio of every point.
    """
    factor = np.ones(len(ops.kind))
    log_ratio = np.log(np.array([p.ratio for p in fit.points]))
    for (_, rows), (_, known) in zip(by_scope(ops), by_scope(seen), strict=True):
        if len(rows) and len(known):
            near = _Neighbours(take(seen, known), seen_pick[known], log_ratio[known])
            factor[rows] = np.exp(near.smooth(take(ops, rows), pick[rows]))
    return factor


class _Neighbours:
    """Measured ratios of one scope, by place."""

    def __init__(self, seen: Collectives, pick: NDArray[np.int64], log_ratio: _Column) -> None:
        self.kind, self.pick, self.log_ratio = seen.kind, pick, log_ratio
        self.size, self.nodes, self.ranks = _places(seen)

    def smooth(self, ops: Collectives, pick: NDArray[np.int64]) -> _Column:
        out = np.zeros(len(ops.kind))
        size, nodes, ranks = _places(ops)
        keys = np.stack([ops.kind, ops.ranks, ops.nodes])
        for key in np.unique(keys, axis=1).T:
            rows = np.flatnonzero((keys == key[:, None]).all(axis=0))
            known = np.flatnonzero(self.kind == key[0])
            if not len(known):
                known = np.arange(len(self.kind))
            top = min(nodes[rows[0]], self.nodes[known].max())
            most = min(ranks[rows[0]], self.ranks[known].max())
            scale = np.hypot(self.nodes[known] - top, self.ranks[known] - most) / _SCALE_WIDTH
            for begin in range(0, len(rows), _BLOCK):
                part = rows[begin : begin + _BLOCK]
                apart = (size[part, None] - self.size[known]) / _SIZE_WIDTH
                weight = np.exp(-0.5 * (apart**2 + scale**2))
                weight *= np.where(pick[part, None] == self.pick[known], 1.0, _OTHER_PICK)
                total = weight.sum(axis=1) + _PRIOR_WEIGHT
                out[part] = weight @ self.log_ratio[known] / total
        return out


def _places(ops: Collectives) -> tuple[_Column, _Column, _Column]:
    return np.log2(np.maximum(ops.size_bytes, 1)), np.log2(ops.nodes), np.log2(ops.ranks)
