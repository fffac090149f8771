"""Gloo, the CPU backend: rings over sockets.

::

    time = call + rounds x round + bytes on the busiest wire / rate (+ bytes added / sum rate)

An all-reduce is a ring of 2 (n - 1) rounds that moves 2 (n - 1) / n of the buffer and adds half
of that; all-gather and all-to-all take n - 1 rounds; broadcast and reduce a tree of log2 n.
PyTorch's reduce-scatter on gloo is an all-reduce of which each rank keeps its part. Times µs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.cost import PART_NAMES, Collectives, Costs
from foretrace.replay.costs.collectives.nccl_constants import GLOO, NO_PROTOCOL, PICKS
from foretrace.replay.costs.collectives.shapes import (
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE,
    REDUCE_SCATTER,
    SEND_RECV,
)
from foretrace.replay.costs.collectives.shared import DEFAULT, SharedConstants
from foretrace.replay.costs.collectives.terms import Parts


@dataclass(frozen=True, slots=True)
class GlooConstants:
    """Measured with PyTorch 2.13, two processes on one host of two busy cores.

    Good to a factor of two, so calibrate where it matters.

    Attributes:
        call_us: a call that moves nothing.
        round_us: a round between processes of one host.
        host_gb_s: rate between processes of one host, both ways at once, 10^9 bytes/s.
        sum_gb_s: rate at which one core adds what arrived.
    """

    call_us: float = 35.0
    round_us: float = 115.0
    host_gb_s: float = 1.2
    sum_gb_s: float = 4.0


def gloo_costs(
    ops: Collectives,
    cluster: Cluster,
    shared: SharedConstants = DEFAULT,
    constants: GlooConstants | None = None,
) -> Costs:
    """Price collectives on gloo.

    Args:
        ops: the operations; ``nodes`` are hosts.
        cluster: gives the network's rate.
        shared: gives what a round between hosts adds.
        constants: times and rates of the hosts.
    """
    use = constants or GlooConstants()
    ranks = ops.ranks.astype(np.float64)
    rounds, moved, added = _work(ops.kind, ranks)
    several = ops.nodes > 1
    hop = shared.of_fabric("hop_us", cluster.fabric.name, 0.0)
    nic = cluster.nic_bytes_per_s / 1e9 * cluster.nics_per_node * ops.share
    rate = np.where(several, np.minimum(nic, use.host_gb_s), use.host_gb_s)
    parts: dict[str, NDArray[np.float64]] = dict.fromkeys(PART_NAMES, np.zeros(len(ranks)))
    parts["latency"] = use.call_us + rounds * use.round_us
    parts["hops"] = np.where(several, rounds * hop, 0.0)
    parts["wire"] = moved * ops.size_bytes / (1e3 * rate)
    parts["pipeline"] = added * ops.size_bytes / (1e3 * use.sum_gb_s)
    alone = ops.ranks == 1
    made = Parts(**{name: np.where(alone, 0.0, values) for name, values in parts.items()})
    pick = np.full(len(ranks), PICKS.index((GLOO, NO_PROTOCOL)))
    return Costs(made.total(), pick, np.ones(len(ranks)), made)


def _work(
    kind: NDArray[np.int64], ranks: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Rounds, and the share of the buffer that crosses the busiest wire and that is added."""
    ring, part = ranks - 1, (ranks - 1) / ranks
    reduces = (kind == ALL_REDUCE) | (kind == REDUCE_SCATTER)
    rooted = (kind == BROADCAST) | (kind == REDUCE)
    depth = np.ceil(np.log2(ranks))
    rounds = np.where(reduces, 2 * ring, np.where(rooted, depth, ring))
    moved = np.where(reduces, 2 * part, np.where(rooted, depth, part))
    rounds = np.where(kind == SEND_RECV, 1.0, rounds)
    moved = np.where(kind == SEND_RECV, 1.0, moved)
    added = np.where(reduces, part, np.where(kind == REDUCE, depth, 0.0))
    return rounds, moved, np.where(kind == ALL_TO_ALL, 0.0, added)
