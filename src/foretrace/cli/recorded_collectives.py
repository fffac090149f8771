"""The collectives of a recorded run as measurements to calibrate on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foretrace.traces.errors import IncompleteTraceError
from foretrace.traces.schema import COLLECTIVE_KINDS

if TYPE_CHECKING:
    from foretrace.replay.cluster import Cluster
    from foretrace.replay.costs.collectives.measurements import Measurements
    from foretrace.traces.store import TraceSet


def read_recorded(path: Path, cluster: Cluster) -> Measurements:
    """Execution times, waiting taken off, of every whole collective of known size.

    Alike operations are one row, with the median of their times.

    The hosts of the trace set say on how many nodes a group is; where they are not recorded, the
    ranks are taken to fill nodes in order.

    Raises:
        IncompleteTraceError: no collective with a size, a group and more than one recorded member.
    """
    from foretrace.analysis.communication import operations
    from foretrace.analysis.run import load_run
    from foretrace.replay.costs.collectives.cost import Collectives
    from foretrace.replay.costs.collectives.measurements import Measurements
    from foretrace.replay.costs.collectives.shapes import KINDS

    run = load_run(path)
    ops, groups = operations(run.measured), run.graph.groups
    code = {COLLECTIVE_KINDS.index(name): n for n, name in enumerate(KINDS)}
    node = _nodes(run.trace, cluster)
    size = np.array([len(groups[g]) if g >= 0 else 0 for g in ops.group])
    known = np.array([int(k) in code for k in ops.kind], dtype=bool)
    whole = known & (ops.bytes > 0) & (ops.time_ns > 0) & (size > 1) & (ops.members == size)
    if not whole.any():
        raise IncompleteTraceError(
            f"{path}: no collective whose size is known and whose members were all recorded; "
            "record all ranks of a group, or calibrate from an nccl-tests log"
        )
    rows = np.flatnonzero(whole)
    kinds = [code[int(k)] for k in ops.kind[rows]]
    nodes = [len({node(rank) for rank in groups[g]}) for g in ops.group[rows]]
    keys = np.array([kinds, ops.bytes[rows], size[rows], nodes], dtype=np.int64)
    alike, which = np.unique(keys, axis=1, return_inverse=True)
    time_us = ops.time_ns[rows] / 1e3
    middle = [np.median(time_us[which.ravel() == n]) for n in range(alike.shape[1])]
    return Measurements(Collectives.of(*alike), np.array(middle), str(path))


class _Nodes:
    """Node of a rank: its host, or its place where hosts are unknown."""

    def __init__(self, hosts: dict[int, str], per_node: int) -> None:
        self.hosts, self.per_node = hosts, per_node

    def __call__(self, rank: int) -> str:
        return self.hosts.get(rank) or f"#{rank // self.per_node}"


def _nodes(trace: TraceSet, cluster: Cluster) -> _Nodes:
    hosts = {rank: trace.info(rank).host for rank in trace.ranks}
    return _Nodes({rank: host for rank, host in hosts.items() if host}, cluster.gpus_per_node)
