"""Constants of the physical model that machines share: what no datasheet gives.

Two sets. ``DATASHEET`` has nothing that was fitted: NCCL's own constants stand alone, plus the
hop latency that AWS's tuner publishes. ``DEFAULT`` holds medians over the public machines; how it
is fitted, and its error on machines that the fit did not see, is printed by
``benchmarks/collective_costs.py`` (docs/cost-collectives.md has the table).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class SharedConstants:
    """Times µs; factors plain numbers. Per-fabric tables fall back to ``rdma``.

    Attributes:
        hop_us: a hop between nodes beyond NCCL's own constant, by fabric.
        nic_efficiency: reached share of a NIC's usable rate, by fabric.
        ll_hop_us: growth of an LL tree's network hop, at 64 KB, by fabric; goes with the square
            root of bytes (the host checks a flag in every 8 bytes before it sends).
        tree_share: reached share of a Simple tree's bandwidth over three nodes and more.
        ll_cap: what the library at hand takes for LL's top bandwidth, over NCCL's own figure. It
            moves the size where LL gives way; versions and tuner plugins differ.
        p2p_base_us: a fused point-to-point kernel, once.
        p2p_peer_us: each peer of it.
        p2p_remote_us: once where any peer is on another node.
        p2p_remote_peer_us: each peer on another node, by fabric: what a message costs the thread
            that drives the network. Known for rdma; on other fabrics as much more as LL's hops.
        p2p_link_gb_s: what one channel moves over NVLink, by GPU generation, 10^9 bytes/s.
        p2p_net_gb_s: what one channel moves over the network.
    """

    hop_us: dict[str, float] = field(default_factory=dict)
    nic_efficiency: dict[str, float] = field(default_factory=dict)
    ll_hop_us: dict[str, float] = field(default_factory=dict)
    tree_share: float = 1.0
    ll_cap: float = 1.0
    p2p_base_us: float = 9.0
    p2p_peer_us: float = 0.25
    p2p_remote_us: float = 5.0
    p2p_remote_peer_us: dict[str, float] = field(default_factory=dict)
    p2p_link_gb_s: dict[str, float] = field(default_factory=dict)
    p2p_net_gb_s: float = 7.3

    def of_fabric(self, table: str, fabric: str, absent: float) -> float:
        """A per-fabric constant; that of ``rdma`` or else ``absent`` where there is none."""
        values: dict[str, float] = getattr(self, table)
        return values.get(fabric, values.get("rdma", absent))


_P2P = SharedConstants(
    p2p_remote_peer_us={"rdma": 4.5},
    p2p_link_gb_s={"volta": 12.0, "ampere": 13.0, "hopper": 20.0, "blackwell": 30.0},
)
DATASHEET = replace(_P2P, hop_us={"rdma": 0.0, "efa": 20.0, "efa-new": 20.0, "efa-old": 20.0})
DEFAULT = replace(
    _P2P,
    hop_us={"rdma": 4.6, "cxi": 0.8, "efa": 20.0, "efa-new": 20.0, "efa-old": 20.0, "tcp": 15.0},
    ll_hop_us={"rdma": 9.2, "cxi": 23.2, "efa": 18.5},
    tree_share=0.6,
    p2p_remote_peer_us={"rdma": 4.5, "cxi": 11.4, "efa": 9.0},
)
