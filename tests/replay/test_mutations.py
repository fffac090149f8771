"""A wrong model is noticed: rules taken out of a real job's graph move a printed check.

The error of the step alone cannot tell a right model from a wrong one, so the same checks as in
the accuracy tests are asked: step error, start error, unexplained time and waiting per rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.replay.real import RealSet, RealSets, misfits

from foretrace.replay.accuracy import assess, null_graph
from foretrace.replay.build import Build, build_from_arrays, identity
from foretrace.replay.build.constants import with_constants
from foretrace.replay.graph import EdgeKind, JobGraph, TaskKind
from foretrace.traces.schema import COLLECTIVE_KINDS

Mutation = Callable[[JobGraph], JobGraph]

TIGHT = 2 / 3
"""Share of the bars that the right model stays within; wrong peers move the checks but little."""


def target_of(g: JobGraph) -> np.ndarray:
    """Target task of each edge."""
    return np.repeat(np.arange(len(g)), np.diff(g.pred_ptr))


def keep_edges(g: JobGraph, keep: np.ndarray) -> JobGraph:
    """The graph without the other edges; its constants are estimated anew, as a build would."""
    ptr = np.zeros(len(g) + 1, np.int64)
    np.cumsum(np.bincount(target_of(g)[keep], minlength=len(g)), out=ptr[1:])
    without = replace(
        g,
        pred_ptr=ptr,
        pred=g.pred[keep],
        edge_kind=g.edge_kind[keep],
        edge_delay_ns=np.zeros(int(keep.sum()), np.int64),
    )
    return with_constants(without)[0]


def without(*kinds: EdgeKind) -> Mutation:
    """No edges of these kinds; a rank still goes from its own arrival to its own execution."""

    def mutate(g: JobGraph) -> JobGraph:
        own = (g.kind[g.pred] == TaskKind.ARRIVE) & (g.kind[target_of(g)] == TaskKind.COMM)
        return keep_edges(g, ~np.isin(g.edge_kind, kinds) | own)

    return mutate


def class_averages(g: JobGraph) -> JobGraph:
    """Every kernel takes what kernels of its name take on average, every collective likewise."""
    dur = g.dur_ns.astype(np.float64)
    comm = g.kind == TaskKind.COMM
    label = np.where(comm, -1 - g.collectives.kind[g.collective], g.name)
    for rows in (comm, g.kind == TaskKind.KERNEL):
        _, group = np.unique(label[rows], return_inverse=True)
        dur[rows] = (np.bincount(group, dur[rows]) / np.bincount(group))[group]
    return g.with_durations(np.round(dur).astype(np.int64))


def ranks_start_together(g: JobGraph) -> JobGraph:
    """No initial conditions."""
    return g.with_durations(np.where(g.kind == TaskKind.SKEW, 0, g.dur_ns))


MUTATIONS: dict[str, Mutation] = {
    "no waits between streams": without(EdgeKind.EVENT),
    "no waits of the host": without(EdgeKind.SYNC),
    "no rendezvous": without(EdgeKind.RENDEZVOUS, EdgeKind.PEER),
    "no stream order": without(EdgeKind.STREAM),
    "no launches": without(EdgeKind.LAUNCH),
    "no waits between threads": without(EdgeKind.THREAD),
    "whole measured communication, no rendezvous": null_graph,
    "class averages": class_averages,
    "all ranks start together": ranks_start_together,
}


@pytest.fixture(scope="module")
def a800(real_sets: RealSets) -> RealSet:
    return real_sets.get("a800")


def test_the_model_as_it_is_passes(a800: RealSet) -> None:
    assert not misfits("a800", a800.assessment, TIGHT)
    same = keep_edges(a800.build.graph, np.ones(len(a800.build.graph.pred), bool))
    assert not misfits("a800", assess(replace(a800.build, graph=same)), TIGHT)


@pytest.mark.parametrize("name", list(MUTATIONS))
def test_a_wrong_model_is_noticed(a800: RealSet, name: str) -> None:
    mutant = MUTATIONS[name](a800.build.graph)
    assert misfits("a800", assess(replace(a800.build, graph=mutant)))


def with_peers_swapped(
    real: RealSet, one: tuple[int, int], other: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> Build:
    """A build in which the second ranks of two pairs have changed places in every message."""
    original = identity.match

    def swapped(*arguments: object) -> identity.Matches:
        matches = original(*arguments)  # type: ignore[arg-type]
        rank, operation = matches.rank.copy(), matches.operation.copy()
        rows = defaultdict(list)
        for i in np.flatnonzero(matches.kind == COLLECTIVE_KINDS.index("send_recv")):
            members = np.arange(matches.ptr[i], matches.ptr[i + 1])
            second = members[np.argmax(rank[members])]
            rows[matches.groups[matches.group[i]]].append(int(second))
        assert rows[one]
        assert len(rows[one]) == len(rows[other])
        for a, b in zip(rows[one], rows[other], strict=True):
            rank[[a, b]], operation[[a, b]] = rank[[b, a]], operation[[b, a]]
        return replace(matches, rank=rank, operation=operation)

    monkeypatch.setattr(identity, "match", swapped)
    return build_from_arrays(real.recording)


# Ranks 4 and 5 run in lockstep, so that no time tells (0, 5) from (0, 4): only the groups' numbers
# and the layout do, which the accuracy tests look at.
@pytest.mark.parametrize("other", [(2, 6), (3, 7)])
def test_wrong_peers_are_noticed(
    a800: RealSet, other: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = with_peers_swapped(a800, (0, 4), other, monkeypatch)
    assert misfits("a800", assess(built), TIGHT)
