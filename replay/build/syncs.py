"""What each blocking host call waits for.

A device synchronisation waits for the last work launched before it on every stream; a blocking
copy for itself; a stream synchronisation for its stream: the recorded one, else that of a copy
just before it, else the thread's current stream; an event synchronisation for the work before its
event. Whether a call really had to wait is the replay's to say. A wait that ends before what it
is said to wait for is dropped and counted.
"""

from __future__ import annotations

import re

import numpy as np

from foretrace.replay.build.calls import MAX_DRIFT, RETURN_TOLERANCE_NS, Calls
from foretrace.replay.build.columns import KIND, RankEvents
from foretrace.replay.build.launches import BEFORE, Launches, join_key, near, stream_key
from foretrace.replay.build.named import matching
from foretrace.replay.build.rules import Rule
from foretrace.replay.graph import I64

DEVICE_SYNC = re.compile(r"(Device|Ctx)Synchronize")
EVENT_SYNC = re.compile(r"EventSynchronize|EventQuery|StreamQuery")

RECENT_COPY_NS = 100_000
"""A stream synchronisation this soon after a copy on its thread waits for the copy's stream."""

Rows = tuple[I64, I64]


def blocking_calls(
    events: RankEvents, calls: Calls, launched: Launches, call_of: I64, names: tuple[str, ...]
) -> dict[Rule, Rows]:
    """``(device row, blocking call row)`` pairs of one rank, by the rule that found them."""
    own = _own_work(events, call_of)
    rows = calls.row[calls.blocks]
    # A wait for communication that a host thread carries out is paired elsewhere.
    rows = rows[events.kind[rows] == KIND["runtime"]]
    copies = rows[own[rows] >= 0]
    rest = rows[own[rows] < 0]
    whole = device_syncs(events, rest, names)
    by_event = matching(EVENT_SYNC, names)[events.name[rest]]
    recorded = recorded_event(events, call_of, rest)[0] != -1
    stream = rest[~whole & ~by_event]
    told = _recorded_stream(events, call_of, stream) != -1
    memory = calls.row[(calls.cost >= 0) & ~calls.launches]
    return {
        Rule.OWN_COPY: (own[copies], copies),
        Rule.DEVICE_SYNC: wait_for_all(launched, events, rest[whole]),
        Rule.RECORDED_SYNC: _joined(
            _event_syncs(events, launched, call_of, rest[by_event & recorded]),
            _stream_syncs(events, launched, call_of, stream[told]),
        ),
        Rule.LAST_ENDED_SYNC: _event_syncs(events, launched, call_of, rest[by_event & ~recorded]),
        Rule.CURRENT_STREAM_SYNC: _stream_syncs(events, launched, call_of, stream[~told]),
        Rule.MEMORY_CALL: wait_for_all(launched, events, memory),
    }


def _joined(*pairs: Rows) -> Rows:
    source, target = (np.concatenate([p[i] for p in pairs]) for i in range(2))
    return source, target


def held_waits(events: RankEvents, rows: Rows) -> tuple[Rows, int]:
    """Pairs whose call returned after its source had ended, and how many did not."""
    source, target = rows
    drift = (MAX_DRIFT * (events.end[source] - events.start[source])).astype(np.int64)
    ok = events.end[source] <= events.end[target] + HELD_TOLERANCE_NS + drift
    return (source[ok], target[ok]), int((~ok).sum())


HELD_TOLERANCE_NS = 100_000
"""A call that returned this much before its source had ended did not wait for it."""


def device_syncs(events: RankEvents, rows: I64, names: tuple[str, ...]) -> np.ndarray:
    """Which runtime rows wait for everything on the device."""
    return matching(DEVICE_SYNC, names)[events.name[rows]]


def _own_work(events: RankEvents, call_of: I64) -> I64:
    """The first device row that each runtime row caused, -1 for none; shape ``(rows,)``."""
    result = np.full(len(events.kind), -1, np.int64)
    rows = np.flatnonzero(events.is_device_work & (call_of >= 0))[::-1]
    result[call_of[rows]] = rows
    return result


def wait_for_all(launched: Launches, events: RankEvents, rows: I64) -> Rows:
    """Each call waits for the last work launched before it on every stream of a device."""
    launched = launched.keep(events.device[launched.row] >= 0)
    streams = np.unique(launched.stream)
    wanted = np.repeat(streams, len(rows))
    target = np.tile(rows, len(streams))
    return near(launched, launched.stream, wanted, events.start[target], BEFORE), target


def _event_syncs(events: RankEvents, launched: Launches, call_of: I64, rows: I64) -> Rows:
    """By the recorded event; else the last work of the current stream that the call outlasted."""
    stream, since = recorded_event(events, call_of, rows)
    source = near(launched, launched.stream, stream, since, BEFORE)
    unknown = np.flatnonzero(stream == -1)
    current = current_stream(events, launched, rows[unknown])
    done = np.argsort(events.end[launched.row], kind="stable")
    ended = Launches(
        launched.row[done], events.end[launched.row[done]], launched.stream[done],
        launched.thread[done],
    )  # fmt: skip
    until = events.end[rows[unknown]] + RETURN_TOLERANCE_NS
    by_end = near(ended, ended.stream, current, until, BEFORE)
    by_launch = near(launched, launched.stream, current, events.start[rows[unknown]], BEFORE)
    earlier = events.start[by_end] <= events.start[by_launch]
    source[unknown] = np.where(earlier, by_end, by_launch)
    # A thread that never launched a kernel waits for what others did, whatever their stream.
    nowhere = unknown[current == -1]
    everywhere = np.zeros(len(ended.row), np.int64)
    until = events.end[rows[nowhere]] + RETURN_TOLERANCE_NS
    source[nowhere] = near(ended, everywhere, np.zeros_like(nowhere), until, BEFORE)
    return source, rows


def _stream_syncs(events: RankEvents, launched: Launches, call_of: I64, rows: I64) -> Rows:
    stream = _recorded_stream(events, call_of, rows)
    thread, at = events.thread[rows], events.start[rows]
    last = near(launched, launched.thread, thread, at, BEFORE)
    recent = at - events.end[call_of[last]] < RECENT_COPY_NS
    copied = (last >= 0) & (events.kind[last] == KIND["memcpy"]) & recent
    inferred = np.where(copied, stream_key(events, last), current_stream(events, launched, rows))
    stream = np.where(stream == -1, inferred, stream)
    return near(launched, launched.stream, stream, at, BEFORE), rows


def current_stream(events: RankEvents, launched: Launches, rows: I64) -> I64:
    """Key of the stream that each call's thread computes on: that of its last kernel, -1."""
    kernels = launched.keep(events.kind[launched.row] == KIND["kernel"])
    last = near(kernels, kernels.thread, events.thread[rows], events.start[rows], BEFORE)
    return stream_key(events, last)


def _recorded_stream(events: RankEvents, call_of: I64, rows: I64) -> I64:
    """Stream key of each runtime row from its own synchronisation row, -1 without one."""
    sync = np.flatnonzero((events.kind == KIND["sync"]) & (call_of >= 0))
    result = np.full(len(events.kind), -1, np.int64)
    result[call_of[sync]] = join_key(events.device[sync], events.stream[sync])
    return result[rows]


def recorded_event(events: RankEvents, call_of: I64, rows: I64) -> Rows:
    """The event that each waiting runtime row names in its synchronisation row.

    Returns:
        ``(stream key, instant)``: the awaited event stands behind what had been launched on that
        stream by that instant: the record call's begin, or the waiting call's own where the
        record call is unknown. Key -1 where nothing is recorded.
    """
    sync = np.flatnonzero((events.kind == KIND["sync"]) & (call_of >= 0))
    of_call = np.full(len(events.kind), -1, np.int64)
    of_call[call_of[sync]] = sync
    own = of_call[rows]
    stream = np.where(own >= 0, join_key(events.device[own], events.wait_stream[own]), -1)
    correlation = np.where(own >= 0, events.wait_correlation[own], -1)
    record = _call_with(events, correlation)
    since = np.where(record >= 0, events.start[record], events.start[rows])
    # An event whose record call is named but not there was recorded before the window.
    return np.where((correlation > 0) & (record < 0), -1, stream), since


def _call_with(events: RankEvents, correlation: I64) -> I64:
    """Runtime row with each correlation, -1 without one."""
    result = np.full(len(correlation), -1, np.int64)
    asked = np.flatnonzero(correlation > 0)
    if not len(asked):
        return result
    runtime = np.flatnonzero((events.kind == KIND["runtime"]) & (events.correlation > 0))
    if not len(runtime):
        return result
    order = runtime[np.argsort(events.correlation[runtime], kind="stable")]
    keys = events.correlation[order]
    at = np.minimum(np.searchsorted(keys, correlation[asked]), len(keys) - 1)
    result[asked] = np.where(keys[at] == correlation[asked], order[at], -1)
    return result
