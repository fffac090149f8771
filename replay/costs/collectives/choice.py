"""What NCCL predicts for each algorithm and protocol, and so which it runs.

``time = latency + bytes / (bandwidth x correction)`` and the least wins (NVIDIA/nccl
``src/graph/tuning.cc`` l.285-655, ``src/enqueue.cc`` l.2028). This is the *choice*: how long the
chosen one really takes is :mod:`foretrace.replay.costs.collectives.timing`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.channels import between_nodes, inside_node
from foretrace.replay.costs.collectives.nccl_constants import (
    CANDIDATES,
    GENERATION_ROW,
    LL,
    LL128,
    NVLS,
    NVLS_EFFICIENCY,
    NVLS_TREE,
    NVLS_TREE_CHANNEL,
    PAT,
    RING,
    RING_LL128_CHANNEL,
    SIMPLE,
    TREE,
    TREE_CHANNEL,
    TREE_LL128_CHANNEL,
    Latencies,
    channel_speeds,
    latencies,
)
from foretrace.replay.costs.collectives.shapes import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    REDUCE,
    REDUCE_SCATTER,
    Shapes,
    steps,
)

_Column = NDArray[np.float64]
OFF = np.inf


@dataclass(frozen=True, slots=True)
class Graph:
    """NCCL's view of the machine for each shape; columns of shape ``(shapes,)``.

    Attributes:
        gb_s: bandwidth of all channels together, 10^9 bytes/s.
        tree_gb_s: the same for trees: over two nodes their part inside a node may run at up to
            twice the network's speed, as one message goes up and another comes down.
        channels: channels (SMs held).
        nics: NICs of a node that the group uses.
        scale: 0, 1, 2 for one, two, more nodes.
    """

    gb_s: _Column
    tree_gb_s: _Column
    channels: _Column
    nics: _Column
    scale: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Prediction:
    """NCCL's two numbers for each shape and candidate, shape ``(shapes, candidates)``.

    Attributes:
        latency_us: inf where the pair cannot run.
        gb_s: algorithm bandwidth (bytes of the largest buffer over time).
    """

    latency_us: _Column
    gb_s: _Column


def graph(shapes: Shapes, cluster: Cluster) -> Graph:
    """Channels and bandwidths that NCCL's search finds."""
    inside = inside_node(cluster)
    share = shapes.per_node / cluster.gpus_per_node
    nics = np.maximum(1, np.round(cluster.nics_per_node * np.minimum(share, 1))).astype(int)
    found = {int(n): between_nodes(cluster, int(n)) for n in np.unique(nics)}
    outside = [found[int(n)] for n in nics]
    single = shapes.nodes == 1

    def column(name: str) -> _Column:
        return np.where(
            single,
            getattr(inside, name),
            np.array([getattr(c, name) for c in outside], dtype=float),
        )

    gb_s, link = column("graph_gb_s"), cluster.gpu.link_usable_bytes_per_s / 1e9
    return Graph(
        gb_s=gb_s,
        tree_gb_s=np.where(shapes.nodes == 2, np.minimum(2 * gb_s, np.maximum(link, gb_s)), gb_s),
        channels=column("count"),
        nics=nics.astype(float),
        scale=np.minimum(shapes.nodes, 3) - 1,
    )


def predict(shapes: Shapes, cluster: Cluster, ll_cap: float = 1.0) -> Prediction:
    """NCCL's latency and bandwidth of every candidate for every shape.

    Args:
        shapes: what runs.
        cluster: the machine.
        ll_cap: see ``SharedConstants``.
    """
    lat, net = latencies(cluster.version), graph(shapes, cluster)
    latency = np.empty((len(shapes.ranks), len(CANDIDATES)))
    bandwidth = np.empty_like(latency)
    for number, (algorithm, protocol) in enumerate(CANDIDATES):
        bus = bus_bandwidth(algorithm, protocol, shapes, net, cluster)
        bus = bus * (ll_cap if protocol == LL else 1.0)
        if algorithm == TREE:
            bus = bus * np.where(shapes.nodes > 1, _plain_tree(cluster), 1.0)
        bandwidth[:, number] = bus * bus_to_algorithm(algorithm, shapes)
        latency[:, number] = latency_us(algorithm, protocol, shapes, lat, cluster)
        latency[:, number] += reported_us(algorithm, protocol, shapes, cluster)
        latency[~available(algorithm, protocol, shapes, cluster), number] = OFF
    return Prediction(latency, np.maximum(bandwidth, 1e-9))


def _plain_tree(cluster: Cluster) -> float:
    """Part of a tree's bandwidth that NCCL counts where its search ends at plain trees, l.336.

    From compute capability 9 on it may fall back to them. It does where a second GPU has no near
    path to the first one's NIC, so that no balanced tree is found.
    """
    modern = GENERATION_ROW.get(cluster.gpu.generation, 1) >= 2
    return 0.85 if modern and cluster.nics_per_node >= cluster.gpus_per_node else 1.0


def available(algorithm: int, protocol: int, shapes: Shapes, cluster: Cluster) -> NDArray[np.bool_]:
    """Where an (algorithm, protocol) pair can run."""
    several, per_node = shapes.nodes > 1, shapes.per_node
    in_switch = cluster.nvswitch and cluster.gpu.generation in NVLS_EFFICIENCY
    in_switch = in_switch and cluster.version >= (2, 17)
    on = np.ones(len(several), dtype=bool)
    if algorithm == RING and protocol != LL128:
        return on
    if protocol == LL128:
        on &= (not cluster.nic_far) | ~several
        on &= cluster.gpu.vendor == "nvidia"
    if algorithm == TREE:
        on &= shapes.kind == ALL_REDUCE
    if algorithm == NVLS:
        on &= in_switch & ~several & (shapes.kind == ALL_REDUCE) & (shapes.ranks > 2)
    if algorithm == NVLS_TREE:
        on &= in_switch & several & (per_node > 2) & (shapes.kind == ALL_REDUCE)
    if algorithm == PAT:
        on &= (per_node == 1) & several & (cluster.version >= (2, 23))
        on &= (shapes.kind == ALL_GATHER) | (shapes.kind == REDUCE_SCATTER)
    return on


def bus_to_algorithm(algorithm: int, shapes: Shapes) -> _Column:
    """Bytes of the largest buffer for each byte that crosses the bottleneck link."""
    total, _ = steps(shapes)
    if algorithm == TREE:
        return np.full(len(total), 0.5)
    if algorithm == PAT:
        return np.ones(len(total))
    return shapes.ranks / np.maximum(total, 1)


def bus_bandwidth(
    algorithm: int, protocol: int, shapes: Shapes, net: Graph, cluster: Cluster
) -> _Column:
    """NCCL's bus bandwidth, 10^9 bytes/s (tuning.cc l.300-345)."""
    row, scale = GENERATION_ROW.get(cluster.gpu.generation, 1), net.scale
    ll_max = _ll_max(cluster, scale)
    capped = np.minimum(0.92 * net.tree_gb_s, net.channels * TREE_CHANNEL[row, scale])
    if algorithm == RING:
        ring128 = np.minimum(0.92 * net.gb_s, net.channels * RING_LL128_CHANNEL[row, scale])
        return (np.minimum(ll_max, net.gb_s / 2), ring128, net.gb_s)[protocol]
    if algorithm == TREE:
        part = np.where(scale == 0, 7 / 9, 120 / 128)
        tree128 = np.minimum(capped * part, net.channels * TREE_LL128_CHANNEL[row, scale])
        return np.asarray((np.minimum(capped / 3.8, ll_max), tree128, capped)[protocol])
    if algorithm == PAT:
        return 0.75 * net.gb_s
    return _in_switch_bandwidth(algorithm, shapes, net, cluster)


def _in_switch_bandwidth(algorithm: int, shapes: Shapes, net: Graph, cluster: Cluster) -> _Column:
    """Bus bandwidth of NVLS and NVLSTree: one channel of the search for each GPU of the node."""
    generation = cluster.gpu.generation
    heads = np.maximum(shapes.per_node, 1)
    link = cluster.gpu.link_usable_bytes_per_s / 1e9
    speeds = np.array(channel_speeds(generation, inside=True))
    fits = speeds[None, :] * heads[:, None] <= link
    speed = speeds[np.where(fits.any(axis=1), fits.argmax(axis=1), -1)]
    speed = np.where(shapes.nodes > 1, cluster.nic_bytes_per_s / 1e9, speed)
    inside = 2 * speed * NVLS_EFFICIENCY.get(generation, 0.0) * (heads - 1) / heads
    if algorithm == NVLS:
        return np.asarray(heads * inside)
    outside = cluster.nic_bytes_per_s / 1e9 * np.where(shapes.nodes == 2, 2.0, 1.0)
    cap = NVLS_TREE_CHANNEL[GENERATION_ROW.get(generation, 1), net.scale]
    return np.asarray(heads * np.minimum(np.minimum(inside, outside), cap))


def _ll_max(cluster: Cluster, scale: NDArray[np.int64]) -> _Column:
    table = latencies(cluster.version).ll_max
    own = GENERATION_ROW.get(cluster.gpu.generation, 1)
    host = 1 if cluster.cpu == "amd" else 0
    return np.asarray(np.where(scale == 0, table[own, 0], table[host, scale]))


def latency_us(
    algorithm: int, protocol: int, shapes: Shapes, lat: Latencies, cluster: Cluster
) -> _Column:
    """NCCL's latency without what the network plugin reports, µs (tuning.cc l.350-430)."""
    total, inter = steps(shapes)
    several, depth = shapes.nodes > 1, np.floor(np.log2(shapes.nodes))
    per_node = shapes.per_node
    if algorithm == NVLS:
        return np.full(len(total), lat.nvls) + np.where(several, lat.nvls_net, 0.0)
    if algorithm == NVLS_TREE:
        return lat.nvls + 2 * depth * lat.nvls_tree_net
    if algorithm == PAT:
        return np.asarray(8.0 + depth * lat.net[0, SIMPLE] / 3.5 + 2.8 * shapes.ranks)
    row = 0 if algorithm == TREE else 1
    base, nvlink, net = lat.base[row, protocol], lat.nvlink[row, protocol], lat.net[row, protocol]
    net = np.where(per_node == 1, lat.net[0, protocol], net)
    if algorithm == TREE:
        return np.asarray(base + 2 * ((per_node - 1) * nvlink + depth * net))
    overhead = (2.0 if cluster.cpu == "amd" else 1.0) * (3.0 if protocol == SIMPLE else 1.0)
    inside = np.maximum(nvlink, np.where(several, overhead, 0.0))
    ring = base + (total - inter) * inside + inter * net
    rooted = (shapes.kind == BROADCAST) | (shapes.kind == REDUCE)
    return np.asarray(np.where(rooted, base + np.where(several, net, inside), ring))


def reported_us(algorithm: int, protocol: int, shapes: Shapes, cluster: Cluster) -> _Column:
    """What the plugin's reported latency adds to NCCL's prediction, µs."""
    times = 2.0 if protocol == SIMPLE else 1.0
    return network_hops(algorithm, shapes) * cluster.fabric.reported_us * times


def network_hops(algorithm: int, shapes: Shapes) -> _Column:
    """Hops between nodes on the critical path."""
    _, inter = steps(shapes)
    depth = np.floor(np.log2(shapes.nodes))
    if algorithm in (TREE, NVLS_TREE):
        return 2 * depth
    if algorithm == PAT:
        return depth
    rooted = ((shapes.kind == BROADCAST) | (shapes.kind == REDUCE)) & (shapes.nodes > 1)
    return np.where(rooted, 1.0, inter)
