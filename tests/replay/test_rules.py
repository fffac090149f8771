"""Every edge says which rule made it, and how sure that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.replay.real import SOURCES, RealSets
from tests.replay.traces import COPY, Job, RankTrace, job

from foretrace.replay.build.rules import DEFAULT_RULE, RULES, Rule
from foretrace.replay.graph import EdgeKind, TaskKind

each_set = pytest.mark.parametrize("name", list(SOURCES))


def rule_of(j: Job, task: int, kind: EdgeKind) -> list[Rule]:
    g = j.graph
    edges = range(int(g.pred_ptr[task]), int(g.pred_ptr[task + 1]))
    return [Rule(int(j.build.origins.rule[e])) for e in edges if g.edge_kind[e] == kind]


def test_an_edge_keeps_its_rule_through_the_sort(tmp_path: Path) -> None:
    r = RankTrace()
    r.mark(1, 0, 900)
    r.kernel("a", 0, 0, 100)
    r.kernel("b", 20, 20, 80, stream=COPY)
    r.call("cudaStreamSynchronize", 30, 73)
    r.call("cudaDeviceSynchronize", 110, 3)
    copy = r.call("cudaMemcpyAsync", 200, 43)
    r.work("Memcpy DtoH (Device -> Pageable)", 210, 30, COPY, copy, kind="memcpy")
    j = job(tmp_path, r)
    by_name = {
        "cudaStreamSynchronize": [Rule.CURRENT_STREAM_SYNC],
        "cudaDeviceSynchronize": [Rule.DEVICE_SYNC] * 2,
        "cudaMemcpyAsync": [Rule.OWN_COPY],
    }
    for name, rules in by_name.items():
        assert rule_of(j, j.task(TaskKind.SYNC, name), EdgeKind.SYNC) == rules
    for kernel in j.tasks(TaskKind.KERNEL):
        assert rule_of(j, kernel, EdgeKind.LAUNCH) == [Rule.LAUNCH]


@each_set
def test_rules_and_kinds_agree_on_real_jobs(real_sets: RealSets, name: str) -> None:
    built = real_sets.get(name).build
    g, origins = built.graph, built.origins
    assert len(origins.rule) == len(origins.confidence) == len(g.pred)
    rendezvous = np.isin(g.edge_kind, [EdgeKind.RENDEZVOUS, EdgeKind.PEER])
    for kind in np.unique(g.edge_kind[~np.isin(g.edge_kind, [EdgeKind.EVENT, EdgeKind.SYNC])]):
        assert set(origins.rule[g.edge_kind == kind]) == {DEFAULT_RULE[EdgeKind(int(kind))]}
    expected = np.array([RULES[Rule(int(r))].confidence for r in origins.rule], np.float32)
    assert (origins.confidence[~rendezvous] == expected[~rendezvous]).all()
    # A rendezvous is as sure as its match.
    target = np.repeat(np.arange(len(g)), np.diff(g.pred_ptr))
    joined = rendezvous & (g.kind[g.pred] == TaskKind.JOIN)
    match = g.collectives.confidence[g.collective[target[joined]]]
    assert (origins.confidence[joined] == match).all()


def test_every_rule_and_kind_is_described() -> None:
    assert set(RULES) == set(Rule)
    assert all(0 < info.confidence <= 1 for info in RULES.values())
