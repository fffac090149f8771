"""Shared constants of the collective model, fitted on some machines and never on the judged one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from _collective_rows import CLUSTERS, Rows

from foretrace.replay.cluster import load_cluster
from foretrace.replay.costs.collectives.cost import collective_costs, take
from foretrace.replay.costs.collectives.fit import fit_scope
from foretrace.replay.costs.collectives.nccl_constants import CANDIDATES, LL, SIMPLE, TREE
from foretrace.replay.costs.collectives.shared import DATASHEET, SharedConstants

MB = 1 << 20
PUBLISHED_HOPS = ("efa", "efa-new", "efa-old")  # AWS's tuner says 20 us: nothing is fitted
FEWEST_SMALL = 8  # rows below 1 MB over nodes that a machine needs to tell a hop's latency
FEWEST_GROWTH, GROWTH_BYTES = 4, 8192  # rows of a protocol that tell how its hops grow
HOP_PARAMETERS = ("hop_us", "rate", "ll_hop_us")
TREE_SHARES = tuple(round(0.4 + 0.05 * step, 2) for step in range(13))


class SharedFit:
    """Shared constants, fitted on some machines.

    Every machine with enough small rows over nodes is fitted alone; a shared constant is the
    median of its machines' values (of one fabric for hops and LL's growth). RCCL chooses by
    tables of its own, so AMD's machines tell nothing here.
    ``tree_share`` goes by the median error of the rows it acts on: Simple trees over three nodes
    and more; each set counts once.
    """

    def __init__(self, rows: list[Rows]) -> None:
        coll = [(r, np.flatnonzero(r.ops.kind < 5)) for r in rows]
        self._rows = [(r, w) for r, w in coll if len(w)]
        self.alone = {name: self._fit_alone(name) for name in {r.machine for r in rows}}
        self._trees = [(r, w[self._is_tree(r, w)]) for r, w in self._rows]
        self._trees = [(r, w) for r, w in self._trees if len(w) >= FEWEST_GROWTH]
        self._errors = cache(self._error_of)

    @staticmethod
    def _is_tree(rows: Rows, which: np.ndarray) -> np.ndarray:
        ops = take(rows.ops, which)
        pick = collective_costs(ops, rows.cluster, DATASHEET, rows.allowed).pick
        return (pick == CANDIDATES.index((TREE, SIMPLE))) & (ops.nodes > 2)

    def _fit_alone(self, machine: str) -> dict[str, float] | None:
        """What one machine's all-reduces over nodes can tell."""
        parts = []
        for rows, which in self._rows:
            ops = rows.ops
            own = which[(ops.nodes[which] > 1) & (ops.kind[which] == 0)]
            enough = (ops.size_bytes[own] < MB).sum() >= FEWEST_SMALL
            if rows.machine == machine and enough and rows.cluster.gpu.vendor == "nvidia":
                parts.append((rows, own))
        if not parts:
            return None
        rows, which = max(parts, key=lambda p: len(p[1]))
        ops, clean = take(rows.ops, which), (rows.time_us - rows.extra_us)[which]
        fit = fit_scope(ops, clean, rows.cluster, DATASHEET, rows.allowed, HOP_PARAMETERS)
        pick = collective_costs(ops, rows.cluster, DATASHEET, rows.allowed).pick
        fabric = rows.cluster.fabric.name
        told = {f"hop {fabric}": fit.hop_us}
        ran = (pick == CANDIDATES.index((TREE, LL))) & (ops.size_bytes >= GROWTH_BYTES)
        if ran.sum() >= FEWEST_GROWTH:
            told[f"LL {fabric}"] = fit.ll_hop_us
        return told

    def _medians(self, without: str) -> SharedConstants:
        known = [told for m, told in self.alone.items() if told and m != without]

        def median(name: str, absent: float) -> float:
            values = [told[name] for told in known if name in told]
            return round(float(np.median(values)), 2) if values else absent

        fabrics = ["rdma", *sorted({load_cluster(c).fabric.name for c in CLUSTERS.values()})]
        hops, growth = dict(DATASHEET.hop_us), {}
        for fabric in fabrics:
            growth[fabric] = median(f"LL {fabric}", growth.get("rdma", 0.0))
            if fabric not in PUBLISHED_HOPS:
                hops[fabric] = median(f"hop {fabric}", hops["rdma"])
        each = DATASHEET.p2p_remote_peer_us["rdma"]  # a message costs what LL's hops say
        p2p = {fabric: round(each * growth[fabric] / growth["rdma"], 1) for fabric in growth}
        return replace(
            DATASHEET,
            hop_us=hops,
            p2p_remote_peer_us=p2p,
            ll_hop_us=growth,
        )

    def _error_of(self, number: int, share: float) -> float:
        """Median error of one set's trees, the other constants as fitted without its machine."""
        rows, which = self._trees[number]
        shared = replace(self._medians(rows.machine), tree_share=share)
        costs = collective_costs(take(rows.ops, which), rows.cluster, shared, rows.allowed)
        made = costs.time_us + rows.extra_us[which]
        return float(np.median(np.abs(made - rows.time_us[which]) / rows.time_us[which]))

    def best(self, without: str = "") -> SharedConstants:
        """Constants fitted on all machines but one."""
        used = [n for n, (rows, _) in enumerate(self._trees) if rows.machine != without]

        def error(share: float) -> float:
            return float(np.mean([self._errors(n, share) for n in used]))

        return replace(self._medians(without), tree_share=min(TREE_SHARES, key=error))
