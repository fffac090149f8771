"""Where groups of ranks lie on a cluster, and what that leaves them of the network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Cluster
from foretrace.replay.graph import I64

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spans:
    """How groups of one kind lie; arrays of shape ``(groups,)``.

    Attributes:
        ranks: members.
        nodes: nodes that they are on.
        share: part of its NICs' bandwidth that a group keeps: switches above it may be
            oversubscribed, and groups of the same kind that use the same NICs share them.
    """

    ranks: I64
    nodes: I64
    share: F64


def spans(group: I64, cluster: Cluster) -> Spans:
    """Spans of groups whose ranks fill the nodes in order.

    Args:
        group: group of every rank, numbered from 0, shape ``(ranks,)``.
        cluster: the machine; switches take nodes in order.
    """
    rank = np.arange(len(group))
    node, gpu = np.divmod(rank, cluster.gpus_per_node)
    groups = int(group.max()) + 1
    width = int(node[-1]) + 1
    pairs = np.unique(group * width + node)
    of, where = np.divmod(pairs, width)
    nodes = np.bincount(of, minlength=groups)
    share = np.ones(groups)
    for tier in cluster.tiers:
        share *= _below(of, where // tier.nodes, groups, tier.oversubscription)
    nic = node * cluster.nics_per_node + gpu * cluster.nics_per_node // cluster.gpus_per_node
    far = nodes[group] > 1
    share[nodes > 1] /= _crowd(group[far], nic[far], groups)[nodes > 1]
    return Spans(np.bincount(group, minlength=groups), nodes.astype(np.int64), share)


def _below(of: I64, switch: I64, groups: int, oversubscription: float) -> F64:
    """What a tier leaves to each group: hosts below its emptiest switch over the taper."""
    width = int(switch.max(initial=0)) + 1
    cell, count = np.unique(of * width + switch, return_counts=True)
    owner = cell // width
    fewest = np.full(groups, np.iinfo(np.int64).max)
    np.minimum.at(fewest, owner, count)
    several = np.bincount(owner, minlength=groups) > 1
    return np.where(several, np.minimum(1.0, fewest / oversubscription), 1.0)


def _crowd(group: I64, nic: I64, groups: int) -> I64:
    """Groups on the fullest NIC of each group, at least one."""
    pairs = np.unique(nic * groups + group)
    used, owner = np.divmod(pairs, groups)
    crowd = np.ones(groups, np.int64)
    np.maximum.at(crowd, owner, np.bincount(used)[used] if len(used) else used)
    return crowd
