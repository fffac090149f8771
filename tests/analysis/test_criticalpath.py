"""The critical path: known by hand, without holes, and a bound on what anything can save."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.analysis.graphs import GraphBuilder, two_ranks
from tests.analysis.random_graphs import timelines

from foretrace.analysis.criticalpath import (
    critical_path_table,
    critical_path_tasks,
    host_share,
)
from foretrace.replay.criticalpath import (
    PATH_CLASSES,
    PathPart,
    critical_path,
    path_split,
    walk_back,
)
from foretrace.replay.engine import replay
from foretrace.replay.graph import TaskKind, Timeline
from foretrace.replay.timeline import step_windows
from foretrace.traces.errors import GraphError

HYPOTHESIS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def test_two_ranks_by_hand() -> None:
    timeline = two_ranks().replayed()
    path = critical_path(timeline, 0)
    names = [timeline.graph.names[timeline.graph.name[t]] for t in path.task]
    parts = [PathPart(p).name for p in path.part]
    assert list(zip(names, parts, path.segment_ns.tolist(), strict=True)) == [
        ("host", "OWN", 10),
        ("call", "OWN", 5),
        ("stall", "OWN", 45),
        ("all_reduce", "DELAY", 2),  # launch latency of rank 1's arrival
        ("all_reduce", "OWN", 18),
        ("copy", "DELAY", 3),
        ("copy", "OWN", 10),
    ]
    assert path.segment_start_ns.tolist() == [0, 10, 15, 60, 62, 80, 83]
    assert path_split(timeline.graph, path) == {
        "compute": 0,
        "communication": 18,
        "copy": 10,
        "host": 15,
        "stall": 45,
        "skew": 0,
        "idle": 5,
    }
    assert host_share(timeline.graph, path) == 60 / 93


def test_tables_by_hand() -> None:
    timeline = two_ranks(steps=2).replayed()
    table = critical_path_table(timeline)
    assert table.groupby("step")["total_ns"].sum().tolist() == [93, 93]
    rank_1 = table[table["rank"] == 1]
    assert rank_1["stall_ns"].tolist() == [45, 45]
    tasks = critical_path_tasks(timeline)
    assert tasks.loc[0, ["name", "path_ns", "count"]].tolist() == ["stall", 90, 2]
    assert tasks["share"].sum() == pytest.approx((93 - 5) / 93)


def test_unknown_step_is_named() -> None:
    with pytest.raises(GraphError, match=r"no step 7 .* steps are \[0\]"):
        critical_path(two_ranks().replayed(), 7)


def test_step_without_tasks_lies_outside() -> None:
    b = GraphBuilder()
    begin = b.task(TaskKind.MARK, 0, 0, stream=1, step=5)
    b.mark(3, 0, begin, begin)
    path = critical_path(b.replayed(), 3)
    assert path.segment_ns.sum() == 0


@given(timelines())
@HYPOTHESIS
def test_covers_the_step_without_a_hole(timeline: Timeline) -> None:
    windows = step_windows(timeline)
    for row, step in enumerate(windows.step.tolist()):
        path = critical_path(timeline, step)
        assert (path.start_ns, path.end_ns) == (windows.start_ns[row], windows.end_ns[row])
        ends = path.segment_start_ns + path.segment_ns
        assert (path.segment_ns > 0).all()
        if len(ends):
            assert path.segment_start_ns[0] == path.start_ns
            assert ends[-1] == path.end_ns
            assert (path.segment_start_ns[1:] == ends[:-1]).all()
        assert sum(path_split(timeline.graph, path).values()) == windows.dur_ns[row]
        own = path.part == PathPart.OWN
        assert (path.segment_start_ns[own] >= timeline.start_ns[path.task[own]]).all()
        if timeline.label == "replayed":
            assert not (path.part == PathPart.LATE).any()
    table = critical_path_table(timeline)
    columns = [f"{name}_ns" for name in PATH_CLASSES]
    assert (table[columns].sum(axis=1) == table["total_ns"]).all()
    assert table["total_ns"].sum() == windows.dur_ns.sum()


@given(timelines(), st.data())
@HYPOTHESIS
def test_no_saving_exceeds_the_time_on_the_path(timeline: Timeline, data: st.DataObject) -> None:
    graph = timeline.graph
    base = replay(graph)
    last = int(np.argmax(base.end_ns))
    walk = walk_back(base, np.array([last]), base.end_ns[[last]], np.zeros(1, np.int64))
    on_path = np.zeros(len(graph), np.int64)
    own = walk.part == PathPart.OWN
    np.add.at(on_path, walk.task[own], walk.dur_ns[own])
    gone = np.array(data.draw(st.lists(st.booleans(), min_size=len(graph), max_size=len(graph))))
    without = replay(graph, np.where(gone, 0, graph.dur_ns))
    assert base.end_ns.max() - without.end_ns.max() <= on_path[gone].sum()


def test_walks_stop_at_their_floor_and_say_what_lies_outside() -> None:
    b = GraphBuilder()
    kernel = b.task(TaskKind.KERNEL, 0, 10)
    timeline = b.replayed()
    shifted = Timeline(
        timeline.graph, timeline.start_ns + 5, timeline.end_ns + 5, timeline.bound, "x"
    )
    walk = walk_back(shifted, np.array([kernel]), np.array([12]), np.array([2]))
    assert [PathPart(p) for p in walk.part] == [PathPart.OWN, PathPart.OUTSIDE]
    assert walk.dur_ns.tolist() == [7, 3]
    nothing = walk_back(shifted, np.array([kernel]), np.array([2]), np.array([2]))
    assert len(nothing.task) == 0
