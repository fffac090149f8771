"""Waits between device and host and between streams, one rule per function.

Each rule returns rows: the source's and the target's event row. What the recorded order
contradicts is dropped and counted, never kept with a negative delay.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from foretrace.replay.build.calls import RETURN_TOLERANCE_NS, Calls
from foretrace.replay.build.columns import KIND, NETWORK, RankCollectives, RankEvents
from foretrace.replay.build.device import DeviceTasks
from foretrace.replay.graph import I64

DEVICE_SYNC = re.compile(r"(Device|Ctx)Synchronize")
STREAM_WAIT = re.compile(r"StreamWaitEvent")
RECENT_COPY_NS = 100_000
"""A stream synchronisation this soon after a copy on its thread waits for the copy's stream."""

Rows = tuple[I64, I64]


def blocking_calls(
    events: RankEvents,
    calls: Calls,
    device: DeviceTasks,
    call_of: I64,
    network: Rows,
    names: tuple[str, ...],
) -> Rows:
    """Device work that each blocking call waits for.

    A device synchronisation waits for the last work launched before it on every stream; a
    blocking copy for itself; a stream synchronisation for its stream: the recorded one, else that
    of a copy just before it, else the thread's current stream. No measured end is looked at:
    whether the call really had to wait is the replay's to say. A wait for communication that a
    host thread carries out waits for that operation.
    """
    sources, targets = [network[0]], [network[1]]
    recorded = _recorded_streams(events, call_of)
    own_copy = _first_device_row(events, call_of)
    tails = _StreamTails(events, device)
    for row in calls.row[calls.blocks & ~np.isin(calls.row, network[1])]:
        if own_copy[row] >= 0:
            found = own_copy[row : row + 1]
        else:
            found = tails.before(events.start[row])
            if not DEVICE_SYNC.search(names[events.name[row]]):
                stream = _synchronised_stream(events, int(row), recorded, calls, own_copy)
                found = found[events.stream[found] == stream]
        sources.append(found)
        targets.append(np.full(len(found), row))
    return np.concatenate(sources), np.concatenate(targets)


class _StreamTails:
    """For an instant of the host: the last work that had been launched on each stream."""

    def __init__(self, events: RankEvents, device: DeviceTasks) -> None:
        rows, key = device.queue, device.queue_key
        self.first = np.searchsorted(key, np.arange(key[-1] + 2)) if len(key) else np.zeros(1, int)
        self.rows = rows
        at = device.launched_at[rows]
        self.launched = at
        for s in range(len(self.first) - 1):
            part = slice(self.first[s], self.first[s + 1])
            self.launched[part] = np.maximum.accumulate(at[part])

    def before(self, instant_ns: int) -> I64:
        """Event rows, one per stream that has any."""
        found = []
        for s in range(len(self.first) - 1):
            lo, hi = self.first[s], self.first[s + 1]
            at = lo + np.searchsorted(self.launched[lo:hi], instant_ns, side="right") - 1
            if at >= lo:
                found.append(self.rows[at])
        return np.array(found, np.int64)


def _recorded_streams(events: RankEvents, call_of: I64) -> dict[int, int]:
    """Runtime row -> stream, from the trace's own synchronisation rows."""
    rows = np.flatnonzero((events.kind == KIND["sync"]) & (call_of >= 0) & (events.stream >= 0))
    return {int(call_of[r]): int(events.stream[r]) for r in rows}


def _first_device_row(events: RankEvents, call_of: I64) -> I64:
    """The device row that each runtime row caused, -1 for none."""
    result = np.full(len(events.kind), -1, np.int64)
    rows = np.flatnonzero(events.is_device_work & (call_of >= 0))[::-1]
    result[call_of[rows]] = rows
    return result


def _synchronised_stream(
    events: RankEvents, row: int, recorded: dict[int, int], calls: Calls, own_copy: I64
) -> int:
    """The stream a stream synchronisation waits for, -1 where nothing was launched before."""
    if row in recorded:
        return recorded[row]
    before = calls.row[: np.searchsorted(calls.row, row)]
    before = before[(events.thread[before] == events.thread[row]) & (own_copy[before] >= 0)]
    if not len(before):
        return -1
    last = own_copy[before[-1]]
    if events.kind[last] == KIND["memcpy"] and _just_before(events, before[-1], row):
        return int(events.stream[last])
    computing = own_copy[before][events.kind[own_copy[before]] == KIND["kernel"]]
    return int(events.stream[computing[-1] if len(computing) else last])


def _just_before(events: RankEvents, copy_call: int, row: int) -> bool:
    """Whether a copy was issued right before a synchronisation on the same thread."""
    return bool(events.start[row] - events.end[copy_call] < RECENT_COPY_NS)


def with_bucket_waits(
    events: RankEvents, collectives: RankCollectives, call_of: I64, names: tuple[str, ...]
) -> RankCollectives:
    """Find the waits that DistributedDataParallel leaves no record of.

    When the last gradient bucket has been launched, the reducer makes the current stream wait
    for each bucket in the order of their launches, then uses it: stream waits on the launching
    thread that belong to no other call, as many as there are buckets nobody waited for yet.
    """
    pending = np.flatnonzero(
        (collectives.work >= 0) & (collectives.wait < 0) & (call_of[collectives.work] >= 0)
    )
    pending = pending[events.device[collectives.work[pending]] != NETWORK]
    stray = _stray_waits(events, collectives, names)
    if not len(pending) or not len(stray):
        return collectives
    launch = call_of[collectives.work[pending]]
    wait = collectives.wait.copy()
    for thread in np.unique(events.thread[launch]):
        mine = pending[events.thread[launch] == thread]
        at = events.start[call_of[collectives.work[mine]]]
        own = stray[events.thread[stray] == thread]
        # A run of launches ends where a stray wait follows; its waits end at the next launch.
        run = np.searchsorted(events.start[own], at)
        for first in np.unique(run):
            members = mine[run == first]
            until = np.searchsorted(events.start[own], at[run > first].min(initial=1 << 62))
            waits = own[first:until][: len(members)]
            wait[members[: len(waits)]] = waits
    return replace(collectives, wait=wait)


def _stray_waits(events: RankEvents, collectives: RankCollectives, names: tuple[str, ...]) -> I64:
    """Stream waits outside of the calls that issue or await a communication operation."""
    stream_wait = [n for n in np.unique(events.name) if STREAM_WAIT.search(names[n])]
    rows = np.flatnonzero((events.kind == KIND["runtime"]) & np.isin(events.name, stream_wait))
    known = np.concatenate([collectives.call, collectives.wait])
    known = known[known >= 0]
    inside = np.zeros(len(rows), bool)
    for thread in np.unique(events.thread[known]):
        spans = known[events.thread[known] == thread]
        spans = spans[np.argsort(events.start[spans])]
        at = np.searchsorted(events.start[spans], events.start[rows], side="right") - 1
        within = (at >= 0) & (events.end[spans[at]] >= events.end[rows])
        inside |= within & (events.thread[rows] == thread)
    return rows[~inside]


def collective_waits(
    events: RankEvents,
    collectives: RankCollectives,
    device: DeviceTasks,
    call_of: I64,
) -> tuple[Rows, Rows]:
    """The pattern of NCCL process groups, where streams wait for each other.

    Before a launch the communication stream waits for the launching thread's current stream,
    whoever filled it; after the collective its wait call makes the current stream wait for it.
    A thread's current stream is that of its last computation launched before.

    Returns:
        ``(producer row, collective row)`` and ``(collective row, consumer row)`` pairs.
    """
    is_comm = np.zeros(len(events.kind), bool)
    is_comm[collectives.work[collectives.work >= 0]] = True
    rows = device.queue[(call_of[device.queue] >= 0) & ~is_comm[device.queue]]
    rows = rows[np.argsort(device.launched_at[rows], kind="stable")]
    on_device = (collectives.work >= 0) & (events.device[collectives.work] != NETWORK)
    known = on_device & (call_of[collectives.work] >= 0)
    work = collectives.work[known]
    launch = call_of[work]
    at = events.start[launch]
    thread = events.thread[call_of[rows]]
    current = _near(device, rows, thread, events.thread[launch], at, -1)
    producer = _near(device, rows, _stream_key(events, rows), _stream_key(events, current), at, -1)
    waited = on_device & (collectives.wait >= 0)
    wait = collectives.wait[waited]
    consumer = _near(device, rows, thread, events.thread[wait], events.start[wait], 0)
    return (producer, work), (collectives.work[waited], consumer)


def _stream_key(events: RankEvents, rows: I64) -> I64:
    """One number per (device, stream); -1 for no row."""
    key = (events.device[rows].astype(np.int64) << 40) + events.stream[rows]
    return np.where(rows >= 0, key, -1)


def _near(device: DeviceTasks, rows: I64, key: I64, wanted: I64, at: I64, offset: int) -> I64:
    """The last (-1) or next (0) row with a key that was launched before or after an instant.

    Args:
        device: the rank's device tasks.
        rows: candidate rows, sorted by launch.
        key: key of each candidate.
        wanted: key asked for, shape ``(k,)``.
        at: instant, ns, shape ``(k,)``.
        offset: -1 for the last before, 0 for the next.
    """
    result = np.full(len(at), -1, np.int64)
    for k in np.unique(wanted):
        mine = rows[key == k]
        asked = wanted == k
        which = np.searchsorted(device.launched_at[mine], at[asked]) + offset
        ok = (which >= 0) & (which < len(mine))
        found = np.full(len(which), -1, np.int64)
        found[ok] = mine[which[ok]]
        result[asked] = found
    return result


def recorded_stream_waits(events: RankEvents, device: DeviceTasks, call_of: I64) -> Rows:
    """Stream waits that the trace's synchronisation rows spell out.

    The source is the last work launched on the waited-for stream before the event was recorded,
    the target the next work launched on the waiting stream after the wait call.
    """
    rows = np.flatnonzero(
        (events.kind == KIND["sync"]) & (events.wait_correlation > 0) & (call_of >= 0)
    )
    runtime = np.flatnonzero(events.kind == KIND["runtime"])
    order = runtime[np.argsort(events.correlation[runtime], kind="stable")]
    at = np.searchsorted(events.correlation[order], events.wait_correlation[rows])
    ok = at < len(order)
    ok[ok] = events.correlation[order[at[ok]]] == events.wait_correlation[rows[ok]]
    rows, record = rows[ok], order[at[ok]]
    source, target = [], []
    for row, rec in zip(rows, record, strict=True):
        source.append(
            _on_stream(events, device, int(events.wait_stream[row]), int(events.start[rec]), -1)
        )
        call = int(call_of[row])
        target.append(
            _on_stream(events, device, int(events.stream[row]), int(events.start[call]), 0)
        )
    return np.array(source, np.int64), np.array(target, np.int64)


def _on_stream(events: RankEvents, device: DeviceTasks, stream: int, at: int, offset: int) -> int:
    """The last (-1) or next (0) row launched on a stream before or after an instant, -1."""
    rows = device.queue[events.stream[device.queue] == stream]
    which = int(np.searchsorted(device.launched_at[rows], at)) + offset
    return int(rows[which]) if 0 <= which < len(rows) else -1


def uncontradicted(
    events: RankEvents, rows: Rows, source_end: I64, target_start: I64
) -> tuple[Rows, int]:
    """Pairs that the recorded times allow, and how many they do not."""
    source, target = rows
    real = (source >= 0) & (target >= 0)
    source, target = source[real], target[real]
    ok = source_end[source] <= target_start[target] + RETURN_TOLERANCE_NS
    return (source[ok], target[ok]), int((~ok).sum())
