"""A job graph written as Chakra graphs and read again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import ROOT

from foretrace.replay.build import build
from foretrace.replay.chakra import export_graph, export_trace
from foretrace.replay.engine import replay
from foretrace.replay.graph import EdgeKind, JobGraph, TaskKind
from foretrace.replay.timeline import step_windows
from foretrace.traces.exporters.chakra import Edges, RankFacts, Tasks, encode_rank
from foretrace.traces.importers import import_paths
from foretrace.traces.store import TraceSet

Key = tuple[str, int, int]


def key(row: dict[str, Any]) -> Key:
    return row["name"], row["dur_ns"], row["start_ns"]


def task_key(graph: JobGraph, task: int) -> Key:
    name = graph.names[graph.name[task]]
    return name, int(graph.dur_ns[task]), int(graph.measured_start_ns[task])


SAMPLE = ROOT / "traces/sample/gpt-dp2pp2.trace"


def same_graph(graph: JobGraph, back: TraceSet) -> None:
    """Tasks, durations, edges, groups and operations of a graph are in a trace set."""
    assert back.ranks == np.unique(graph.rank[graph.rank >= 0]).tolist()
    assert {tuple(g) for g in graph.groups} <= set(back.groups)
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
        by_operation = {int(graph.collective[t]): int(t) for t in comm if graph.collective[t] >= 0}
        pairs |= {
            (int(a), by_operation[int(graph.collective[a])])
            for a in arrive
            if graph.collective[a] >= 0
        }
        every = back.events(rank).to_pylist()
        edges = back.dependencies(rank).to_pylist()
        assert Counter(
            (key(every[e["source"]]), key(every[e["target"]])) for e in edges
        ) == Counter((task_key(graph, a), task_key(graph, b)) for a, b in pairs)
        assert len(back.collectives(rank)) == len(comm)


def same_operations(one: TraceSet, back: TraceSet, columns: tuple[str, ...]) -> None:
    """What each rank's operations move, whoever the peer."""
    for rank in one.ranks:
        first, second = (
            Counter(tuple(r[c] for c in columns) for r in t.collectives(rank).to_pylist())
            for t in (one, back)
        )
        assert first == second


def duration_ns(graph: JobGraph) -> int:
    windows = step_windows(replay(graph))
    return int(windows.end_ns.max() - windows.start_ns.min())


def there_and_back(traces: TraceSet, folder: Path) -> TraceSet:
    notes = export_trace(traces, folder / "et", "job")
    assert all(notes)
    import_paths([folder / "et"], folder / "back.trace", jobs=1)
    return TraceSet.open(folder / "back.trace")


@pytest.fixture(scope="module")
def back(tmp_path_factory: pytest.TempPathFactory) -> TraceSet:
    """The sample, written and read again."""
    return there_and_back(TraceSet.open(SAMPLE), tmp_path_factory.mktemp("back"))


def test_sample_there_and_back(back: TraceSet) -> None:
    traces = TraceSet.open(SAMPLE)
    same_graph(build(traces).graph, back)
    same_operations(traces, back, ("kind", "peer", "bytes_in", "bytes_out", "dtype", "p2p"))
    again = build(back)
    assert not any(again.unmatched.values())
    # a buffered send that nobody waits for is one that the receiver meets in a Chakra graph
    assert duration_ns(again.graph) >= 0.9 * duration_ns(build(traces).graph)


def test_a_graph_alone_knows_who_sends(tmp_path: Path) -> None:
    traces = TraceSet.open(SAMPLE)
    graph = build(traces).graph
    export_graph(graph, tmp_path / "et")
    import_paths([tmp_path / "et"], tmp_path / "back.trace", jobs=1)
    back = TraceSet.open(tmp_path / "back.trace")
    same_graph(graph, back)
    same_operations(traces, back, ("kind", "peer", "p2p"))


def test_real_job_there_and_back(shared_data: Path, tmp_path: Path) -> None:
    """Eight ranks of a recommendation model: tasks, edges, and the step that comes of them."""
    source = shared_data / "traces" / "dlrm-8xv100" / "dlrm_kineto.tar.gz"
    import_paths([source], tmp_path / "one.trace", jobs=1)
    traces = TraceSet.open(tmp_path / "one.trace")
    graph = build(traces).graph
    back = there_and_back(traces, tmp_path)
    same_graph(graph, back)
    same_operations(traces, back, ("kind", "bytes_in", "bytes_out", "dtype", "p2p"))
    once, twice = duration_ns(graph), duration_ns(build(back).graph)
    assert abs(twice / once - 1) < 0.01


def test_graphs_go_out_as_they_came_in(back: TraceSet, tmp_path: Path) -> None:
    first, second = back, there_and_back(back, tmp_path)
    for rank in first.ranks[:2]:
        tasks, edges = [], []
        for traces in (first, second):
            rows = traces.events(rank, ["kind", "name", "start_ns", "dur_ns"]).to_pylist()
            tasks.append(Counter(key(r) for r in rows if r["kind"] != "annotation"))
            pairs = traces.dependencies(rank).to_pylist()
            edges.append(Counter((key(rows[e["source"]]), key(rows[e["target"]])) for e in pairs))
        assert tasks[0] == tasks[1]
        assert edges[0] == edges[1]


def test_clocks_that_contradict_dependencies_make_no_cycle(tmp_path: Path) -> None:
    """Kernels on one stream, the first of which is stamped after one that waits for it."""
    numbers = {"thread": [4, -1, -1], "device": [-1, 0, 0], "stream": [-1, 7, 7]}
    tasks = Tasks(
        name=["launch", "first", "second"],
        kind=["runtime", "kernel", "kernel"],
        dur_ns=np.array([50_000, 5_000, 0]),
        start_ns=np.array([0, 60_000, 55_000]),
        **{name: np.array(values) for name, values in numbers.items()},
    )
    edges = Edges(np.array([0, 1]), np.array([1, 2]), np.array([True, True]))
    (tmp_path / "x.0.et").write_bytes(encode_rank(tasks, edges, RankFacts(0, 1)))
    import_paths([tmp_path / "x.0.et"], tmp_path / "x.trace", jobs=1)
    assert duration_ns(build(TraceSet.open(tmp_path / "x.trace")).graph) == 55_000
