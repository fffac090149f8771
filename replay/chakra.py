"""Write a job graph as Chakra graphs, so that simulators run what foretrace has built.

The meeting of ranks is theirs: a communication node waits for its own rank's predecessors, and
the simulator makes it wait for the others.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from foretrace.replay.graph import I32, I64, EdgeKind, JobGraph, TaskKind
from foretrace.traces.exporters.chakra import Edges, RankFacts, Tasks, encode_groups, encode_rank
from foretrace.traces.schema import COLLECTIVE_KINDS
from foretrace.traces.storage import Folder

_EVENT_KIND = {
    TaskKind.CALL: "runtime",
    TaskKind.SYNC: "runtime",
    TaskKind.KERNEL: "kernel",
    TaskKind.MEMCPY: "memcpy",
    TaskKind.MEMSET: "memset",
    TaskKind.COMM: "kernel",
    TaskKind.ARRIVE: "other",
    TaskKind.MARK: "other",
    TaskKind.SKEW: "other",
}
_FROM_START = (EdgeKind.LAUNCH, EdgeKind.OVERLAP)
"""Edges that count from the start of their source, which Chakra cannot say."""


def export_graph(
    graph: JobGraph, folder: str | os.PathLike[str], name: str = "foretrace"
) -> list[str]:
    """Write each rank's part of a job graph as ``NAME.RANK.et``, and its groups.

    Durations are those of the graph, without waiting. A kernel that began while its
    predecessor ran does not wait for it; a launch is over before its kernel begins.

    Args:
        graph: the job graph.
        folder: gets the files.
        name: first part of their names.

    Returns:
        One line for everything that the graphs do not say.
    """
    target = Folder.at(folder)
    target.fs.makedirs(target.root, exist_ok=True)
    ranks = np.unique(graph.rank[graph.rank >= 0])
    source, to, kind = _edges(graph)
    place = np.full(len(graph), -1, np.int64)
    for rank in ranks.tolist():
        own = np.flatnonzero(graph.rank == rank)
        place[own] = np.arange(len(own))
        here = graph.rank[to] == rank
        edges = Edges(place[source[here]], place[to[here]], np.ones(int(here.sum()), np.bool_))
        facts = RankFacts(rank, len(ranks), groups=graph.groups)
        data = encode_rank(_tasks(graph, own, rank), edges, facts)
        target.write(data, f"{name}.{rank}.et")
    target.write(encode_groups(graph.groups), f"{name}.groups.json")
    return _unsaid(graph, kind)


def _edges(graph: JobGraph) -> tuple[I64, I64, I32]:
    """(source, target, kind) of the edges within a rank, own arrivals before their operations."""
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    source, kind = graph.pred, graph.edge_kind.astype(np.int32)
    inside = (graph.rank[source] == graph.rank[target]) & (kind != EdgeKind.OVERLAP)
    inside &= graph.rank[target] >= 0
    arrive = np.flatnonzero(graph.kind == TaskKind.ARRIVE)
    comm = np.flatnonzero(graph.kind == TaskKind.COMM)
    ours = {(int(graph.rank[t]), int(graph.collective[t])): int(t) for t in comm}
    met = [
        (int(a), ours[key])
        for a in arrive
        if (key := (int(graph.rank[a]), int(graph.collective[a]))) in ours
    ]
    own = np.array(met, np.int64).reshape(-1, 2)
    pairs = np.concatenate([np.stack([source[inside], target[inside]], axis=1), own])
    kinds = np.r_[kind[inside], np.full(len(own), int(EdgeKind.RENDEZVOUS), np.int32)]
    pairs, first = np.unique(pairs, axis=0, return_index=True)
    return pairs[:, 0], pairs[:, 1], kinds[first]


def _tasks(graph: JobGraph, own: I64, rank: int) -> Tasks:
    lane = graph.lane[own]
    device = graph.lanes.device[lane].astype(np.int64)
    kind = [TaskKind(k) for k in graph.kind[own].tolist()]
    on_device = device != -1  # a host thread that carries messages counts as a device's stream
    number = graph.lanes.number[lane]
    talks = {
        i: _row(graph, int(graph.collective[task]), rank)
        for i, (task, k) in enumerate(zip(own.tolist(), kind, strict=True))
        if k == TaskKind.COMM and graph.collective[task] >= 0
    }
    return Tasks(
        name=[graph.names[i] for i in graph.name[own].tolist()],
        kind=[_EVENT_KIND.get(k, "host_op") for k in kind],
        dur_ns=graph.dur_ns[own],
        thread=np.where(on_device, -1, number),
        device=np.where(on_device, np.maximum(device, 0), -1),
        stream=np.where(on_device, number, -1),
        start_ns=graph.measured_start_ns[own],
        communication=talks,
    )


def _row(graph: JobGraph, collective: int, rank: int) -> dict[str, Any]:
    """A communication operation as the rank's collectives table would have it."""
    kind = COLLECTIVE_KINDS[graph.collectives.kind[collective]]
    group = int(graph.collectives.group[collective])
    size = int(graph.collectives.bytes[collective])
    members = graph.groups[group] if group >= 0 else ()
    shard = size // len(members) if members and size >= 0 else size
    others = [m for m in members if m != rank]
    return {
        "kind": kind,
        "group": group,
        "bytes_in": {"all_gather": shard, "recv": 0}.get(kind, size),
        "bytes_out": {"reduce_scatter": shard, "send": 0}.get(kind, size),
        "peer": others[0] if kind in ("send", "recv") and len(others) == 1 else -1,
        "seq": collective,
    }


def _unsaid(graph: JobGraph, kind: I32) -> list[str]:
    notes = []
    delayed = graph.edge_delay_ns[~np.isin(graph.edge_kind, _FROM_START)]
    if (delayed > 0).any():
        notes.append(
            f"delays of {int((delayed > 0).sum())} edges are left out, "
            f"{delayed.sum() / 1e6:.3f} ms in all"
        )
    launches = int((kind == EdgeKind.LAUNCH).sum())
    if launches:
        notes.append(f"{launches} launches are over before their kernels begin")
    overlaps = int((graph.edge_kind == EdgeKind.OVERLAP).sum())
    if overlaps:
        notes.append(f"{overlaps} kernels do not wait for the one that still ran before them")
    return notes
