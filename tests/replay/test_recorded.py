"""Job graphs of ranks that come with their own dependencies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrace.replay.build import build
from foretrace.replay.engine import replay
from foretrace.replay.graph import TaskKind
from foretrace.traces.errors import GraphError
from foretrace.traces.exporters.chakra import Edges, RankFacts, Tasks, encode_rank
from foretrace.traces.importers import import_paths
from foretrace.traces.store import TraceSet


def write_rank(folder: Path, rank: int, gemm_ns: int) -> None:
    """A host operator, a kernel, an all-reduce, and a kernel that runs beside it."""
    row = {"kind": "all_reduce", "bytes_in": 64, "bytes_out": 64, "group": 0, "seq": 1}
    tasks = Tasks(
        name=["op", "gemm", "reduce", "beside"],
        kind=["host_op", "kernel", "kernel", "kernel"],
        dur_ns=np.array([100, gemm_ns, 50, 30]),
        thread=np.array([1, -1, -1, -1]),
        device=np.array([-1, 0, 0, 0]),
        stream=np.array([-1, 7, 20, 7]),
        communication={2: row},
    )
    edges = Edges(np.array([0, 1, 1]), np.array([1, 2, 3]), np.ones(3, np.bool_))
    folder.mkdir(exist_ok=True)
    data = encode_rank(tasks, edges, RankFacts(rank, 2, "", [[0, 1]]))
    (folder / f"job.{rank}.et").write_bytes(data)


def test_two_ranks_meet_in_their_collective(tmp_path: Path) -> None:
    write_rank(tmp_path / "et", 0, 200)
    write_rank(tmp_path / "et", 1, 900)
    import_paths([tmp_path / "et"], tmp_path / "o.trace", jobs=1)
    found = build(TraceSet.open(tmp_path / "o.trace"))
    assert not any(found.unmatched.values())
    graph, timeline = found.graph, replay(found.graph)
    times = {}
    for task in np.flatnonzero(graph.kind != TaskKind.ARRIVE).tolist():
        name = graph.names[graph.name[task]]
        times[int(graph.rank[task]), name] = (timeline.start_ns[task], timeline.end_ns[task])
    assert times[0, "gemm"] == (100, 300)
    assert times[1, "gemm"] == (100, 1000)
    assert times[0, "beside"] == (300, 330)
    assert times[0, "reduce"] == times[1, "reduce"] == (1000, 1050)  # rank 0 waits for rank 1


def test_real_graph_replays_as_it_was_laid_out(shared_data: Path, tmp_path: Path) -> None:
    import_paths([shared_data / "traces/chakra/feeder_tests_trace.tar.gz"], tmp_path / "o", jobs=1)
    traces = TraceSet.open(tmp_path / "o")
    graph = build(traces).graph
    timeline = replay(graph)
    rows = traces.events(0, ["start_ns", "dur_ns"])
    own = (graph.event >= 0) & (graph.kind != TaskKind.ARRIVE)
    assert int(own.sum()) == len(rows)
    assert (timeline.start_ns[own] == rows["start_ns"].to_numpy()[graph.event[own]]).all()
    ends = rows["start_ns"].to_numpy() + rows["dur_ns"].to_numpy()
    assert timeline.end_ns.max() == ends.max()


def test_an_order_of_calls_is_not_replayed(shared_data: Path, tmp_path: Path) -> None:
    import_paths([shared_data / "traces/et/resnet_et.json.gz"], tmp_path / "o", jobs=1)
    with pytest.raises(GraphError, match="rank 0 has no times"):
        build(TraceSet.open(tmp_path / "o"))
