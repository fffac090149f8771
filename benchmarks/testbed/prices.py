"""What communication costs on these links, fitted to a recorded run of single operations."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from foretrace.replay.cluster import Cluster, load_cluster
from foretrace.replay.costs.collectives.cost import Collectives
from foretrace.replay.costs.collectives.fit import fit_machine, fitted_costs
from foretrace.replay.costs.collectives.fit_file import MachineFit
from foretrace.replay.costs.collectives.shapes import KINDS, SEND_RECV
from foretrace.replay.graph import JobGraph, TaskKind
from foretrace.traces.schema import COLLECTIVE_KINDS


def cluster(mbit: float) -> Cluster:
    """Hosts of one process each, with a link of so many 10^6 bit/s."""
    return msgspec.structs.replace(
        load_cluster("cpu-10g"), name="testbed", gpus_per_node=1, nics_per_node=1,
        nic_gbit_per_s=mbit / 1e3,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs on links of one rate.

    Attributes:
        fit: what the recorded run was fitted to.
        mbit: rate of the links.
    """

    fit: MachineFit
    mbit: float

    def cost_ns(self, kind: str, size: int, ranks: int) -> float:
        """Time of an operation from its last arrival on, ns.

        Args:
            kind: one of ``KINDS``.
            size: largest buffer of a rank, bytes.
            ranks: members, each on its own link.
        """
        costs = fitted_costs(_one(kind, size, ranks), cluster(self.mbit), self.fit)
        return float(costs.time_us[0]) * 1e3

    def latency_ns(self, kind: str, ranks: int) -> float:
        """The part that no bytes cause, ns: where the line through the measured points begins."""
        code = KINDS.index(kind)
        points = [p for p in self.fit.points if p.kind == code and p.ranks == ranks]
        size, took = (np.array([getattr(p, n) for p in points]) for n in ("size_bytes", "time_us"))
        _, begin = np.polyfit(size, took, 1, w=1 / took)
        return max(float(begin), 0.0) * 1e3

    def link_bytes_per_s(self) -> float:
        """What a link carries one way, by the two largest recorded messages."""
        size = np.unique([p.size_bytes for p in self.fit.points if p.kind == SEND_RECV])[-2:]
        first, second = (self.cost_ns("send_recv", int(s), 2) for s in size)
        return float(size[1] - size[0]) / (second - first) * 1e9


def fitted(graph: JobGraph, mbit: float) -> Prices:
    """Prices from a recorded run of single operations.

    An operation has ended when its last member has: whatever follows waits for that one.

    Args:
        graph: the run's job graph.
        mbit: rate of the links it ran on.
    """
    table = graph.collectives
    comm = np.flatnonzero((graph.kind == TaskKind.COMM) & (graph.collective >= 0))
    took = np.zeros(len(table.kind))
    np.maximum.at(took, graph.collective[comm], graph.dur_ns[comm])
    name = np.array([COLLECTIVE_KINDS[k] for k in table.kind])
    name[name == "send"] = "send_recv"
    usable = np.flatnonzero(np.isin(name, KINDS) & (table.bytes > 0))
    code = np.array([KINDS.index(n) if n in KINDS else -1 for n in name])
    members = np.array([len(graph.groups[g]) if g >= 0 else 0 for g in table.group])
    members[name == "send_recv"] = 2
    keys = np.stack([code, table.bytes, members])[:, usable]
    alike, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.ravel()
    middle = np.array([np.median(took[usable][which == i]) for i in range(alike.shape[1])])
    ops = Collectives.of(alike[0], alike[1], alike[2], alike[2])
    return Prices(fit_machine(ops, middle / 1e3, cluster(mbit)), mbit)


def _one(kind: str, size: int, ranks: int) -> Collectives:
    return Collectives.of(KINDS.index(kind), float(size), ranks, ranks)
