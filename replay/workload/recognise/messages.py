"""Measured times of communication, and prices of other messages from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.cost import Collectives
from foretrace.replay.costs.collectives.price import price
from foretrace.replay.costs.collectives.shapes import KINDS, SEND_RECV
from foretrace.replay.graph import F64, I64
from foretrace.replay.workload.recognise.chain import P2P
from foretrace.replay.workload.recognise.layers import Job
from foretrace.traces.schema import COLLECTIVE_KINDS
from foretrace.traces.store import TraceSet

_KIND = {name: code for code, name in enumerate(KINDS)} | dict.fromkeys(
    (COLLECTIVE_KINDS[k] for k in P2P), SEND_RECV
)
_LIMIT = 5.0
"""How far a measured message may move the price of one more than twice as large, or of another
group: what it misses by may be of its own size."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Distinct messages; arrays of shape ``(n,)``.

    Attributes:
        kind: code in the price functions' ``KINDS``.
        bytes: largest buffer of a rank.
        ranks: members.
        nodes: nodes that they are on.
        ns: median time from the last arrival on, ns.
        spread: standard deviation of the log time of equal messages, those that take most time
            counting most.
    """

    kind: I64
    bytes: I64
    ranks: I64
    nodes: I64
    ns: F64
    spread: float

    def __len__(self) -> int:
        return len(self.kind)


def read_messages(trace: TraceSet, job: Job) -> Messages:
    """All messages of a job, by kind, size and group."""
    node = _nodes(trace)
    table = job.graph.collectives
    groups = job.graph.groups
    wide = np.array([len(group) for group in groups] or [0])
    nodes = np.array([len({node.get(rank, 0) for rank in group}) for group in groups] or [0])
    codes = np.array([_KIND.get(name, -1) for name in COLLECTIVE_KINDS])
    kind = codes[table.kind]
    pair = kind == SEND_RECV
    what = np.stack(
        [kind, table.bytes, np.where(pair, 2, wide[table.group]), nodes[table.group]], axis=1
    ).astype(np.int64)
    places = [np.flatnonzero(chain.collective >= 0) for chain in job.chains]
    seen = [c.collective[p] for c, p in zip(job.chains, places, strict=True)]
    times = [c.dur_ns[p] for c, p in zip(job.chains, places, strict=True)]
    which, ns = np.concatenate(seen), np.concatenate(times).astype(np.float64)
    known = (what[which, 0] >= 0) & (what[which, 1] > 0)
    keys, of = np.unique(what[which[known]], axis=0, return_inverse=True)
    each = [ns[known][of.reshape(-1) == n] for n in range(len(keys))]
    middle = np.array([np.median(one) for one in each], np.float64)
    weight = np.array([one.sum() + 1.0 for one in each])
    apart = [_apart(one) for one in each]
    spread = float(np.average(apart, weights=weight)) if each else 0.0
    return Messages(keys[:, 0], keys[:, 1], keys[:, 2], keys[:, 3], middle, spread)


def _apart(ns: F64) -> float:
    """Standard deviation of log times, from their median distance to the median."""
    logs = np.log(np.maximum(ns, 1.0))
    return float(1.4826 * np.median(np.abs(logs - np.median(logs))))


def _nodes(trace: TraceSet) -> dict[int, int]:
    """Rank -> number of its node: by host name, else by the devices of a host."""
    infos = {rank: trace.info(rank) for rank in trace.ranks}
    hosts = sorted({info.host for info in infos.values()} - {""})
    if hosts:
        return {rank: hosts.index(i.host) if i.host else 0 for rank, i in infos.items()}
    each = max((info.device_count for info in infos.values()), default=0) or len(infos)
    return {rank: rank // each for rank in infos}


def measured_price(ops: Collectives, cluster: Cluster, known: Messages) -> F64:
    """Times of operations on the machine that messages were measured on, microseconds.

    A measured message costs what was measured; another one what the models say, times what they
    miss the nearest measured one by: of the same kind, if there is one on as many nodes and in
    groups as large, and of the nearest size.

    Args:
        ops: operations to price.
        cluster: the machine.
        known: what was measured on such a machine.
    """
    model = price(ops, cluster).time_us
    if not len(known):
        return model
    own = price(Collectives.of(known.kind, known.bytes, known.ranks, known.nodes), cluster).time_us
    result = model.copy()
    for row in range(len(result)):
        kind = known.kind == ops.kind[row]
        if not kind.any():
            continue
        apart = np.abs(np.log2(known.bytes / max(float(ops.size_bytes[row]), 1.0)))
        other = (known.ranks != ops.ranks[row]) * 100.0 + (known.nodes != ops.nodes[row]) * 1000.0
        at = int(np.argmin(np.where(kind, apart + other, np.inf)))
        if apart[at] + other[at] == 0:
            result[row] = known.ns[at] / 1e3
            continue
        missed = known.ns[at] / 1e3 / max(float(own[at]), 1e-9)
        if apart[at] + other[at] > 1.0:
            missed = float(np.clip(missed, 1 / _LIMIT, _LIMIT))
        result[row] *= missed
    return result
