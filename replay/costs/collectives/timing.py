"""How long a chosen algorithm takes: latency, network hops, wire time, pipelining.

For a shape (kind, ranks, nodes) and a candidate (algorithm, protocol) the time of S bytes is ::

    time = base + wire S / shape(S) + root sqrt(min(S, root_cap))
         + fill min(S / fill_parts(S), fill_cap) + ramp chunk(S)

``base`` is NCCL's latency plus the measured part of each network hop. ``wire`` is the slowest
link's time for a byte. ``shape`` is NCCL's own bandwidth correction of LL and LL128 trees,
interpolated so that more bytes never cost less. ``root`` is the growth of LL and LL128
hops. ``fill`` is the first chunk of a Simple ring or tree on its way through all hops, and
``ramp`` the same for in-switch reduction, whose chunk NCCL picks by size. Times µs.
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
from foretrace.replay.costs.collectives.nccl_constants import (
    CANDIDATES,
    LL,
    LL128,
    NVLS,
    NVLS_EFFICIENCY,
    NVLS_TREE,
    RING,
    SIMPLE,
    TREE,
    TREE_CORRECTION,
    latencies,
)
from foretrace.replay.costs.collectives.shapes import BROADCAST, REDUCE, Shapes
from foretrace.replay.costs.collectives.shared import SharedConstants

_Column = NDArray[np.float64]
_SLICE_BYTES = 1 << 20  # a Simple ring's slice: 4 MiB buffer in 8 steps, 2 a slice
_TREE_CHUNK_BYTES = 1 << 19  # a Simple tree's chunk: one of those steps
_LL128_CHUNK_BYTES = 65536.0  # order of 8 lines of 120 bytes for each of 640 threads, by 8 steps
_CHANNEL_BYTES = 32768.0  # traffic below which NCCL opens no further channel (enqueue.cc l.585)
_NVLS_CHUNK_BYTES = 1 << 17
_NVLS_OVERHEAD = 3072.0  # bytes that a chunk's synchronisation costs
# GB/s that one channel moves inside a node: usable NVLink over the 16 channels of a group that
# spans nodes (src/graph/search.cc and connect.cc for one NIC a GPU).
_CHANNEL_GB_S = {"volta": 7.5, "ampere": 15.0, "hopper": 23.2, "blackwell": 45.1}
_ONE_NODE_TREE = 0.46  # NCCL: 0.92 of the graph, half of it each way


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The terms of the module's formula, each of shape ``(shapes, candidates)``.

    Attributes:
        base: µs.
        hops: part of ``base`` that network hops take beyond NCCL's constants, µs.
        wire: µs a byte.
        root: µs for a square root of a byte.
        root_cap: bytes from which that no longer grows.
        fill: µs a byte of the travelling chunk.
        fill_parts: most parts the bytes are cut into for it.
        fill_unit: a part is not smaller than this, bytes (0: no such bound).
        fill_cap: largest chunk, bytes.
        ramp: µs a byte of the in-switch chunk.
        ramp_width: channels x GPUs that each take such a chunk.
        ramp_cap: largest in-switch chunk, bytes.
    """

    base: _Column
    hops: _Column
    wire: _Column
    root: _Column
    root_cap: _Column
    fill: _Column
    fill_parts: _Column
    fill_unit: _Column
    fill_cap: _Column
    ramp: _Column
    ramp_width: _Column
    ramp_cap: _Column


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
    net, half = links.net, links.gpu / 2
    outside = np.where(shapes.nodes == 2, links.node, links.node / 2)
    if protocol == SIMPLE:
        outside = np.where(shapes.nodes == 2, outside, outside * shared.tree_share)
    rate = np.where(shapes.nodes == 1, _ONE_NODE_TREE * links.gpu, np.minimum(outside, half))
    deep = 2 * np.log2(shapes.nodes)
    if protocol == SIMPLE:
        channel = min(_CHANNEL_GB_S.get(cluster.gpu.generation, 20.0), links.gpu)
        over = np.where(shapes.nodes == 1, 0.0, deep * net.channels / links.node)
        column["fill"][:] = (over + 2 * (shapes.per_node - 1) / channel) / 1e3
        column["fill_parts"][:] = net.channels
        column["fill_unit"][:] = _CHANNEL_BYTES
        column["fill_cap"][:] = _TREE_CHUNK_BYTES
    else:
        own = bus_bandwidth(TREE, protocol, shapes, net, cluster) * 0.5
        rate = np.minimum(rate, own)
        full = net.channels * _LL128_CHUNK_BYTES
        column["root_cap"][:] = np.inf if protocol == LL else full
        at_64k = shared.of_fabric("ll_hop_us", cluster.fabric.name, 0.0)
        at_full = at_64k / 256 if protocol == LL else shared.ll128_hop_us / np.sqrt(full)
        column["root"][:] = deep * at_full
    column["wire"][:] = 1 / (1e3 * rate)


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
    cap = np.full(len(per_node), float(_NVLS_CHUNK_BYTES))
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


@dataclass(frozen=True, slots=True)
class Parts:
    """The time of each row by cause, µs, shape ``(rows,)``; their sum is the time.

    Attributes:
        latency: NCCL's latency constants.
        hops: network hops beyond them.
        wire: the slowest link.
        protocol: growth of LL and LL128 hops.
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

    def of(name: str) -> _Column:
        return np.take(getattr(table, name).ravel(), at, mode="clip")

    wire = of("wire") * size / _tree_shape(pick, size)
    growth = of("root") * np.sqrt(np.minimum(size, of("root_cap")))
    chunk = np.minimum(size, np.maximum(of("fill_unit"), size / of("fill_parts")))
    fill = of("fill") * np.minimum(chunk, of("fill_cap"))
    ramp = of("ramp") * nvls_chunk(size, of("ramp_width"), of("ramp_cap"))
    hops = of("hops")
    return Parts(of("base") - hops, hops, wire, growth, fill + ramp)


def nvls_chunk(size: _Column, width: _Column, cap: _Column) -> _Column:
    """Chunk that NCCL picks for in-switch reduction, bytes (enqueue.cc l.2182-2420).

    128 KB is halved below 64 rounds of it, 64 KB below 8, 32 KB below 2.
    """
    chunk = cap
    for large, rounds in ((1 << 17, 64), (1 << 16, 8), (1 << 15, 2)):
        few = (chunk == large) & (size < rounds * width * large)
        chunk = np.where(few, large / 2, chunk)
    return chunk


_IS_TREE = np.array([a == TREE and p != SIMPLE for a, p in CANDIDATES])
_LOG_SHAPE = np.log(TREE_CORRECTION[: LL128 + 1])


def _tree_shape(pick: NDArray[np.int64], size: _Column) -> _Column:
    factor = np.ones(len(size))
    rows = np.flatnonzero(_IS_TREE[pick])
    if len(rows):
        place = np.log2(np.maximum(size[rows], 1.0) / 64) - 0.5
        protocol = np.array([p for _, p in CANDIDATES])[pick[rows]]
        for code in (LL, LL128):
            own = protocol == code
            curve = np.interp(place[own], np.arange(_LOG_SHAPE.shape[1]), _LOG_SHAPE[code])
            factor[rows[own]] = np.exp(curve)
    return factor
