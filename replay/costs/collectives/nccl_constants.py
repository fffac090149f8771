"""NCCL's own numbers: latencies, caps and correction factors of its tuning model.

All from NVIDIA/nccl 2.30 (commit 5067397c) unless a comment says otherwise; the tables are in
``src/graph/tuning.cc``. Times µs, bandwidths 10^9 bytes/s. Older versions differ in a few entries,
see :func:`latencies`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALGORITHMS = ("Ring", "Tree", "NVLS", "NVLSTree", "PAT", "P2P", "Gloo")
PROTOCOLS = ("LL", "LL128", "Simple", "")
RING, TREE, NVLS, NVLS_TREE, PAT, P2P, GLOO = range(7)
LL, LL128, SIMPLE, NO_PROTOCOL = range(4)

CANDIDATES = (
    (RING, LL),
    (RING, LL128),
    (RING, SIMPLE),
    (TREE, LL),
    (TREE, LL128),
    (TREE, SIMPLE),
    (NVLS, SIMPLE),
    (NVLS_TREE, SIMPLE),
    (PAT, SIMPLE),
)
"""The (algorithm, protocol) pairs that NCCL compares, in its order of ties."""

PICKS = (*CANDIDATES, (P2P, NO_PROTOCOL), (GLOO, NO_PROTOCOL))
"""All that an operation can run as; numbers in ``Costs.pick``."""

GENERATION_ROW = {"none": 1, "volta": 0, "ampere": 1, "hopper": 2, "blackwell": 3}
"""Row of the tables below; AMD parts use the Ampere row (RCCL's tables are its own)."""

LL_MAX = np.array([[39, 39, 20.4], [87.7, 22.5, 19], [141, 45, 35], [282, 90, 70]])
"""Bus bandwidth that LL cannot exceed, by generation and scale (1, 2, more nodes), l.176-182. On
one node the row is the GPU's; on several it is 0 (Intel and other hosts) or 1 (AMD hosts)."""

RING_LL128_CHANNEL = np.array([[20.0] * 3, [20.0] * 3, [36.7] * 3, [40.0] * 3])
TREE_LL128_CHANNEL = np.array([[20, 20, 20], [20, 20, 20], [36.7, 36.7, 29], [55.6, 31.67, 20]])
TREE_CHANNEL = np.array([[26.5, 18.5, 10], [24, 23.6, 17.8], [38.7, 41.4, 36], [70, 42.8, 24]])
NVLS_TREE_CHANNEL = np.array([[26.5, 18.5, 10], [24, 23.6, 17.8], [0, 57.7, 45.5], [0, 96, 80]])
"""Bandwidth that one channel cannot exceed, same rows and columns, l.183-211."""

NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}
"""Share of NVLink that in-switch reduction reaches, l.139-144."""

_TREE_CORRECTION = (
    "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1 1",
    "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1 1",
    ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9 .9",
)
TREE_CORRECTION = np.array([[float(x) for x in row.split()] for row in _TREE_CORRECTION])
"""Factor on a tree's bandwidth in the choice, by protocol and log2(bytes / 64), l.623-627."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latency constants of one NCCL version, µs; rows Tree, Ring; columns LL, LL128, Simple.

    Attributes:
        base: once a collective.
        nvlink: a hop inside a node.
        net: a hop between nodes.
        nvls: NVLS, once.
        nvls_net: added to NVLS when there are several nodes.
        nvls_tree_net: a hop between nodes of NVLSTree.
        ll_max: see LL_MAX.
    """

    base: NDArray[np.float64]
    nvlink: NDArray[np.float64]
    net: NDArray[np.float64]
    nvls: float
    nvls_net: float
    nvls_tree_net: float
    ll_max: NDArray[np.float64]


def latencies(version: tuple[int, int]) -> Latencies:
    """Constants of a version, from the tagged sources of NVIDIA/nccl ``src/graph/tuning.cc``.

    Args:
        version: (major, minor).
    """
    base = np.array([[6.8, 14.0, 8.4], [6.6, 14.0, 8.4]])
    nvlink = np.array([[0.6, 1.25, 4.0], [0.6, 1.9, 3.4]])
    net = np.array([[5.0, 8.5, 14.0], [2.7, 4.0, 14.0]])
    ll_max = LL_MAX.copy()
    if version < (2, 13):
        base[:, 0] = 4.4, 3.6
        nvlink[:, 0] = 0.52, 0.47
    if version < (2, 18) or (2, 19) <= version <= (2, 22):
        nvlink[0, 2] = net[0, 2] = 28.0
    if version < (2, 22):
        ll_max[2] = 87.7, 22.5, 19.0
    nvls = 23.0 if version < (2, 19) else 25.0
    nvls_tree_net = 14.0 if version < (2, 19) else 20.9
    return Latencies(base, nvlink, net, nvls, 18.0, nvls_tree_net, ll_max)


_SPEEDS = {  # src/graph/search.cc l.1051-1067: (inside a node, between nodes), GB/s a channel
    "old": (
        (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
        (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
    ),
    "hopper": (
        (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
        (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    ),
    "blackwell": (
        (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
        (96, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    ),
}


def channel_speeds(generation: str, inside: bool) -> tuple[float, ...]:
    """Speeds that NCCL's graph search tries for one channel, GB/s, fastest first."""
    return _SPEEDS.get(generation, _SPEEDS["old"])[0 if inside else 1]
