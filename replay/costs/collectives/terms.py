"""The terms of a collective's time, and their sum for any number of rows.

The formula and where each term is from are in :mod:`foretrace.replay.costs.collectives.timing`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.costs.collectives.chunks import (
    LL128_PIECE,
    nvls_chunk,
    tree_chunk,
    tree_shape,
)
from foretrace.replay.costs.collectives.nccl_constants import (
    CANDIDATES,
    LL,
    LL128,
    NVLS,
    NVLS_TREE,
    SIMPLE,
    TREE,
)

_Column = NDArray[np.float64]
_NVLS_KIND = 3  # trees go by their protocol, then in-switch reduction on one node, on several
_KIND = np.array(
    [
        protocol
        if algorithm == TREE
        else {NVLS: _NVLS_KIND, NVLS_TREE: _NVLS_KIND + 1}.get(algorithm, -1)
        for algorithm, protocol in CANDIDATES
    ]
)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The terms of the module's formula, each of shape ``(shapes, candidates)``.

    Attributes:
        base: µs.
        hops: part of ``base`` that network hops take beyond NCCL's constants, µs.
        wire: µs a byte.
        root: µs for a square root of a byte.
        fill: µs a byte of the travelling chunk.
        fill_parts: most parts the bytes are cut into for it.
        fill_unit: a part is not smaller than this, bytes (0: no such bound).
        fill_cap: largest chunk, bytes; of trees see ``fill_steps``.
        fill_steps: of trees, what their chunk goes by, see ``chunks.tree_chunk``.
        inner: of LL128 trees, µs a byte of the piece that travels inside nodes.
        ramp: µs a byte of the in-switch chunk.
        ramp_width: channels x GPUs that each take such a chunk.
        ramp_cap: largest in-switch chunk, bytes.
    """

    base: _Column
    hops: _Column
    wire: _Column
    root: _Column
    fill: _Column
    fill_parts: _Column
    fill_unit: _Column
    fill_cap: _Column
    fill_steps: _Column
    inner: _Column
    ramp: _Column
    ramp_width: _Column
    ramp_cap: _Column


@dataclass(frozen=True, slots=True)
class Parts:
    """The time of each row by cause, µs, shape ``(rows,)``; their sum is the time.

    Attributes:
        latency: NCCL's latency constants.
        hops: network hops beyond them.
        wire: the slowest link.
        protocol: growth of LL hops.
        pipeline: the first chunk on its way.
    """

    latency: _Column
    hops: _Column
    wire: _Column
    protocol: _Column
    pipeline: _Column

    def total(self) -> _Column:
        """µs."""
        return self.latency + self.hops + self.wire + self.protocol + self.pipeline


def evaluate(
    table: Coefficients, shape: NDArray[np.int64], pick: NDArray[np.int64], size: _Column
) -> Parts:
    """The formula for rows.

    Args:
        table: the terms.
        shape: each row's shape.
        pick: each row's candidate.
        size: each row's bytes.
    """
    at = shape * len(CANDIDATES) + pick

    def of(name: str, rows: NDArray[np.int64] | slice = slice(None)) -> _Column:
        return np.take(getattr(table, name).ravel(), at[rows], mode="clip")

    wire, hops = of("wire") * size, of("hops")
    chunk = np.minimum(np.minimum(size, size / of("fill_parts")), of("fill_cap"))
    growth, pipeline = np.zeros(len(size)), of("fill") * chunk
    kind = _KIND[pick]
    for protocol in (LL, LL128, SIMPLE):
        rows = np.flatnonzero(kind == protocol)
        if not len(rows):
            continue
        own = size[rows]
        wire[rows] /= tree_shape(own, protocol)
        if protocol == LL:
            growth[rows] = of("root", rows) * np.sqrt(own)
            continue
        channels = of("fill_parts", rows)
        piece = np.minimum(own, np.maximum(of("fill_unit", rows), own / channels))
        piece = np.minimum(piece, tree_chunk(own, channels, of("fill_steps", rows), protocol))
        pipeline[rows] = of("fill", rows) * piece
        pipeline[rows] += of("inner", rows) * np.minimum(piece, LL128_PIECE)
    rows = np.flatnonzero(kind >= _NVLS_KIND)
    if len(rows):
        tree = kind[rows] > _NVLS_KIND
        piece = nvls_chunk(size[rows], of("ramp_width", rows), of("ramp_cap", rows), tree)
        pipeline[rows] = of("ramp", rows) * piece
    return Parts(of("base") - hops, hops, wire, growth, pipeline)
