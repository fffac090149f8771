"""Write job graphs as Chakra graphs, so that simulators run what foretrace has built.

The meeting of ranks is theirs: a communication node waits for its own rank's predecessors, and
the simulator makes it wait for the others.
"""

from __future__ import annotations

import os

import numpy as np

from foretrace.replay.build import build
from foretrace.replay.build.recorded import has_own_graph
from foretrace.replay.chakra_operations import Operations
from foretrace.replay.graph import I32, I64, EdgeKind, JobGraph, TaskKind
from foretrace.traces.errors import GraphError
from foretrace.traces.exporters.chakra import (
    Edges,
    RankFacts,
    Tasks,
    encode_groups,
    encode_rank,
    export_chakra,
)
from foretrace.traces.storage import Folder
from foretrace.traces.store import TraceSet

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


def export_trace(traces: TraceSet, folder: str | os.PathLike[str], name: str) -> list[str]:
    """Write a trace set as Chakra graphs.

    What a profiler recorded becomes a job graph first, with the waits between streams, threads
    and ranks. What came with dependencies and no better times (Chakra graphs, execution traces)
    is written with those alone.

    Args:
        traces: the trace set.
        folder: gets ``NAME.RANK.et`` for each rank, and ``NAME.groups.json``.
        name: first part of their names.

    Returns:
        One line for everything that the graphs do not say.
    """
    try:
        if has_own_graph(traces, traces.ranks):
            return export_chakra(traces, folder, name)
        found = build(traces)
    except GraphError as error:
        return [f"no job graph: {error}", *export_chakra(traces, folder, name)]
    notes = export_graph(found.graph, folder, name, traces)
    alone = sum(found.unmatched.values())
    if alone:
        notes.append(
            f"{alone} communication operations have no counterpart; their durations contain waiting"
        )
    return notes


def export_graph(
    graph: JobGraph,
    folder: str | os.PathLike[str],
    name: str = "foretrace",
    traces: TraceSet | None = None,
) -> list[str]:
    """Write each rank's part of a job graph as ``NAME.RANK.et``, and its groups.

    Durations are those of the graph, without waiting. A kernel that began while its
    predecessor ran does not wait for it; a launch is over before its kernel begins.

    Args:
        graph: the job graph.
        folder: gets the files.
        name: first part of their names.
        traces: what the graph was built from; tells element types, what each member puts in,
            and of operations without a counterpart that they are communication.

    Returns:
        One line for everything that the graphs do not say.
    """
    target = Folder.at(folder)
    target.fs.makedirs(target.root, exist_ok=True)
    ranks = np.unique(graph.rank[graph.rank >= 0])
    source, to, kind = _edges(graph)
    operations = Operations.of(graph, traces)
    world = max((traces.info(r).world_size for r in traces.ranks), default=0) if traces else 0
    place = np.full(len(graph), -1, np.int64)
    for rank in ranks.tolist():
        own = np.flatnonzero(graph.rank == rank)
        place[own] = np.arange(len(own))
        here = graph.rank[to] == rank
        edges = Edges(place[source[here]], place[to[here]], np.ones(int(here.sum()), np.bool_))
        tasks = _tasks(graph, own, operations)
        facts = RankFacts(rank, max(world, len(ranks)), groups=operations.groups)
        target.write(encode_rank(tasks, edges, facts), f"{name}.{rank}.et")
    target.write(encode_groups(operations.groups), f"{name}.groups.json")
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


def _tasks(graph: JobGraph, own: I64, operations: Operations) -> Tasks:
    lane = graph.lane[own]
    device = graph.lanes.device[lane].astype(np.int64)
    kind = [TaskKind(k) for k in graph.kind[own].tolist()]
    on_device = device != -1  # a host thread that carries messages counts as a device's stream
    number = _numbers(graph)[lane]
    talks = {
        i: row
        for i, (task, k) in enumerate(zip(own.tolist(), kind, strict=True))
        if k == TaskKind.COMM and (row := operations.row(task))
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


def _numbers(graph: JobGraph) -> I64:
    """Thread or stream number of each lane; carriers of messages get streams of their own."""
    lanes, number = graph.lanes, graph.lanes.number.copy()
    for rank in np.unique(lanes.rank):
        mine = lanes.rank == rank
        carrier = np.flatnonzero(mine & (lanes.device < -1))
        first = number[mine & (lanes.device >= 0)].max(initial=-1) + 1
        number[carrier] = first + np.arange(len(carrier))
    return number


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
