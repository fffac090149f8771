"""Send and receive, and several of them fused in one kernel.

::

    one message      base + remote + bytes / min(link, channels x rate of a channel)
    fused messages   see ``alltoall``: they also wait for the first chunk of one of them

NCCL starts a message on few channels and doubles them while a part is longer than 16 MB (NVLink)
or 128 KB (network), up to a limit for each peer (NVIDIA/nccl ``src/enqueue.cc`` l.866,
``src/graph/paths.cc`` l.918-1005). Bytes per second of one channel are shared constants, see
:class:`foretrace.replay.costs.collectives.shared.SharedConstants`. Times µs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.channels import between_nodes
from foretrace.replay.costs.collectives.shared import DEFAULT, SharedConstants

_Column = NDArray[np.float64]
_POOL = 32  # point-to-point channels of one node, paths.cc l.977
_SEND_US, _REMOTE_SEND_US = 8.0, 6.0  # launch and hand-over of one message (fits, docs)
_LINK_RAW = {"volta": 25.0, "ampere": 25.0, "hopper": 25.0, "blackwell": 50.0}  # GB/s a link
_NET_PART, _LINK_PART = float(1 << 17), float(1 << 24)  # longest part of a message, bytes
_LEAST_PART = float(1 << 16)
_LL_BYTES = float(1 << 14)  # LL, which doubles the bytes, runs up to here (enqueue.cc l.859)
_LINK_CHUNK, _NET_CHUNK = float(1 << 19), float(1 << 17)  # NCCL_P2P_NVL_ and _NET_CHUNKSIZE


@dataclass(frozen=True, slots=True)
class Wires:
    """What a point-to-point kernel finds between two ranks, 10^9 bytes/s.

    Attributes:
        link: one GPU into its node.
        nic: one GPU's part of the node's NICs.
        link_channel: one channel inside a node.
        net_channel: one channel between nodes.
        link_channels: most channels to a peer inside a node.
        net_channels: most channels to a peer on another node.
        pool: channels that all peers share.
    """

    link: float
    nic: float
    link_channel: float
    net_channel: float
    link_channels: int
    net_channels: int
    pool: int


def wires(cluster: Cluster, per_node: int, several: bool, shared: SharedConstants) -> Wires:
    """Rates and channel limits of a group.

    Args:
        cluster: the machine.
        per_node: members of the group on each node.
        several: whether it is on several nodes.
        shared: constants of the physical model.
    """
    generation = cluster.gpu.generation
    share = cluster.nics_per_node / cluster.gpus_per_node
    nics = max(1, round(share * min(per_node, cluster.gpus_per_node)))
    nic_share = max(share, 1 / per_node) if share < 1 else share
    efficiency = shared.of_fabric("nic_efficiency", cluster.fabric.name, 1.0)
    rate = cluster.nic_bytes_per_s / 1e9
    pool = min(_POOL, between_nodes(cluster, nics).count) if several else _POOL
    remote = 2
    if cluster.version >= (2, 29):
        remote = max(2, int(np.ceil(cluster.nic_gbit_per_s / 8 / 14)))
        while remote > 1 and remote * min(per_node, 8) > pool:
            remote //= 2
    raw = cluster.gpu.link_raw_bytes_per_s / 1e9
    links = 2 * round(raw / _LINK_RAW.get(generation, max(raw / 7, 1.0)))
    return Wires(
        link=cluster.gpu.link_usable_bytes_per_s / 1e9,
        nic=rate * efficiency * nic_share,
        link_channel=shared.p2p_link_gb_s.get(generation, 20.0),
        net_channel=shared.p2p_net_gb_s,
        link_channels=int(min(max(links, 1), _POOL)),
        net_channels=remote,
        pool=pool,
    )


def message_channels(size: _Column, ranks: int, remote: bool, found: Wires) -> _Column:
    """Channels that one message of ``size`` bytes runs on, shape of ``size``."""
    limit = found.net_channels if remote else found.link_channels
    longest = _NET_PART if remote else _LINK_PART
    start = limit
    while start > 1 and start * ranks > found.pool:
        start //= 2
    used = np.minimum(start, np.maximum(1, np.floor(size / _LEAST_PART)))
    for _ in range(limit.bit_length()):
        used = np.where((size / used > longest) & (2 * used <= limit), 2 * used, used)
    return used


def send_recv_costs(
    size_bytes: _Column,
    ranks: int,
    nodes: int,
    cluster: Cluster,
    shared: SharedConstants = DEFAULT,
) -> _Column:
    """Time of one send and one receive of the same size at once, as a pipeline stage does.

    Args:
        size_bytes: bytes each way, shape ``(rows,)``.
        ranks: members of the group: their number shares the channels.
        nodes: nodes of the group; over several, the peer is taken to be on another one.
        cluster: the machine.
        shared: constants of the physical model.

    Returns:
        µs, shape ``(rows,)``.
    """
    size, remote = np.asarray(size_bytes, dtype=np.float64), nodes > 1
    found = wires(cluster, max(1, ranks // nodes), remote, shared)
    channels = message_channels(size, ranks, remote, found)
    if remote:
        hop = shared.of_fabric("hop_us", cluster.fabric.name, 0.0)
        rate = np.minimum(found.nic, channels * found.net_channel)
        return _SEND_US + _REMOTE_SEND_US + hop + size / (1e3 * rate)
    return _SEND_US + size / (1e3 * np.minimum(found.link, channels * found.link_channel))


def fused_p2p_cost(
    sends: NDArray[np.float64],
    node: NDArray[np.int64],
    cluster: Cluster,
    shared: SharedConstants = DEFAULT,
) -> _Column:
    """Time of one kernel that holds several sends and receives, for each rank.

    A pair moves when both its sides have started; the kernel of a rank ends with its last pair.

    Args:
        sends: bytes from rank (row) to rank (column), shape ``(ranks, ranks)``.
        node: node of each rank.
        cluster: the machine.
        shared: constants of the physical model.

    Returns:
        µs for each rank, shape ``(ranks,)``; 0 where it takes no part.
    """
    ranks = len(node)
    remote = node[:, None] != node[None, :]
    apart = sends * ~np.eye(ranks, dtype=bool)
    found = wires(cluster, int(np.bincount(node).max()), bool(remote.any()), shared)
    both = np.maximum(apart, apart.T)
    sides = []
    for far in (False, True):
        own = remote if far else ~remote
        peers = ((both > 0) & own).sum(1)
        largest = (both * own).max(axis=1, initial=0.0)
        sides.append(
            (peers, side_time(_by_side(on_wire(apart) * own), peers, largest, ranks, found, far))
        )
    (near, near_us), (far_peers, far_us) = sides
    start = start_time(near, far_peers, cluster, shared)
    return np.where(near + far_peers > 0, start + np.maximum(near_us, far_us), 0.0)


def start_time(
    near: ArrayLike, far: ArrayLike, cluster: Cluster, shared: SharedConstants
) -> _Column:
    """What a fused kernel costs before a byte moves, µs, for counts of peers."""
    inside, outside = np.asarray(near, dtype=np.float64), np.asarray(far, dtype=np.float64)
    each = shared.of_fabric("p2p_remote_peer_us", cluster.fabric.name, 0.0)
    start = shared.p2p_base_us + shared.p2p_peer_us * (inside + outside)
    return np.asarray(start + (outside > 0) * shared.p2p_remote_us + each * outside)


def on_wire(message: ArrayLike) -> _Column:
    """Bytes that a message takes on the wire: the first 16 KiB go twice, as LL sends them.

    Longer messages run under Simple, whose hand-shake costs about as much, so that more bytes
    never cost less.
    """
    size = np.asarray(message, dtype=np.float64)
    return size + np.minimum(size, _LL_BYTES)


def side_time(
    moved: ArrayLike, peers: ArrayLike, largest: ArrayLike, ranks: int, found: Wires, far: bool
) -> _Column:
    """Time that a rank's messages to its own node, or to others, take, µs.

    Args:
        moved: bytes on the wire.
        peers: how many there are.
        largest: bytes of the longest message, whose first chunk nothing hides.
        ranks: members of the group.
        found: the links.
        far: other nodes.
    """
    channels = found.net_channels
    if not far:
        channels = max(1, min(found.link_channels, found.pool // max(ranks - 1, 1)))
    one = found.net_channel if far else found.link_channel
    rate = np.minimum(
        found.nic if far else found.link, np.maximum(np.asarray(peers), 1) * channels * one
    )
    chunk = np.minimum(np.asarray(largest) / channels, _NET_CHUNK if far else _LINK_CHUNK)
    return np.asarray(np.asarray(moved) / (1e3 * rate) + chunk / (1e3 * one))


def _by_side(sends: _Column) -> _Column:
    return np.asarray(np.maximum(sends.sum(1), sends.sum(0)))
