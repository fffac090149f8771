"""How many channels NCCL opens and how fast each is: its graph search in closed form.

For nodes whose GPUs see each other at one speed. Source: NVIDIA/nccl ``src/graph/search.cc``
(l.1051 speeds, l.1074 search, l.1030 duplication) and ``connect.cc`` (l.460, 481 doubling).
"""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.nccl_constants import channel_speeds

_WORSE_THAN_FOUND = 0.49  # a slower speed is tried while it is above this share of the found one
_MOST = 64  # MAXCHANNELS, src/include/device.h


@dataclass(frozen=True, slots=True)
class Channels:
    """The result of the search.

    Attributes:
        count: channels, which are thread blocks: each holds one SM.
        graph_gb_s: bandwidth NCCL takes the whole graph to have, 10^9 bytes/s.
        speed_gb_s: bandwidth of one channel of the search (before doubling).
    """

    count: int
    graph_gb_s: float
    speed_gb_s: float


def inside_node(cluster: Cluster) -> Channels:
    """Ring and tree channels of a group within one node."""
    modern = cluster.gpu.generation in ("hopper", "blackwell")
    capacity = cluster.gpu.link_usable_bytes_per_s / 1e9
    found = _search(capacity, 1, channel_speeds(cluster.gpu.generation, inside=True), modern)
    return Channels(2 * found.count, found.graph_gb_s, found.speed_gb_s)


def between_nodes(cluster: Cluster, nics: int) -> Channels:
    """Ring and tree channels of a group over several nodes.

    Args:
        cluster: the machine.
        nics: NICs of one node that the group can use.
    """
    modern = cluster.gpu.generation in ("hopper", "blackwell")
    rate = cluster.nic_bytes_per_s / 1e9
    found = _search(
        rate, max(nics, 1), channel_speeds(cluster.gpu.generation, inside=False), modern
    )
    count = 2 * found.count
    if modern and count < 16 and found.speed_gb_s > 45:
        count *= 2
    return Channels(min(count, _MOST), found.graph_gb_s, found.speed_gb_s)


def _search(capacity: float, links: int, speeds: tuple[float, ...], modern: bool) -> Channels:
    best = Channels(1, min(capacity, speeds[-1]), min(capacity, speeds[-1]))
    first = 0.0
    for speed in speeds:
        count = int(capacity / speed + 1e-9) * links
        if not count or speed < _WORSE_THAN_FOUND * first:
            continue
        first = first or speed
        if count * speed > best.graph_gb_s + 1e-9:
            best = Channels(count, count * speed, speed)
    few_or_fast = not modern or best.speed_gb_s >= 50 or best.count <= 4
    if best.speed_gb_s >= 25 and few_or_fast:
        return Channels(2 * best.count, best.graph_gb_s, best.speed_gb_s / 2)
    return best
