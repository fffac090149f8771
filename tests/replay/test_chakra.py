"""A job graph written as Chakra graphs and read again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from tests.conftest import ROOT

from foretrace.replay.build import build
from foretrace.replay.chakra import export_graph
from foretrace.replay.graph import EdgeKind, JobGraph, TaskKind
from foretrace.traces.importers import import_paths
from foretrace.traces.store import TraceSet

Key = tuple[str, int, int]


def key(row: dict[str, Any]) -> Key:
    return row["name"], row["dur_ns"], row["start_ns"]


def task_key(graph: JobGraph, task: int) -> Key:
    name = graph.names[graph.name[task]]
    return name, int(graph.dur_ns[task]), int(graph.measured_start_ns[task])


def test_sample_graph_there_and_back(tmp_path: Path) -> None:
    graph = build(TraceSet.open(ROOT / "traces/sample/gpt-dp2pp2.trace")).graph
    notes = export_graph(graph, tmp_path / "et")
    assert all(note for note in notes)
    import_paths([tmp_path / "et"], tmp_path / "o.trace", jobs=1)
    back = TraceSet.open(tmp_path / "o.trace")
    assert back.ranks == np.unique(graph.rank[graph.rank >= 0]).tolist()
    assert set(back.groups) == {tuple(g) for g in graph.groups}
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    for rank in back.ranks:
        own = np.flatnonzero(graph.rank == rank)
        wanted = Counter(task_key(graph, task) for task in own.tolist())
        rows = [r for r in back.events(rank).to_pylist() if r["kind"] != "annotation"]
        assert Counter(key(row) for row in rows) == wanted
        inside = (graph.rank[graph.pred] == rank) & (graph.rank[target] == rank)
        inside &= graph.edge_kind != EdgeKind.OVERLAP
        pairs = {(int(a), int(b)) for a, b in zip(graph.pred[inside], target[inside], strict=True)}
        comm = own[graph.kind[own] == TaskKind.COMM]
        arrive = own[graph.kind[own] == TaskKind.ARRIVE]
        by_operation = {int(graph.collective[t]): int(t) for t in comm}
        pairs |= {(int(a), by_operation[int(graph.collective[a])]) for a in arrive}
        every = back.events(rank).to_pylist()
        edges = back.dependencies(rank).to_pylist()
        assert Counter(
            (key(every[e["source"]]), key(every[e["target"]])) for e in edges
        ) == Counter((task_key(graph, a), task_key(graph, b)) for a, b in pairs)
        assert len(back.collectives(rank)) == len(comm)
