"""All-to-all: equal or from a full traffic matrix; plain, hierarchical, de-duplicated.

The busiest rank decides::

    time = max over ranks of  base + peer x peers + remote + remote_peer x remote peers
                              + max(inside, outside)
    inside, outside = bytes on the wire / rate + first chunk of a message / rate of a channel

where the bytes of a rank are the larger of what it sends and what it receives, and the rate is
that of the link or of the GPU's part of the NICs, or of all channels if they are slower. Times
µs, sizes bytes. The size of an equal all-to-all is the whole buffer of a rank, its own part
included.
"""

from __future__ import annotations

from math import comb

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.p2p import (
    fused_p2p_cost,
    on_wire,
    side_time,
    start_time,
    wires,
)
from foretrace.replay.costs.collectives.shared import DEFAULT, SharedConstants
from foretrace.traces.errors import LayoutError

_Column = NDArray[np.float64]


def all_to_all_costs(
    size_bytes: _Column,
    ranks: int,
    nodes: int,
    cluster: Cluster,
    shared: SharedConstants = DEFAULT,
) -> _Column:
    """Equal all-to-alls of one group.

    Args:
        size_bytes: buffer of a rank, shape ``(rows,)``.
        ranks: members of the group.
        nodes: nodes it is on, evenly.
        cluster: the machine.
        shared: constants of the physical model.

    Returns:
        µs, shape ``(rows,)``.
    """
    size = np.asarray(size_bytes, dtype=np.float64)
    per_node = ranks // nodes
    found = wires(cluster, per_node, nodes > 1, shared)
    near, far = per_node - 1, ranks - per_node
    each = size / ranks
    inside, outside = (
        side_time(on_wire(each) * peers, peers, each * (peers > 0), ranks, found, far)
        for peers, far in ((near, False), (far, True))
    )
    return np.maximum(inside, outside) + start_time(near, far, cluster, shared)


def all_to_all_v_cost(
    sends: NDArray[np.float64],
    node: NDArray[np.int64],
    cluster: Cluster,
    shared: SharedConstants = DEFAULT,
) -> float:
    """One all-to-all with any splits: the busiest rank's time.

    Args:
        sends: bytes from rank (row) to rank (column), shape ``(ranks, ranks)``.
        node: node of each rank, shape ``(ranks,)``.
        cluster: the machine.
        shared: constants of the physical model.

    Returns:
        µs.

    Raises:
        LayoutError: the matrix is not square or has a negative entry.
    """
    matrix, where = np.asarray(sends, dtype=np.float64), np.asarray(node)
    if matrix.shape != (len(where), len(where)):
        raise LayoutError(
            f"expected a traffic matrix of {len(where)} x {len(where)} ranks, "
            f"found {' x '.join(map(str, matrix.shape))}"
        )
    if (matrix < 0).any() or not np.isfinite(matrix).all():
        raise LayoutError("the traffic matrix has a negative or missing entry")
    return float(fused_p2p_cost(matrix, where, cluster, shared).max(initial=0.0))


def hierarchical_cost(
    sends: NDArray[np.float64],
    node: NDArray[np.int64],
    cluster: Cluster,
    shared: SharedConstants = DEFAULT,
    outside_share: float = 1.0,
) -> float:
    """One all-to-all in two steps: between nodes along each rail, then inside the node.

    Rank g of a node first exchanges with rank g of every other node, holding the traffic for the
    whole node; then it is spread inside. Fewer, longer messages cross the network, at the price
    of moving the foreign bytes once more over NVLink.

    Args:
        sends: bytes from rank (row) to rank (column).
        node: node of each rank; every node holds equally many.
        cluster: the machine.
        shared: constants of the physical model.
        outside_share: distinct part of the bytes that leave a node, see :func:`distinct_share`.

    Returns:
        µs.

    Raises:
        LayoutError: nodes hold unequally many ranks.
    """
    where = np.asarray(node)
    _, home, counts = np.unique(where, return_inverse=True, return_counts=True)
    if counts.min() != counts.max():
        raise LayoutError("a hierarchical all-to-all needs equally many ranks on every node")
    order = np.argsort(home, kind="stable")
    nodes, per_node = len(counts), int(counts[0])
    matrix = np.asarray(sends, dtype=np.float64)[np.ix_(order, order)]
    cube = matrix.reshape(nodes, per_node, nodes, per_node)
    between = cube.sum(axis=3) * outside_share  # (node, rank, to node)
    across = np.zeros_like(cube)
    rail = np.arange(per_node)
    across[:, rail, :, rail] = np.moveaxis(between, 1, 0)
    across[np.arange(nodes), :, np.arange(nodes), :] = 0
    inside = np.zeros_like(cube)
    spread = cube.sum(axis=0)  # what rail g got for (node, rank)
    inside[np.arange(nodes), :, np.arange(nodes), :] = np.moveaxis(spread, 1, 0)
    size, sorted_nodes = nodes * per_node, np.repeat(np.arange(nodes), per_node)
    steps = (across.reshape(size, size), inside.reshape(size, size))
    return sum(all_to_all_v_cost(step, sorted_nodes, cluster, shared) for step in steps)


def distinct_share(experts: int, groups: int, top_k: int) -> float:
    """Share of token copies left when a group of experts gets each token once.

    A token goes to ``top_k`` of ``experts`` at random; they lie in ``groups`` equal groups. The
    expected number of different groups over ``top_k`` (closed form of drawing without return).

    Raises:
        LayoutError: the groups do not divide the experts, or a token needs more experts than
            there are.
    """
    if groups < 1 or experts % groups or not 0 < top_k <= experts:
        raise LayoutError(
            f"{experts} experts in {groups} groups, {top_k} for a token: expected groups that "
            "divide the experts and a positive number of at most all experts"
        )
    missed = comb(experts - experts // groups, top_k) / comb(experts, top_k)
    return groups * (1 - missed) / top_k
