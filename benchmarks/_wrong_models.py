"""Wrong models on purpose: every one must move at least one printed check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np

from foretrace.replay.accuracy import null_graph
from foretrace.replay.build import Build, Recording, build_from_arrays, identity
from foretrace.replay.build.constants import with_constants
from foretrace.replay.graph import EdgeKind, JobGraph, TaskKind
from foretrace.replay.transforms.edit import edges_of, rebuilt, targets

Mutation = Callable[[JobGraph], JobGraph]


def with_edges(g: JobGraph, keep: np.ndarray) -> JobGraph:
    """The graph without the other edges; its constants are estimated anew, as a build would."""
    edges = edges_of(g).keep(keep)
    return _anew(rebuilt(g, edges, "fewer edges"))


def _anew(g: JobGraph) -> JobGraph:
    return with_constants(replace(g, edge_delay_ns=np.zeros_like(g.edge_delay_ns)))[0]


def without(*kinds: EdgeKind) -> Mutation:
    """No edges of these kinds; a rank still goes from its own arrival to its own execution."""

    def mutate(g: JobGraph) -> JobGraph:
        own = (g.kind[g.pred] == TaskKind.ARRIVE) & (g.kind[targets(g)] == TaskKind.COMM)
        return with_edges(g, ~np.isin(g.edge_kind, kinds) | own)

    return mutate


def class_averages(g: JobGraph) -> JobGraph:
    """Every kernel takes what kernels of its name take on average, every collective likewise."""
    dur = g.dur_ns.astype(np.float64)
    comm = (g.kind == TaskKind.COMM) & (g.collective >= 0)
    label = np.where(comm, -1 - g.collectives.kind[g.collective], g.name)
    for rows in (comm, g.kind == TaskKind.KERNEL):
        _, group = np.unique(label[rows], return_inverse=True)
        dur[rows] = (np.bincount(group, dur[rows]) / np.bincount(group))[group]
    return g.with_durations(np.round(dur).astype(np.int64))


def waits_at_the_launch(g: JobGraph) -> JobGraph:
    """Work that a stream would hold back: instead the call that launches it waits.

    Raises:
        ScenarioError: calls would wait for each other.
    """
    edges = edges_of(g)
    call = np.full(len(g), -1, np.int64)
    launch = g.edge_kind == EdgeKind.LAUNCH
    call[edges.target[launch]] = edges.source[launch]
    moved = (g.edge_kind == EdgeKind.EVENT) & (call[edges.target] >= 0)
    target = np.where(moved, call[edges.target], edges.target)
    kind = np.where(moved, np.int8(EdgeKind.SYNC), edges.kind)
    return _anew(rebuilt(g, replace(edges, target=target, kind=kind), "waits at the launch"))


def mutations(g: JobGraph) -> dict[str, Mutation]:
    """All that can be done to a graph: each kind of edge that it has, then the rest."""
    kinds = [EdgeKind(int(k)) for k in np.unique(g.edge_kind)]
    result: dict[str, Mutation] = {f"no {k.name} edges": without(k) for k in kinds}
    result["no rendezvous of any kind"] = without(EdgeKind.RENDEZVOUS, EdgeKind.PEER)
    result["whole measured communication, no rendezvous"] = null_graph
    result["waits moved to the launch"] = waits_at_the_launch
    result["class averages"] = class_averages
    return result


def message_pairs(g: JobGraph) -> list[tuple[int, ...]]:
    """Pairs of ranks that send and receive, in order."""
    target = targets(g)
    peer = (g.edge_kind == EdgeKind.PEER) & (g.collective[target] >= 0)
    used = np.unique(g.collectives.group[g.collective[target[peer]]])
    return sorted(g.groups[i] for i in used.tolist())


def with_wrong_peers(recording: Recording, one: tuple[int, ...], other: tuple[int, ...]) -> Build:
    """A build in which the second ranks of two pairs have changed places in every message."""
    with _swapped(one, other):
        return build_from_arrays(recording)


@contextmanager
def _swapped(one: tuple[int, ...], other: tuple[int, ...]) -> Iterator[None]:
    original = identity.match

    def swapped(*arguments: object) -> identity.Matches:
        matches = original(*arguments)  # type: ignore[arg-type]
        rank, operation = matches.rank.copy(), matches.operation.copy()
        rows: dict[tuple[int, ...], list[int]] = {one: [], other: []}
        for i in np.flatnonzero(matches.p2p):
            members = np.arange(matches.ptr[i], matches.ptr[i + 1])
            group = matches.groups[matches.group[i]]
            if group in rows:
                rows[group].append(int(members[np.argmax(rank[members])]))
        for a, b in zip(rows[one], rows[other], strict=False):
            rank[[a, b]], operation[[a, b]] = rank[[b, a]], operation[[b, a]]
        return replace(matches, rank=rank, operation=operation)

    with mock.patch.object(identity, "match", swapped):
        yield
