"""A wrong model is noticed: rules taken out of a real job's graph fail a printed check.

The error of the step alone cannot tell a right model from a wrong one. The checks and the wrong
models are those that ``benchmarks/replay_accuracy.py`` prints.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmarks._replay_checks import JOBS, Check, checks, is_aligned, off_layout
from benchmarks._wrong_models import message_pairs, mutations, with_edges, with_wrong_peers
from tests.replay.real import RealSet, RealSets

from foretrace.replay.accuracy import Assessment, assess
from foretrace.replay.graph import EdgeKind

A800 = JOBS["A800 2x2x2"]
NAMES = dict(zip(("a800", "tp8", "dlrm"), JOBS.values(), strict=True))
KINDS = ("HOST_ORDER", "THREAD", "LAUNCH", "STREAM", "EVENT", "SYNC", "RENDEZVOUS", "PEER",
         "WINDOW")  # fmt: skip
OTHERS = ("no rendezvous of any kind", "whole measured communication, no rendezvous",
          "waits moved to the launch", "class averages")  # fmt: skip


@pytest.fixture(scope="module")
def a800(real_sets: RealSets) -> RealSet:
    return real_sets.get("a800")


def failed(a: Assessment) -> list[Check]:
    return [c for c in checks(A800, a) if not c.passed]


@pytest.mark.parametrize("name", list(NAMES))
def test_the_model_as_it_is_passes(real_sets: RealSets, name: str) -> None:
    real = real_sets.get(name)
    assert not [c for c in checks(NAMES[name], real.assessment) if not c.passed]


def test_so_does_one_whose_edges_were_all_put_back(a800: RealSet) -> None:
    graph = a800.build.graph
    same = with_edges(graph, np.ones(len(graph.pred), bool))
    assert not failed(assess(replace(a800.build, graph=same)))


@pytest.mark.parametrize("name", [*(f"no {k} edges" for k in KINDS), *OTHERS])
def test_a_wrong_model_is_noticed(a800: RealSet, name: str) -> None:
    mutant = mutations(a800.build.graph)[name](a800.build.graph)
    assert failed(assess(replace(a800.build, graph=mutant)))


def test_no_kind_of_edge_is_left_out(a800: RealSet) -> None:
    graph = a800.build.graph
    assert {EdgeKind(int(k)).name for k in np.unique(graph.edge_kind)} == set(KINDS)
    assert set(mutations(graph)) == {*(f"no {k} edges" for k in KINDS), *OTHERS}


# Ranks 4 and 5 run in lockstep, so that no time tells (0, 5) from (0, 4): only the layout does.
@pytest.mark.parametrize(
    ("other", "by"),
    [
        ((1, 5), {"groups off the layout"}),
        ((2, 6), {"groups off the layout", "messages left early"}),
        ((3, 7), {"groups off the layout", "messages left early"}),
    ],
)
def test_wrong_peers_are_noticed(a800: RealSet, other: tuple[int, int], by: set[str]) -> None:
    assert message_pairs(a800.build.graph) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    wrong = with_wrong_peers(a800.recording, (0, 4), other)
    assert {c.name for c in failed(assess(wrong))} == by
    assert off_layout(wrong.graph, A800.layout) == {(0, other[1]), (other[0], 4)}


def test_groups_of_a_mesh() -> None:
    on = [(0, 1), (5, 7), (2, 6), (0, 1, 4, 5), (1, 3, 5, 7), (0, 1, 2, 3), tuple(range(8)), (3,)]
    off = [(0, 3), (1, 2), (0, 5), (0, 1, 2), (0, 1, 4, 7), (0, 1, 2, 4)]
    assert all(is_aligned(g, (2, 2, 2)) for g in on)
    assert not any(is_aligned(g, (2, 2, 2)) for g in off)
    assert is_aligned((0, 4), (4, 2))
    assert not is_aligned((0, 2), (4, 2))
