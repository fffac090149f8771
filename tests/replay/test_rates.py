"""The replay with rates: cases worked out by hand, a second implementation, and laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.random_graphs import graph_of
from tests.replay.rates_reference import simulate_with_rates

from foretrace.replay.engine import replay
from foretrace.replay.graph import Collectives, EdgeKind, JobGraph, Lanes, TaskKind
from foretrace.replay.rates import Sharing, bare_work, replay_with_rates
from foretrace.traces.errors import GraphError

US = 1_000
KERNEL, ARRIVE, COMM, JOIN, HOST = (
    TaskKind.KERNEL, TaskKind.ARRIVE, TaskKind.COMM, TaskKind.JOIN, TaskKind.HOST,
)  # fmt: skip
MEET, AFTER = EdgeKind.RENDEZVOUS, EdgeKind.STREAM
Task = tuple[TaskKind, int, int, int]
"""Kind, duration in us, rank and collective (-1 for none)."""


def job_of(tasks: list[Task], edges: list[tuple[int, int, int, int]]) -> JobGraph:
    """A graph; kernels run on stream 0 of their rank's device, communication on stream 1."""
    kinds = [int(kind) for kind, *_ in tasks]
    graph = graph_of([us * US for _, us, *_ in tasks], edges, kinds)
    ranks = [rank for *_, rank, _ in tasks]
    lane = [_lane(kind, rank) for kind, _, rank, _ in tasks]
    last = max(ranks) + 1
    lanes = Lanes(
        np.repeat(np.arange(last), 3).astype(np.int32),
        np.tile([-1, 0, 0], last).astype(np.int32),
        np.tile([100, 7, 20], last).astype(np.int64),
    )
    collective = np.array([c for *_, c in tasks], np.int32)
    count = int(collective.max()) + 1
    table = Collectives(
        np.zeros(count, np.int8), np.zeros(count, np.int32), np.full(count, 1 << 20),
        np.ones(count, np.float32),
    )  # fmt: skip
    return replace(
        graph, rank=np.array(ranks, np.int32), lane=np.array(lane, np.int32), lanes=lanes,
        collective=collective, collectives=table, groups=((0, 1),),
    )  # fmt: skip


def _lane(kind: TaskKind, rank: int) -> int:
    if kind == JOIN:
        return -1
    return 3 * rank + {KERNEL: 1, ARRIVE: 2, COMM: 2}.get(kind, 0)


def shared(
    graph: JobGraph, *, table: list[float] | None = None, evicted: float = -1.0, holds: int = 0,
    moves: float = 0.0, disturbed: float = 1.0,
) -> Sharing:  # fmt: skip
    """All kernels feel the same, all communication takes the same."""
    comm = graph.kind == COMM
    return Sharing(
        np.where(graph.kind == KERNEL, 0, -1).astype(np.int32),
        np.array([table or [1.0]]),
        np.full(len(graph), evicted),
        np.where(comm, holds, 0),
        np.where(comm, moves, 0.0),
        np.where(comm, disturbed, 1.0),
    )


def times_us(graph: JobGraph, sharing: Sharing) -> list[tuple[float, float]]:
    timeline = replay_with_rates(graph, sharing)
    pairs = zip(timeline.start_ns / US, timeline.end_ns / US, strict=True)
    return [(float(a), float(b)) for a, b in pairs]


WAITING: list[Task] = [
    (KERNEL, 100, 0, -1), (ARRIVE, 0, 0, 0), (HOST, 40, 1, -1), (ARRIVE, 0, 1, 0),
    (JOIN, 0, -1, 0), (COMM, 20, 0, 0), (COMM, 20, 1, 0),
]  # fmt: skip
WAITS = [(2, 3, EdgeKind.HOST_ORDER, 0), (1, 4, MEET, 0), (3, 4, MEET, 0), (4, 5, MEET, 0),
         (4, 6, MEET, 0), (1, 5, MEET, 0), (3, 6, MEET, 0)]  # fmt: skip
"""Rank 0 computes for 100 us; its collective waits for rank 1 until 40 and moves data until 60."""


def test_multiprocessors_are_held_while_waiting_and_bandwidth_is_not() -> None:
    graph = job_of(WAITING, WAITS)
    # Held from 0 to 60: half speed, 30 us of work; 70 us more at full speed.
    assert times_us(graph, shared(graph, table=[1, 2], holds=1))[0] == (0, 130)
    # Half the bandwidth gone from 40 to 60: half speed there, 10 us of work instead of 20.
    got = times_us(graph, shared(graph, evicted=0.0, moves=0.5))
    assert got[0] == (0, 110)
    assert got[5] == (40, 60)
    # Both: half speed while waiting, a quarter while data moves (the worse of the two counts).
    both = shared(graph, table=[1, 2], holds=1, evicted=2.0, moves=0.5)
    assert times_us(graph, both)[0] == (0, 40 + 20 + 100 - 20 - 5)


def test_communication_slows_too() -> None:
    graph = job_of([(KERNEL, 50, 0, -1), (ARRIVE, 0, 0, -1), (COMM, 40, 0, -1)], [(1, 2, MEET, 0)])
    # The transfer takes 50 at 1 / 1.25; the kernel has done 25 by then and needs 25 more.
    got = times_us(graph, shared(graph, table=[1, 2], holds=1, disturbed=1.25))
    assert got == [(0, 75), (0, 0), (0, 50)]
    # A short kernel holds it up only while it runs: 20 work take 40, and cost the transfer 8.
    short = replace(graph, dur_ns=np.array([20, 0, 40]) * US)
    got = times_us(short, shared(graph, table=[1, 2], holds=1, disturbed=1.25))
    assert got == [(0, 40), (0, 0), (0, 48)]


def test_a_collective_goes_at_the_pace_of_its_slowest_member() -> None:
    tasks = [*WAITING[1:], (KERNEL, 10, 1, -1)]
    edges = [(a - 1, b - 1, kind, delay) for a, b, kind, delay in WAITS]
    # Rank 1 computes for 10 us from the moment the data moves; rank 0 does not compute at all.
    graph = job_of(tasks, [*edges, (3, 6, AFTER, 0)])
    got = times_us(graph, shared(graph, disturbed=2.0))
    assert got[6] == (40, 50)
    assert got[4] == got[5] == (40, 65)  # 5 us of work in the first 10


def test_work_without_a_device_and_other_devices_feel_nothing() -> None:
    tasks = [(KERNEL, 50, 1, -1), (HOST, 50, 0, -1), (ARRIVE, 0, 0, -1), (COMM, 40, 0, -1)]
    graph = job_of(tasks, [(2, 3, MEET, 0)])
    got = times_us(graph, shared(graph, table=[1, 2], holds=1, moves=0.5, disturbed=2.0))
    assert got == [(0, 50), (0, 50), (0, 0), (0, 40)]


def test_two_collectives_add_up_and_the_last_level_stands_for_more() -> None:
    tasks = [(KERNEL, 60, 0, -1)]
    for _ in range(3):
        tasks += [(ARRIVE, 0, 0, -1), (COMM, 30, 0, -1)]
    graph = job_of(tasks, [(1, 2, MEET, 0), (3, 4, MEET, 0), (5, 6, MEET, 0)])
    assert times_us(graph, shared(graph, table=[1, 1, 2, 3], holds=1))[0] == (0, 80)
    assert times_us(graph, shared(graph, table=[1, 1.5], holds=2))[0] == (0, 70)


def test_no_cycle_and_no_time_travel() -> None:
    back = graph_of([5, 7], [(1, 0, EdgeKind.STREAM, 0)])
    with pytest.raises(GraphError, match="sort_tasks"):
        replay_with_rates(back, shared(back))
    early = graph_of([5, 7], [(0, 1, EdgeKind.STREAM, -1)])
    with pytest.raises(GraphError, match="negative"):
        replay_with_rates(early, shared(early))


@st.composite
def shared_jobs(draw: st.DrawFn, longest: int = 40) -> JobGraph:
    """Kernels, host work and collectives of two ranks with any edges that lead forward."""
    tasks: list[Task] = []
    edges: list[tuple[int, int, int, int]] = []
    collectives = 0
    for _ in range(draw(st.integers(1, 7))):
        what = draw(st.sampled_from(["kernel", "host", "collective", "lone"]))
        us = draw(st.integers(0, longest))
        rank = draw(st.integers(0, 1))
        n = len(tasks)
        if what == "collective":
            c, collectives = collectives, collectives + 1
            tasks += [(ARRIVE, 0, 0, c), (ARRIVE, 0, 1, c), (JOIN, 0, -1, c),
                      (COMM, us, 0, c), (COMM, draw(st.integers(0, longest)), 1, c)]  # fmt: skip
            edges += [
                (n, n + 2, MEET, 0),
                (n + 1, n + 2, MEET, 0),
                (n + 2, n + 3, MEET, 0),
                (n + 2, n + 4, MEET, 0),
                (n, n + 3, MEET, 0),
                (n + 1, n + 4, MEET, 0),
            ]
        elif what == "lone":
            tasks += [(ARRIVE, 0, rank, -1), (COMM, us, rank, -1)]
            edges += [(n, n + 1, MEET, 0)]
        else:
            tasks.append((KERNEL if what == "kernel" else HOST, us, rank, -1))
    for _ in range(draw(st.integers(0, len(tasks)))):
        a, b = draw(st.integers(0, len(tasks) - 1)), draw(st.integers(0, len(tasks) - 1))
        kind = draw(st.sampled_from([k for k in EdgeKind if k != MEET]))
        if a < b and tasks[b][0] not in (JOIN, COMM):
            edges.append((a, b, kind, draw(st.integers(0, 9)) * US))
    return job_of(tasks, edges)


SLOW = st.sampled_from([1.0, 1.25, 1.5, 2.0, 3.0])


@st.composite
def sharings(draw: st.DrawFn, graph: JobGraph) -> Sharing:
    """Anything that kernels may feel and communication may take, two rows of kernels."""
    n, comm = len(graph), graph.kind == COMM

    def drawn(values: st.SearchStrategy[float]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=n, max_size=n)))

    table = np.sort(np.array(draw(st.lists(SLOW, min_size=6, max_size=6))).reshape(2, 3), axis=1)
    table[:, 0] = 1.0
    row = np.where(graph.kind == KERNEL, drawn(st.sampled_from([-1, 0, 1])), -1)
    return Sharing(
        row.astype(np.int32),
        table,
        np.where(row >= 0, drawn(st.sampled_from([-1.0, 0.0, 0.5])), -1.0),
        np.where(comm, drawn(st.sampled_from([0, 1, 2])), 0).astype(np.int64),
        np.where(comm, drawn(st.sampled_from([0.0, 0.25, 0.5, 0.9])), 0.0),
        np.where(comm, drawn(SLOW), 1.0),
    )


@given(st.data())
def test_equals_the_slow_simulator(data: st.DataObject) -> None:
    graph = data.draw(shared_jobs())
    sharing = data.draw(sharings(graph))
    timeline, slow = replay_with_rates(graph, sharing), simulate_with_rates(graph, sharing)
    # Each end that was moved is rounded to a nanosecond; what follows may be off by as much.
    room = 2 * len(graph)
    assert np.abs(timeline.start_ns - np.array(slow("start"), float)).max() <= room
    assert np.abs(timeline.end_ns - np.array(slow("end"), float)).max() <= room


@given(st.data())
def test_without_slowdown_it_is_the_plain_replay(data: st.DataObject) -> None:
    graph = data.draw(shared_jobs(longest=2**40))
    sharing = data.draw(sharings(graph))
    nothing = replace(
        sharing, table=np.ones_like(sharing.table), evicted=np.full(len(graph), -1.0),
        disturbed=np.ones(len(graph)),
    )  # fmt: skip
    timeline, plain = replay_with_rates(graph, nothing), replay(graph)
    for column in ("start_ns", "end_ns", "bound"):
        assert (getattr(timeline, column) == getattr(plain, column)).all()
    assert (bare_work(plain, sharing) <= graph.dur_ns).all()
    assert (bare_work(plain, nothing) == graph.dur_ns).all()


@given(st.data())
def test_work_is_conserved(data: st.DataObject) -> None:
    """Time divided by the slowdown under which it passed is the work, whatever the rates did."""
    graph = data.draw(shared_jobs())
    sharing = data.draw(sharings(graph))
    timeline = replay_with_rates(graph, sharing)
    took = replace(timeline, graph=graph.with_durations(timeline.end_ns - timeline.start_ns))
    assert np.abs(bare_work(took, sharing) - graph.dur_ns).max() <= 1


@given(st.data())
def test_bare_work_gives_the_recorded_times_back(data: st.DataObject) -> None:
    graph = data.draw(shared_jobs())
    sharing = data.draw(sharings(graph))
    recorded = replay(graph)
    again = replay_with_rates(graph.with_durations(bare_work(recorded, sharing)), sharing)
    # Work in whole nanoseconds, times a slowdown of at most 14.5 (a share of 0.9, evicted 0.5).
    room = 20 * len(graph)
    assert np.abs(again.start_ns - recorded.start_ns).max() <= room
    assert np.abs(again.end_ns - recorded.end_ns).max() <= room


@given(st.data())
def test_each_binding_edge_is_what_its_task_waited_for(data: st.DataObject) -> None:
    graph = data.draw(shared_jobs())
    timeline = replay_with_rates(graph, data.draw(sharings(graph)))
    for task, edge in enumerate(timeline.bound.tolist()):
        if edge < 0:
            assert timeline.start_ns[task] == 0
            continue
        source = graph.pred[edge]
        early = graph.edge_kind[edge] in (EdgeKind.LAUNCH, EdgeKind.OVERLAP, EdgeKind.SEGMENT)
        anchor = timeline.start_ns[source] if early else timeline.end_ns[source]
        assert timeline.start_ns[task] == anchor + graph.edge_delay_ns[edge]
