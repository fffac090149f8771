"""How long a chosen algorithm takes: latency, network hops, wire time, pipelining.

For a shape (kind, ranks, nodes) and a candidate (algorithm, protocol) the time of S bytes is ::

    time = base + wire S / shape(S) + root sqrt(S) + fill chunk(S) + ramp nvls_chunk(S)

``base`` is NCCL's latency plus the measured part of each network hop. ``wire`` is the slowest
link's time for a byte. ``shape`` is NCCL's own bandwidth correction of trees, interpolated so
that more bytes never cost less. ``root`` is the growth of LL hops. ``fill`` is the first chunk
of a ring or tree on its way through all hops, ``ramp`` the same for in-switch reduction; the
rules of chunks are in :mod:`~.chunks`, the sum in :mod:`~.terms`. Times µs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.choice import (
    Graph,
    bus_bandwidth,
    bus_to_algorithm,
    graph,
    latency_us,
    network_hops,
)
from foretrace.replay.costs.collectives.chunks import NVLS_CHUNK
from foretrace.replay.costs.collectives.nccl_constants import (
    CANDIDATES,
    GENERATION_ROW,
    LL,
    LL128,
    NVLS,
    NVLS_EFFICIENCY,
    NVLS_TREE,
    RING,
    SIMPLE,
    TREE,
    TREE_LL128_CHANNEL,
    latencies,
)
from foretrace.replay.costs.collectives.shapes import BROADCAST, REDUCE, Shapes
from foretrace.replay.costs.collectives.shared import SharedConstants
from foretrace.replay.costs.collectives.terms import Coefficients

_Column = NDArray[np.float64]
_SLICE_BYTES = 1 << 20  # a Simple ring's slice: 4 MiB buffer in 8 steps, 2 a slice
_LEAST_BYTES = {LL128: 5120.0, SIMPLE: 32768.0}  # a channel's, else fewer are opened
_LL128_WIRE = 16 / 15  # bytes on the wire for each of data
_NVLS_OVERHEAD = 3072.0  # bytes that a chunk's synchronisation costs
# GB/s that one channel moves inside a node: usable NVLink over the 16 channels of a group that
# spans nodes (src/graph/search.cc and connect.cc for one NIC a GPU).
_CHANNEL_GB_S = {"volta": 7.5, "ampere": 15.0, "hopper": 23.2, "blackwell": 45.1}
_ONE_NODE_TREE = 0.46  # NCCL: 0.92 of the graph, half of it each way


@dataclass(frozen=True, slots=True)
class Links:
    """Bandwidths of each shape, 10^9 bytes/s.

    Attributes:
        gpu: one GPU into its node.
        ring: a ring inside one node, as NCCL's channels carry it.
        node: all NICs of a node that the group has.
        net: NCCL's own view.
    """

    gpu: float
    ring: _Column
    node: _Column
    net: Graph


def coefficients(shapes: Shapes, cluster: Cluster, shared: SharedConstants) -> Coefficients:
    """The formula's terms for every shape and candidate."""
    count = (len(shapes.ranks), len(CANDIDATES))
    table = {f.name: np.zeros(count) for f in fields(Coefficients)}
    for name in ("fill_parts", "ramp_width"):
        table[name][:] = 1.0
    net = graph(shapes, cluster)
    links = _links(shapes, net, cluster, shared)
    for number, (algorithm, protocol) in enumerate(CANDIDATES):
        column = {name: values[:, number] for name, values in table.items()}
        _base(column, algorithm, protocol, shapes, cluster, shared)
        if algorithm == RING:
            _ring(column, protocol, shapes, links, cluster)
        elif algorithm == TREE:
            _tree(column, protocol, shapes, links, cluster, shared)
        elif algorithm in (NVLS, NVLS_TREE):
            _in_switch(column, algorithm, shapes, links, cluster)
        else:
            column["wire"][:] = 1 / (1e3 * 0.75 * links.node)
    return Coefficients(**table)


def _links(shapes: Shapes, net: Graph, cluster: Cluster, shared: SharedConstants) -> Links:
    efficiency = shared.of_fabric("nic_efficiency", cluster.fabric.name, 1.0)
    node = net.nics * cluster.nic_bytes_per_s / 1e9 * efficiency * shapes.share
    gpu = cluster.gpu.link_usable_bytes_per_s / 1e9
    return Links(gpu, np.where(shapes.nodes == 1, net.gb_s, np.inf), node, net)


def _base(
    column: dict[str, _Column],
    algorithm: int,
    protocol: int,
    shapes: Shapes,
    cluster: Cluster,
    shared: SharedConstants,
) -> None:
    lat = latencies(cluster.version)
    hops = network_hops(algorithm, shapes)
    if algorithm in (TREE, NVLS_TREE):  # a tree over 3 nodes is deeper than over 2
        missing = 2 * np.log2(shapes.nodes) - hops
        hop = lat.nvls_tree_net if algorithm == NVLS_TREE else lat.net[0, protocol]
        column["base"] += missing * hop * (algorithm == TREE)
        hops = hops + missing
    column["hops"][:] = hops * shared.of_fabric("hop_us", cluster.fabric.name, 0.0)
    column["base"] += latency_us(algorithm, protocol, shapes, lat, cluster) + column["hops"]


def _ring(
    column: dict[str, _Column],
    protocol: int,
    shapes: Shapes,
    links: Links,
    cluster: Cluster,
) -> None:
    net, per_node = links.net, shapes.per_node
    inside = links.gpu * np.where(per_node > 1, per_node / np.maximum(per_node - 1, 1), np.inf)
    bus = np.where(shapes.nodes == 1, links.ring, np.minimum(links.node, inside))
    factor = bus_to_algorithm(RING, shapes)
    if protocol != SIMPLE:
        bus = np.minimum(bus, bus_bandwidth(RING, protocol, shapes, net, cluster))
    column["wire"][:] = 1 / (1e3 * bus * factor)
    if protocol == SIMPLE:
        rooted = (shapes.kind == BROADCAST) | (shapes.kind == REDUCE)
        hops = np.where(rooted, np.maximum(shapes.ranks - 2, 1) / 4, 1.0)
        column["fill"][:] = hops * net.channels / (1e3 * bus)
        column["fill_parts"][:] = np.where(rooted, 1, shapes.ranks) * net.channels
        column["fill_cap"][:] = np.where(rooted, 2 * _SLICE_BYTES, _SLICE_BYTES)


def _tree(
    column: dict[str, _Column],
    protocol: int,
    shapes: Shapes,
    links: Links,
    cluster: Cluster,
    shared: SharedConstants,
) -> None:
    outside = np.where(shapes.nodes == 2, links.node, links.node / 2)
    if protocol == SIMPLE:
        outside = np.where(shapes.nodes == 2, outside, outside * shared.tree_share)
    inside = np.where(shapes.nodes == 1, _ONE_NODE_TREE * links.gpu, links.gpu / 2)
    rate = np.where(shapes.nodes == 1, inside, np.minimum(outside, inside))
    if protocol != SIMPLE:
        caps = bus_bandwidth(TREE, protocol, shapes, links.net, cluster)
        rate = np.minimum(rate, caps * 0.5)
    column["wire"][:] = 1 / (1e3 * rate)
    if protocol == LL:
        hop = shared.of_fabric("ll_hop_us", cluster.fabric.name, 0.0)
        column["root"][:] = 2 * np.log2(shapes.nodes) * hop / 256
    else:
        _tree_chunks(column, protocol, shapes, links, cluster.gpu.generation)


def _tree_chunks(
    column: dict[str, _Column], protocol: int, shapes: Shapes, links: Links, generation: str
) -> None:
    """The first chunk's way: up and down the chains inside nodes, and over the network."""
    channels, per_node = links.net.channels, shapes.per_node
    hops, depth = 2 * np.log2(shapes.nodes), np.floor(np.log2(shapes.nodes))
    near = 2 * (per_node - 1)
    if protocol == LL128:
        rate = TREE_LL128_CHANNEL[GENERATION_ROW.get(generation, 1), links.net.scale]
        over = hops * (_LL128_WIRE * channels / links.node + 1 / rate)
        column["fill"][:], column["inner"][:] = over / 1e3, near / rate / 1e3
        column["fill_steps"][:] = (1 + depth + 0.1 * per_node) / per_node
    else:
        slow = min(_CHANNEL_GB_S.get(generation, 20.0), links.gpu)
        column["fill"][:] = (hops * channels / links.node + near / slow) / 1e3
        column["fill_steps"][:] = np.maximum(per_node - 1 + depth, 1)
    column["fill_parts"][:] = channels
    column["fill_unit"][:] = _LEAST_BYTES[protocol]


def _in_switch(
    column: dict[str, _Column],
    algorithm: int,
    shapes: Shapes,
    links: Links,
    cluster: Cluster,
) -> None:
    generation, per_node = cluster.gpu.generation, shapes.per_node
    channels = 16.0 if generation == "hopper" else 24.0
    # Beyond 8 GPUs the bus bandwidth stays that of 8: seen on racks of 72.
    wide = 14 / 9 * per_node / (2 * np.maximum(per_node - 1, 1))
    part = np.where(per_node > 8, wide, per_node / (per_node + 1))
    inside = links.gpu * NVLS_EFFICIENCY.get(generation, 0.85) * part
    cap = np.full(len(per_node), float(NVLS_CHUNK))
    depth, rate = np.zeros(len(per_node)), inside
    if algorithm == NVLS_TREE:
        channels, depth = 16.0, np.log2(shapes.nodes)
        outside = np.where(shapes.nodes == 2, links.node, links.node / 2)
        rate = np.minimum(inside, outside)
        cap = np.where(shapes.nodes >= 4, cap / 2, cap)
    byte = (1 + _NVLS_OVERHEAD / cap) / (1e3 * rate)
    column["wire"][:] = byte
    column["ramp"][:] = byte * (2 + 2 * depth) * channels * per_node
    column["ramp_width"][:] = channels * per_node
    column["ramp_cap"][:] = cap
