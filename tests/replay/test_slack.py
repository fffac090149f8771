"""Slack: what a task may take longer, checked by replays that take it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.random_graphs import graph_of, job_graphs

from foretrace.replay.engine import replay
from foretrace.replay.graph import EdgeKind, JobGraph, StepMarks, TaskKind
from foretrace.replay.slack import UNBOUNDED_NS, closing_tasks, slack
from foretrace.traces.errors import GraphError


def with_step(graph: JobGraph) -> JobGraph:
    """One step from the first task to the last, with whatever device tasks there are."""
    ends = np.array([0, len(graph) - 1])
    number = np.zeros(2, np.int32)
    return replace(graph, steps=StepMarks(number, number, np.zeros(2, np.int64), ends))


@given(job_graphs(shuffled=False, smallest=1), st.data())
def test_a_task_may_take_its_slack_and_no_more(graph: JobGraph, data: st.DataObject) -> None:
    graph = with_step(graph)
    timeline = replay(graph)
    room = slack(timeline)
    closing = closing_tasks(timeline)
    assert (room.longer_ns >= 0).all()
    assert (room.longer_ns[closing] == 0).any()
    task = data.draw(st.integers(0, len(graph) - 1))
    bounded = room.longer_ns[task] < UNBOUNDED_NS
    more = int(room.longer_ns[task]) if bounded else 2**56
    for extra, after in ((more, 0), (more + 1, 1 if bounded else 0)):
        dur = graph.dur_ns.copy()
        dur[task] += extra
        end = replay(graph, dur).end_ns[closing].max()
        assert end == room.end_ns + after


@given(job_graphs(shuffled=False, smallest=1), st.data())
def test_a_task_may_start_later_by_its_slack_and_no_more(
    graph: JobGraph, data: st.DataObject
) -> None:
    graph = with_step(graph)
    timeline = replay(graph)
    room = slack(timeline)
    closing = closing_tasks(timeline)
    assert (room.later_ns <= room.longer_ns).all()
    waiting = np.flatnonzero(np.diff(graph.pred_ptr) > 0)
    if not len(waiting):
        return
    task = data.draw(st.sampled_from(waiting.tolist()))
    bounded = room.later_ns[task] < UNBOUNDED_NS
    more = int(room.later_ns[task]) if bounded else 2**56
    for extra, after in ((more, 0), (more + 1, 1 if bounded else 0)):
        delay = graph.edge_delay_ns.copy()
        delay[graph.pred_ptr[task] : graph.pred_ptr[task + 1]] += extra
        end = replay(replace(graph, edge_delay_ns=delay)).end_ns[closing].max()
        assert end == room.end_ns + after


def test_slack_by_hand() -> None:
    # A call of 50 launches a kernel of 100 after its begin; another chain of 10 joins it.
    graph = graph_of(
        [10, 50, 100, 10, 3],
        [
            (0, 1, EdgeKind.HOST_ORDER, 0),
            (1, 2, EdgeKind.LAUNCH, 4),
            (0, 3, EdgeKind.HOST_ORDER, 0),
            (2, 4, EdgeKind.SYNC, 6),
            (3, 4, EdgeKind.HOST_ORDER, 0),
        ],
        [TaskKind.HOST, TaskKind.CALL, TaskKind.HOST, TaskKind.HOST, TaskKind.SYNC],
    )
    number = np.zeros(1, np.int32)
    steps = StepMarks(number, number, np.array([0]), np.array([4]))
    room = slack(replay(replace(graph, steps=steps)))
    assert room.end_ns == 123
    assert room.longer_ns.tolist() == [0, UNBOUNDED_NS, 0, 100, 0]
    assert room.later_ns.tolist() == [0, 0, 0, 100, 0]


def test_only_steps_have_an_end() -> None:
    with pytest.raises(GraphError, match="no steps"):
        slack(replay(graph_of([1], [])))
    graph = with_step(graph_of([1], []))
    with pytest.raises(GraphError, match="no step 7"):
        slack(replay(graph), 7)
