"""The job graph: every task of every rank and what must end before it, as flat arrays.

The engine reads ``dur_ns`` and the edges only. ``measured_*`` columns are for comparison
after the replay; a test asserts that changing them changes no replayed time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class TaskKind(IntEnum):
    """What a task stands for."""

    HOST = 0  # work of a host thread between two device API calls
    CALL = 1  # a device API call's own cost on the host (launch, event record ...)
    SYNC = 2  # a blocking call: its own small constant only, never its waiting
    STALL = 3  # host time beyond the typical gap of its (previous, next) pair
    KERNEL = 4  # device computation
    MEMCPY = 5
    MEMSET = 6
    ARRIVE = 7  # a rank reaches a collective or p2p operation (duration 0)
    JOIN = 8  # the last member has arrived (duration 0, rank -1)
    COMM = 9  # execution of a collective or p2p operation on one rank, waiting excluded
    MARK = 10  # a step begins or ends on the host (duration 0)
    SKEW = 11  # initial condition: how late a lane enters the recorded window


DEVICE_KINDS = (TaskKind.KERNEL, TaskKind.MEMCPY, TaskKind.MEMSET, TaskKind.ARRIVE, TaskKind.COMM)


class EdgeKind(IntEnum):
    """Why one task waits for another."""

    HOST_ORDER = 0  # same host thread
    THREAD = 1  # one host thread waits for another
    LAUNCH = 2  # call -> device task; counts from the call's *start*
    STREAM = 3  # same device stream
    EVENT = 4  # event record -> stream wait
    SYNC = 5  # device task -> blocking host call
    RENDEZVOUS = 6  # arrival of a member -> execution of all
    PEER = 7  # p2p: arrival of the peer -> own execution
    MARK = 8  # last work -> end of a step
    WINDOW = 9  # initial condition: when a lane enters the recorded window
    OVERLAP = 10  # same stream, still running: counts from the earlier kernel's *start*
    POST = 11  # call -> message that a host thread sends or receives
    QUEUE = 12  # device task -> launch that had to wait for room in a full queue
    SEGMENT = 13  # longest path over tasks that were left out: counts from the start


@dataclass(frozen=True, slots=True)
class Lanes:
    """Host threads and device streams; arrays of shape ``(lanes,)``.

    Attributes:
        rank: rank of the lane.
        device: device index, -1 for a host thread, -2 for a host thread that carries out
            communication (gloo).
        number: stream number of a device lane, thread id of a host lane.
    """

    rank: I32
    device: I32
    number: I64


@dataclass(frozen=True, slots=True)
class Collectives:
    """One row per matched collective or p2p operation; arrays of shape ``(collectives,)``.

    Attributes:
        kind: index into ``traces.schema.COLLECTIVE_KINDS``.
        group: index into ``JobGraph.groups``.
        bytes: largest ``max(bytes_in, bytes_out)`` of its members, -1 unknown.
        confidence: 0 to 1, how sure the match across ranks is.
    """

    kind: I8
    group: I32
    bytes: I64
    confidence: F32


@dataclass(frozen=True, slots=True)
class StepMarks:
    """Host marks of each rank's steps; arrays of shape ``(marks,)``.

    Attributes:
        step: step number.
        rank: rank.
        begin: task (MARK) at which the step begins on the rank.
        end: task (MARK) at which it ends.
    """

    step: I32
    rank: I32
    begin: I64
    end: I64


@dataclass(frozen=True, slots=True)
class JobGraph:
    """All tasks (n) and edges (m) of a job. Edges are CSR by *target* task.

    Attributes:
        rank: rank of each task, -1 for JOIN. Shape ``(n,)``.
        lane: index into ``lanes``, -1 for JOIN.
        kind: TaskKind.
        dur_ns: duration without any waiting.
        name: index into ``names``.
        event: row of the rank's events table, -1 for tasks without one.
        collective: index into ``collectives`` for ARRIVE, JOIN and COMM, else -1.
        step: step the task counts to, -1 outside of any.
        measured_start_ns: measured start on the aligned clock (ARRIVE: kernel start;
            COMM: last arrival), for comparison only.
        measured_end_ns: measured end on the aligned clock, for comparison only.
        pred_ptr: shape ``(n + 1,)``; predecessors of task i are
            ``pred[pred_ptr[i]:pred_ptr[i + 1]]``.
        pred: source task of each edge. Shape ``(m,)``.
        edge_kind: EdgeKind of each edge.
        edge_delay_ns: constant added after the predecessor's end (LAUNCH: after its start).
        names: text of ``name``.
        lanes: host threads and device streams.
        collectives: matched communication operations.
        groups: global ranks of each group.
        steps: host marks.
    """

    rank: I32
    lane: I32
    kind: I8
    dur_ns: I64
    name: I32
    event: I64
    collective: I32
    step: I32
    measured_start_ns: I64
    measured_end_ns: I64
    pred_ptr: I64
    pred: I64
    edge_kind: I8
    edge_delay_ns: I64
    names: tuple[str, ...]
    lanes: Lanes
    collectives: Collectives
    groups: tuple[tuple[int, ...], ...]
    steps: StepMarks

    def __len__(self) -> int:
        return len(self.dur_ns)

    def with_durations(self, dur_ns: I64) -> JobGraph:
        """The same graph with other durations, shape ``(n,)``, ns."""
        return replace(self, dur_ns=np.ascontiguousarray(dur_ns, dtype=np.int64))


TASK_COLUMNS = (
    "rank", "lane", "kind", "dur_ns", "name", "event", "collective", "step",
    "measured_start_ns", "measured_end_ns",
)  # fmt: skip
"""Columns of a job graph that hold one value a task."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each task runs; measured, replayed and what-if runs all look like this.

    Attributes:
        graph: the job graph.
        start_ns: shape ``(n,)``.
        end_ns: shape ``(n,)``.
        bound: the edge (index into ``graph.pred``) that bound each task's start, -1 for none.
        label: "measured", "replayed" or a scenario's name.
    """

    graph: JobGraph
    start_ns: I64
    end_ns: I64
    bound: I64
    label: str
