"""Pieces that NCCL cuts a message into, and its size correction of trees.

A chunk travels whole from hop to hop, so the first one's way is time that nothing hides. All
rules are of NVIDIA/nccl ``src/enqueue.cc`` (``calcCollChunking``, l.2182-2420 of 2.30): each
halves the largest chunk while too few of them would fill the pipeline. Sizes bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.costs.collectives.nccl_constants import (
    LL128,
    SIMPLE,
    TREE_CORRECTION,
)

_Column = NDArray[np.float64]
NVLS_CHUNK = 1 << 17
LL128_PIECE = 38400.0
"""What the threads of an LL128 channel move at once: 640 x 64 bytes, 15 of 16 of them data
(``src/device/prims_ll128.h``). A longer chunk is handed on piece by piece inside a node."""
_NVLS_RULE = ((1 << 17, 64), (1 << 16, 8), (1 << 15, 2))
_NVLS_TREE_RULE = ((1 << 17, 4), (1 << 16, 1))
_TREE_RULES = {
    # least chunk; for each doubling of it, the bytes a channel and pipeline step it holds from
    SIMPLE: (32768.0, (1.0 * 65536, 4.0 * 131072, 8.0 * 262144, 8.0 * 524288)),
    LL128: (18000.0, (16.0 * 36000, 16.0 * 72000, 64.0 * 144000, 64.0 * 288000, 64.0 * 576000)),
}
_LOG_SHAPE = np.log(np.pad(TREE_CORRECTION, ((0, 0), (0, 1)), constant_values=1.0))


def nvls_chunk(size: _Column, width: _Column, cap: _Column, tree: NDArray[np.bool_]) -> _Column:
    """Chunk of in-switch reduction.

    On one node 128 KB is halved below 64 rounds of it, 64 KB below 8, 32 KB below 2; over several
    nodes 128 KB below 4, 64 KB below 1.

    Args:
        size: bytes of each row.
        width: channels x GPUs that each take a chunk in a round.
        cap: largest chunk.
        tree: rows over several nodes.
    """
    chunk = cap
    for rule, own in ((_NVLS_RULE, ~tree), (_NVLS_TREE_RULE, tree)):
        for large, rounds in rule:
            few = own & (chunk == large) & (size < rounds * width * large)
            chunk = np.where(few, large / 2, chunk)
    return chunk


def tree_chunk(size: _Column, channels: _Column, steps: _Column, protocol: int) -> _Column:
    """Chunk of a tree under LL128 or Simple.

    Args:
        size: bytes of each row.
        channels: channels of its graph.
        steps: Simple: depth of the tree, its chains inside nodes included. LL128:
            (1 + floor(log2 nodes) + 0.1 ranks a node) / ranks a node.
        protocol: LL128 or SIMPLE.
    """
    least, thresholds = _TREE_RULES[protocol]
    chunk, each = np.full(len(size), least), size / (channels * steps)
    for threshold in thresholds:
        np.multiply(chunk, 2.0, out=chunk, where=each >= threshold)
    return chunk


def tree_shape(size: _Column, protocol: int) -> _Column:
    """NCCL's correction of a tree's bandwidth, interpolated so that more bytes cost more.

    Beyond the table, from 1 GiB, there is none.
    """
    place = np.log2(np.maximum(size, 1.0) / 64) - 0.5
    curve = np.interp(place, np.arange(_LOG_SHAPE.shape[1]), _LOG_SHAPE[protocol])
    return np.asarray(np.exp(curve))
