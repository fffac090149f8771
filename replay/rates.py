"""The replay with rates: work that runs side by side on a device slows each other down.

A device has multiprocessors and memory bandwidth. A communication kernel *holds* multiprocessors
from its arrival to its end, waiting included, and takes bandwidth while it *moves* data, once
all members have arrived. What computes beside it slows down by what is held and what is moved;
a collective in turn slows down while any of its members computes beside it, since it goes at the
pace of its slowest member.

Durations here are *work*: what a task takes alone. :func:`bare_work` gets it from durations that
were recorded under overlap. Where nothing overlaps, or no slowdown is above 1, the result is that
of ``engine.replay`` to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.arrivals import arrivals
from foretrace.replay.engine import counts_from_start, is_sorted
from foretrace.replay.graph import F64, I32, I64, JobGraph, TaskKind, Timeline
from foretrace.replay.kernels import latest_predecessor
from foretrace.replay.rateskernels import new_state, run_with_rates, work_done
from foretrace.replay.ratesstate import (
    ALONE,
    ARRIVED,
    ARRIVES,
    BEGUN,
    COMPUTES,
    ENDED,
    MILLION,
    MOVES,
    Shares,
    State,
    Successors,
)
from foretrace.traces.errors import GraphError


@dataclass(frozen=True, slots=True)
class Sharing:
    """How much tasks of a graph take from their device, and how they feel it.

    Attributes:
        row: row of ``table`` of each computation kernel, -1 for tasks that nothing slows down and
            that disturb nothing, shape ``(n,)``.
        table: slowdown by row and by held multiprocessors (0, 1, ...), at least 1, shape
            ``(rows, levels)``; the last level stands for all above.
        evicted: ``a`` of a kernel that feels a share ``f`` of the bandwidth as
            ``(1 + a * f) / (1 - f)``, -1 where it does not, shape ``(n,)``. Of both slowdowns the
            larger counts.
        holds: multiprocessors that a COMM task's kernel holds, shape ``(n,)``.
        moves: share of the bandwidth that a COMM task takes while it runs, shape ``(n,)``.
        disturbed: slowdown of a COMM task beside computation, shape ``(n,)``.
    """

    row: I32
    table: F64
    evicted: F64
    holds: I64
    moves: F64
    disturbed: F64


def replay_with_rates(graph: JobGraph, sharing: Sharing, label: str = "replayed") -> Timeline:
    """Run the job graph, event by event, with rates.

    Args:
        graph: a sorted job graph; its durations are work.
        sharing: what its tasks take and feel.
        label: name of the result.

    Returns:
        The timeline: a task's end minus its start is its work times its slowdown.

    Raises:
        GraphError: tasks are not sorted, or an edge's delay is negative.
    """
    if not is_sorted(graph):
        raise GraphError("the job graph's tasks are not in topological order; use sort_tasks first")
    if graph.edge_delay_ns.min(initial=0) < 0:
        raise GraphError("a replay with rates cannot go back in time: an edge's delay is negative")
    shares, edges = _shares(graph, sharing), _successors(graph)
    start, end = run_with_rates(graph.dur_ns, edges, shares, _nothing_runs(graph, shares))
    forward = (graph.pred_ptr, graph.pred, counts_from_start(graph), graph.edge_delay_ns)
    _, bound = latest_predecessor(start, end, *forward)
    return Timeline(graph, start, end, bound, label)


def bare_work(timeline: Timeline, sharing: Sharing) -> I64:
    """Durations without the slowdown that the timeline's own overlap brought.

    Replayed with rates they give the timeline's durations back wherever its overlap comes back.

    Args:
        timeline: where the graph's durations are from: measured, or a plain replay.
        sharing: what its tasks take and feel.

    Returns:
        ns, shape ``(n,)``; the graph's own durations where nothing slows a task down.
    """
    graph = timeline.graph
    shares = _shares(graph, sharing)
    events = _events(timeline, shares)
    done = work_done(events, shares, _nothing_runs(graph, shares))
    runs = np.isin(shares.role, (COMPUTES, MOVES))
    work: I64 = np.where(runs, done, graph.dur_ns)
    return work


def devices(graph: JobGraph) -> I32:
    """Number of the device that each task runs on, -1 for none, shape ``(n,)``."""
    lanes = graph.lanes
    key = lanes.rank.astype(np.int64) * (int(lanes.device.max(initial=0)) + 1) + lanes.device
    _, number = np.unique(key, return_inverse=True)
    of_lane = np.append(np.where(lanes.device >= 0, number.reshape(-1), -1), -1)
    result: I32 = of_lane[graph.lane].astype(np.int32)
    return result


def _shares(graph: JobGraph, sharing: Sharing) -> Shares:
    """The columns that the compiled loops read."""
    device, arrive = devices(graph), arrivals(graph)
    role = np.full(len(graph), ALONE, np.int8)
    role[(sharing.row >= 0) & (device >= 0)] = COMPUTES
    moves = np.rint(sharing.moves * MILLION).astype(np.int64)
    comm = (graph.kind == TaskKind.COMM) & (device >= 0) & (arrive >= 0)
    tasks = np.flatnonzero(comm)
    role[tasks], role[arrive[tasks]] = MOVES, ARRIVES
    holds = np.where(comm, sharing.holds, 0)
    np.add.at(holds, arrive[tasks], holds[tasks])
    party, ptr, member = _parties(graph, tasks)
    return Shares(
        role, device, holds, moves, sharing.row, sharing.table, sharing.evicted,
        sharing.disturbed, party, ptr, member,
    )  # fmt: skip


def _parties(graph: JobGraph, tasks: I64) -> tuple[I64, I64, I64]:
    """Members of one collective as one party; an operation without a counterpart is alone."""
    collective = graph.collective[tasks].astype(np.int64)
    lone = collective < 0
    collective[lone] = len(graph.collectives.kind) + np.arange(int(lone.sum()))
    _, number = np.unique(collective, return_inverse=True)
    number = number.reshape(-1)
    party = np.full(len(graph), -1, np.int64)
    party[tasks] = number
    ptr = np.zeros(int(number.max(initial=-1)) + 2, np.int64)
    np.cumsum(np.bincount(number, minlength=len(ptr) - 1), out=ptr[1:])
    return party, ptr, tasks[np.argsort(number, kind="stable")]


def _successors(graph: JobGraph) -> Successors:
    source = graph.pred
    order = np.argsort(source, kind="stable")
    ptr = np.zeros(len(graph) + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=len(graph)), out=ptr[1:])
    count = np.diff(graph.pred_ptr)
    target = np.repeat(np.arange(len(graph)), count)
    from_start, delay = counts_from_start(graph), graph.edge_delay_ns
    return Successors(ptr, target[order], from_start[order], delay[order], count.astype(np.int64))


def _nothing_runs(graph: JobGraph, shares: Shares) -> State:
    return new_state(len(graph), int(shares.device.max(initial=-1)) + 1, len(shares.party_ptr) - 1)


def _events(timeline: Timeline, shares: Shares) -> tuple[I64, I64, np.ndarray]:
    """Arrivals, begins and ends on a timeline in order of time.

    A COMM task's begin is its end less its duration: on measured timelines it began to move data
    with the last arrival, or later.
    """
    graph = timeline.graph
    arrives = np.flatnonzero(shares.role == ARRIVES)
    runs = np.flatnonzero(np.isin(shares.role, (COMPUTES, MOVES)))
    end = timeline.end_ns[runs]
    task = np.concatenate([arrives, runs, runs])
    time = np.concatenate([timeline.start_ns[arrives], end - graph.dur_ns[runs], end])
    what = np.repeat(
        np.array([ARRIVED, BEGUN, ENDED], np.int8), [len(arrives), len(runs), len(runs)]
    )
    order = np.lexsort((task, what, time))
    return time[order], task[order], what[order]
