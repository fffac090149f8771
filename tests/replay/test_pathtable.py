"""The critical path by class of task, with slack, worked out by hand and against the path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.random_graphs import graph_of
from tests.replay.test_sensitivity import coarse_graphs

from foretrace.replay.criticalpath import critical_path
from foretrace.replay.engine import replay
from foretrace.replay.graph import EdgeKind, JobGraph, StepMarks, TaskKind
from foretrace.replay.pathtable import OTHER, OnPath, path_table
from foretrace.replay.slack import UNBOUNDED_NS, slack
from foretrace.replay.taskclasses import classify
from foretrace.traces.errors import ScenarioError


def test_by_hand() -> None:
    # Rank 0 works 10, launches a kernel of 100 (4 after the call's begin), syncs 6 after its end
    # for 3: 123. A kernel of 90 on rank 1 begins at 3 and is waited for, 13 long: 14 of slack.
    graph = graph_of(
        [10, 50, 100, 90, 3, 0],
        [
            (0, 1, EdgeKind.HOST_ORDER, 0),
            (1, 2, EdgeKind.LAUNCH, 4),
            (0, 3, EdgeKind.LAUNCH, 3),
            (2, 4, EdgeKind.SYNC, 6),
            (3, 4, EdgeKind.SYNC, 13),
            (4, 5, EdgeKind.HOST_ORDER, 0),
        ],
        [
            TaskKind.HOST,
            TaskKind.CALL,
            TaskKind.KERNEL,
            TaskKind.KERNEL,
            TaskKind.SYNC,
            TaskKind.MARK,
        ],
    )
    number = np.zeros(1, np.int32)
    steps = StepMarks(number, number, np.array([0]), np.array([5]))
    graph = replace(graph, rank=np.array([0, 0, 0, 1, 0, 0], np.int32), steps=steps)
    timeline = replay(graph)
    assert path_table(timeline, "rank") == [
        OnPath("rank 0", 113, 113 / 123, 0),
        OnPath(OTHER, 10, 10 / 123, -1),
        OnPath("rank 1", 0, 0.0, 14),
    ]
    rows = {row.name: (row.path_ns, row.slack_ns) for row in path_table(timeline, "kind")}
    # The launching call is on no path: its kernel counts from its begin, nothing from its end.
    assert rows == {
        "compute": (100, 0), "host": (10, 0), "sync": (3, 0), OTHER: (10, -1), "launch": (0, -1),
    }  # fmt: skip
    with pytest.raises(ScenarioError, match="sorted by"):
        path_table(timeline, "colour")


@given(coarse_graphs(), st.sampled_from(["kind", "rank", "layer", "collective"]))
def test_rows_make_up_the_path_and_hold_the_least_slack(graph: JobGraph, by: str) -> None:
    timeline = replay(graph)
    rows = path_table(timeline, by)
    path, room = critical_path(timeline), slack(timeline).longer_ns
    assert sum(row.path_ns for row in rows) == path.end_ns - path.start_ns
    classes = classify(graph, by)
    for row in rows:
        if row.name == OTHER:
            continue
        mine = (classes.label == classes.names.index(row.name)) & (graph.dur_ns > 0)
        least = int(room[mine].min())
        assert row.slack_ns == (least if least < UNBOUNDED_NS else -1)
        assert row.path_ns == 0 or row.slack_ns == 0
