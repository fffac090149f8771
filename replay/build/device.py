"""Tasks of device streams: kernels, copies and fills in stream order behind their launches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from foretrace.replay.build.calls import MAX_DRIFT, is_message
from foretrace.replay.build.columns import KIND, RankEvents
from foretrace.replay.build.context import Context
from foretrace.replay.build.host import HostTasks
from foretrace.replay.build.launches import stream_order
from foretrace.replay.build.parts import GraphParts
from foretrace.replay.graph import I64, EdgeKind, TaskKind

TASK_OF_EVENT = {
    KIND["kernel"]: TaskKind.KERNEL,
    KIND["memcpy"]: TaskKind.MEMCPY,
    KIND["memset"]: TaskKind.MEMSET,
}


@dataclass(frozen=True, slots=True)
class DeviceTasks:
    """Where the device tasks of one rank are; arrays indexed by event row, -1 for none.

    Attributes:
        begin: task that the row's predecessors must allow (ARRIVE of a communication kernel).
        finish: task whose end is the row's end (COMM of a communication kernel).
        queue: rows of device work sorted by (device, stream, start).
    """

    begin: I64
    finish: I64
    queue: I64


def add_device_tasks(
    parts: GraphParts,
    events: RankEvents,
    call_of: I64,
    host: HostTasks,
    exec_ns: I64,
    context: Context,
) -> DeviceTasks:
    """Add the tasks of one rank's streams, their stream order and their launches.

    Args:
        parts: the graph under construction.
        events: the rank's events.
        call_of: runtime row of each device row, -1 without one.
        host: the rank's host tasks.
        exec_ns: for communication rows their execution without waiting, -1 for other rows;
            shape ``(rows,)``.
        context: what all ranks share.
    """
    rows = stream_order(events)
    key = np.cumsum(_new_stream(events, rows)) - 1
    heads = rows[_heads(key)]
    streams = zip(events.device[heads].tolist(), events.stream[heads].tolist(), strict=True)
    lane = np.array([parts.lane(events.rank, *s) for s in streams] or [0], np.int32)[key]
    comm = exec_ns[rows] >= 0
    kinds = np.array([TASK_OF_EVENT.get(k, 0) for k in range(256)], np.int8)[events.kind[rows]]
    start, end = events.start[rows], events.end[rows]
    shared: dict[str, np.ndarray | int] = {
        "rank": events.rank,
        "lane": lane,
        "name": events.name[rows],
        "event": rows,
        "step": events.step[rows],
    }
    begin = parts.add_tasks(
        np.where(comm, np.int8(TaskKind.ARRIVE), kinds), np.where(comm, 0, end - start), start,
        np.where(comm, start, end), **shared,
    )  # fmt: skip
    some = {k: (v[comm] if isinstance(v, np.ndarray) else v) for k, v in shared.items()}
    work = exec_ns[rows][comm]
    finish = begin.copy()
    finish[comm] = parts.add_tasks(TaskKind.COMM, work, end[comm] - work, end[comm], **some)
    # Whether it also waits for others is for the rendezvous to say.
    parts.add_edges(begin[comm], finish[comm], EdgeKind.RENDEZVOUS)
    _add_stream_order(parts, events, rows, key, (begin, finish))
    call = call_of[rows]
    launch = np.where(call >= 0, host.issue[call], -1)
    # A message of a host thread is posted by its call; everything else is queued and picked up.
    message = is_message(events, rows)
    parts.add_edges(launch[~message], begin[~message], EdgeKind.LAUNCH)
    parts.add_edges(host.posted[call[message]], begin[message], EdgeKind.POST)
    # Work whose launch lies before the window: the head of its stream enters when it did.
    orphan = (launch < 0) & _heads(key)
    skew = parts.add_tasks(
        TaskKind.SKEW, np.maximum(start[orphan] - context.origin_ns, 0),
        np.full(int(orphan.sum()), context.origin_ns), start[orphan], rank=events.rank,
        lane=lane[orphan], name=context.skew_name,
    )  # fmt: skip
    parts.add_edges(skew, begin[orphan], EdgeKind.WINDOW)
    return DeviceTasks(_by_row(events, rows, begin), _by_row(events, rows, finish), rows)


def add_device_marks(
    parts: GraphParts, events: RankEvents, device: DeviceTasks, context: Context
) -> tuple[I64, I64]:
    """Step marks of a rank without host rows: its first work begins the step, its last ends it."""
    rows = device.queue
    begin_ns, end_ns = events.start[rows].min(), events.end[rows].max()
    lane = parts.lane(events.rank, int(events.device[rows[0]]), int(events.stream[rows[0]]))
    shared = {"rank": events.rank, "lane": lane}
    late = np.array([begin_ns - context.origin_ns])
    origin = np.array([context.origin_ns])
    skew = parts.add_tasks(TaskKind.SKEW, late, origin, late + origin, **shared)
    none = np.zeros(1, np.int64)
    begin = parts.add_tasks(TaskKind.MARK, none, none + begin_ns, none + begin_ns, **shared)
    end = parts.add_tasks(TaskKind.MARK, none, none + end_ns, none + end_ns, **shared)
    parts.add_edges(skew, begin, EdgeKind.WINDOW)
    last = device.finish[rows]
    parts.add_edges(last, np.broadcast_to(end, last.shape), EdgeKind.MARK)
    return begin, end


def _add_stream_order(
    parts: GraphParts, events: RankEvents, rows: I64, key: I64, tasks: tuple[I64, I64]
) -> None:
    """Order on each stream, also where kernels overlap (programmatic dependent launch).

    A row follows its neighbour and the row that ends last before it. What still ran when the row
    began constrains only with its own begin.
    """
    begin, finish = tasks
    start, end = events.start[rows], events.end[rows]
    neighbour = np.where(_heads(key), -1, np.arange(len(rows)) - 1)
    latest = _latest_ending(end, key)
    latest = np.where((latest == neighbour) | (neighbour < 0), -1, latest)
    # Rows recorded in whole microseconds may seem to overlap by a tick or two.
    tolerance = 2 * int(np.gcd.reduce(start)) if len(start) else 0
    overlaps = 0
    for earlier in (neighbour, latest):
        target = np.flatnonzero(earlier >= 0)
        source = earlier[target]
        drift = (MAX_DRIFT * (end[source] - start[source])).astype(np.int64)
        ended = end[source] <= start[target] + drift + min(tolerance, MAX_TOLERANCE_NS)
        parts.add_edges(finish[source[ended]], begin[target[ended]], EdgeKind.STREAM)
        running = ~ended
        parts.add_edges(begin[source[running]], begin[target[running]], EdgeKind.OVERLAP)
        overlaps += int(running.sum())
    parts.count_dropped("same-stream overlap: end of one before begin of the next", overlaps)


MAX_TOLERANCE_NS = 2_000


def _new_stream(events: RankEvents, rows: I64) -> np.ndarray:
    """Where another stream begins among rows in stream order, shape ``(rows,)``."""
    device, stream = events.device[rows], events.stream[rows]
    new = np.ones(len(rows), bool)
    new[1:] = (device[1:] != device[:-1]) | (stream[1:] != stream[:-1])
    return new


def _heads(key: I64) -> np.ndarray:
    """The first row of each stream, shape ``(rows,)``."""
    first = np.ones(len(key), bool)
    first[1:] = key[1:] != key[:-1]
    return first


def _latest_ending(end: I64, key: I64) -> I64:
    """For each row the earlier row of its stream that ends last, -1 for the first."""
    result = np.full(len(end), -1, np.int64)
    bounds = np.append(np.flatnonzero(_heads(key)), len(end))
    for lo, hi in pairwise(bounds):
        highest = np.maximum.accumulate(end[lo:hi])
        is_new = np.ones(hi - lo, bool)
        is_new[1:] = highest[1:] > highest[:-1]
        leader = np.maximum.accumulate(np.where(is_new, np.arange(hi - lo), 0))
        result[lo + 1 : hi] = lo + leader[:-1]
    return result


def _by_row(events: RankEvents, rows: I64, task: I64) -> I64:
    """Task numbers spread over all event rows."""
    result = np.full(len(events.kind), -1, np.int64)
    result[rows] = task
    return result
