"""What a collective looks like apart from its bytes: kind, ranks, nodes, share of the network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrace.replay.cluster import Cluster
from foretrace.traces.errors import LayoutError

KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send_recv",
)
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALL_TO_ALL, SEND_RECV = range(len(KINDS))
KIND_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}


@dataclass(frozen=True, slots=True)
class Shapes:
    """Columns of shape ``(shapes,)``.

    Attributes:
        kind: code in KINDS.
        ranks: members of the group.
        nodes: nodes they are on, evenly.
        share: part of its NICs that the group has to itself, 0 < share <= 1: other groups on
            the same NICs and oversubscribed tiers take the rest.
    """

    kind: NDArray[np.int64]
    ranks: NDArray[np.int64]
    nodes: NDArray[np.int64]
    share: NDArray[np.float64]

    @property
    def per_node(self) -> NDArray[np.float64]:
        """Members on each node."""
        return self.ranks / self.nodes


def kind_code(name: str) -> int:
    """Code of a collective's name; nccl-tests' spelling is known too.

    Raises:
        LayoutError: no such collective.
    """
    plain = name.lower().replace("-", "_")
    plain = KIND_NAMES.get(plain.replace("_", ""), plain)
    if plain not in KINDS:
        raise LayoutError(f"no collective {name!r}; known: {', '.join(KINDS)}")
    return KINDS.index(plain)


def steps(shapes: Shapes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps of a ring, and how many of them cross nodes (``nsteps``, ``nInterSteps`` in NCCL)."""
    n, k = shapes.ranks, shapes.nodes
    both_ways = shapes.kind == ALL_REDUCE
    through = (shapes.kind == BROADCAST) | (shapes.kind == REDUCE)
    total = np.where(both_ways, 2 * (n - 1), np.where(through, n, n - 1))
    inter = np.where(both_ways, 2 * (k - 1), k - 1)
    return total.astype(float), inter.astype(float)


def check_shapes(shapes: Shapes, cluster: Cluster) -> None:
    """Refuse groups that cannot be.

    Raises:
        LayoutError: more ranks on a node than it has GPUs, fewer ranks than nodes ...
    """
    if (shapes.ranks < 1).any() or (shapes.nodes < 1).any():
        raise LayoutError("a group needs at least one rank on at least one node")
    if (shapes.nodes > shapes.ranks).any():
        worst = int(np.argmax(shapes.nodes - shapes.ranks))
        raise LayoutError(f"{shapes.ranks[worst]} ranks cannot be on {shapes.nodes[worst]} nodes")
    crowded = shapes.per_node > cluster.gpus_per_node
    if crowded.any():
        worst = int(np.argmax(crowded))
        raise LayoutError(
            f"{shapes.ranks[worst]} ranks on {shapes.nodes[worst]} nodes of {cluster.name}: "
            f"a node has {cluster.gpus_per_node} GPUs"
        )
    if ((shapes.share <= 0) | (shapes.share > 1)).any():
        raise LayoutError("share of the NICs must be above 0 and at most 1")


def nodes_for(ranks: ArrayLike, cluster: Cluster) -> NDArray[np.int64]:
    """Fewest nodes that hold ``ranks`` members."""
    return -(-np.asarray(ranks, dtype=np.int64) // cluster.gpus_per_node)
