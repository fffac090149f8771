"""Streams that wait for each other: as the trace spells it out, or by the pattern of NCCL.

What the recorded order contradicts is dropped and counted, never kept with a negative delay.
"""

from __future__ import annotations

import re

import numpy as np

from foretrace.replay.build.buckets import stray_waits
from foretrace.replay.build.calls import MAX_DRIFT, RETURN_TOLERANCE_NS
from foretrace.replay.build.columns import KIND, NETWORK, RankCollectives, RankEvents
from foretrace.replay.build.launches import (
    AFTER,
    BEFORE,
    Launches,
    join_key,
    near,
    stream_key,
)
from foretrace.replay.build.named import matching
from foretrace.replay.build.rules import Rule
from foretrace.replay.build.syncs import Rows, current_stream, recorded_event
from foretrace.replay.graph import I64

EVENT_RECORD = re.compile(r"EventRecord")

CLOSE_NS = 10_000
"""A start this soon after another stream's work has ended is taken to have waited for it."""

LATE_NS = 50_000
"""A start this long after its launch and its stream's previous work had some other reason."""


def collective_waits(
    events: RankEvents, collectives: RankCollectives, launched: Launches, call_of: I64
) -> dict[Rule, Rows]:
    """The pattern of NCCL process groups.

    Before a launch the communication stream waits for the launching thread's current stream,
    whoever filled it; after the collective its wait call makes the waiting thread's current
    stream wait for it, whoever launches the next work there.

    Returns:
        ``(producer row, collective row)`` and ``(collective row, consumer row)`` pairs by rule.
    """
    is_comm = np.zeros(len(events.kind), bool)
    by_group = (collectives.work >= 0) & ~collectives.weak
    is_comm[collectives.work[by_group]] = True
    other = launched.keep(~is_comm[launched.row])
    on_device = by_group & (events.device[collectives.work] != NETWORK)
    work = collectives.work[on_device & (call_of[collectives.work] >= 0)]
    launch = call_of[work]
    stream = current_stream(events, other, launch)
    producer = near(other, other.stream, stream, events.start[launch], BEFORE)
    waited = on_device & (collectives.wait >= 0)
    wait = collectives.wait[waited]
    stream = current_stream(events, other, wait)
    consumer = near(other, other.stream, stream, events.start[wait], AFTER)
    by_thread = near(other, other.thread, events.thread[wait], events.start[wait], AFTER)
    consumer = np.where(stream == -1, by_thread, consumer)
    return {
        Rule.BEFORE_COLLECTIVE: (producer, work),
        Rule.AFTER_COLLECTIVE: (collectives.work[waited], consumer),
    }


def recorded_stream_waits(events: RankEvents, launched: Launches, call_of: I64) -> Rows:
    """Stream waits of the trace's synchronisation rows.

    The source is the last work launched on the awaited stream before its event was recorded, the
    target the next work launched on the waiting stream after the wait call.
    """
    rows = np.flatnonzero(
        (events.kind == KIND["sync"]) & (call_of >= 0) & (events.wait_stream >= 0)
    )
    waiting = join_key(events.device[rows], events.stream[rows])
    rows, waiting = rows[waiting != -1], waiting[waiting != -1]
    call = call_of[rows]
    awaited, since = recorded_event(events, call_of, call)
    source = near(launched, launched.stream, awaited, since, BEFORE)
    target = near(launched, launched.stream, waiting, events.start[call], AFTER)
    return source, target


def inferred_stream_waits(
    events: RankEvents,
    collectives: RankCollectives,
    launched: Launches,
    call_of: I64,
    names: tuple[str, ...],
) -> dict[Rule, Rows]:
    """Stream waits of ordinary code, where no synchronisation row says what they wait for.

    The next work that the waiting thread launches waits for the work before the thread's last
    event record. Where records are not traced, work that began late for no other reason waits for
    the work of another stream that ended just before it began, if there is one.

    Returns:
        ``(source row, target row)`` pairs by rule.
    """
    wait = stray_waits(events, collectives, names)
    has_row = np.zeros(len(events.kind), bool)
    sync = np.flatnonzero((events.kind == KIND["sync"]) & (call_of >= 0))
    has_row[call_of[sync]] = True
    wait = wait[~has_row[wait]]
    thread, at = events.thread[wait], events.start[wait]
    target = near(launched, launched.thread, thread, at, AFTER)
    record = _last_record(events, names, wait)
    since = np.where(record >= 0, events.start[record], at)
    source = near(launched, launched.thread, np.where(record >= 0, thread, -1), since, BEFORE)
    unknown = (record < 0) & _began_late(events, launched, target)
    source[unknown] = _ended_just_before(events, launched, target[unknown], at[unknown])
    other = stream_key(events, source) != stream_key(events, target)
    known = record >= 0
    return {
        Rule.RECORD_THEN_WAIT: (source[other & known], target[other & known]),
        Rule.ENDED_JUST_BEFORE: (source[other & ~known], target[other & ~known]),
    }


def _began_late(events: RankEvents, launched: Launches, target: I64) -> np.ndarray:
    """Which work began later than its launch and its own stream explain."""
    launch = np.full(len(events.kind), np.iinfo(np.int64).max)
    launch[launched.row] = launched.at
    before = near(launched, launched.stream, stream_key(events, target), launch[target], BEFORE)
    previous = np.where(before >= 0, events.end[before], launch[target])
    late: np.ndarray = events.start[target] - np.maximum(launch[target], previous) > LATE_NS
    late &= target >= 0
    return late


def _last_record(events: RankEvents, names: tuple[str, ...], wait: I64) -> I64:
    """The event record call that each wait's thread made last before it, -1 for none."""
    named = matching(EVENT_RECORD, names)[events.name]
    rows = np.flatnonzero(named & (events.kind == KIND["runtime"]))
    calls = Launches(rows, events.start[rows], rows, events.thread[rows])
    return near(calls, calls.thread, events.thread[wait], events.start[wait], BEFORE)


def _ended_just_before(events: RankEvents, launched: Launches, target: I64, at: I64) -> I64:
    """The work of another stream, launched before the wait, that ended last before each target."""
    best = np.full(len(target), -1, np.int64)
    begin = events.start[target]
    latest = begin - CLOSE_NS
    for stream in np.unique(launched.stream):
        wanted = np.where(stream_key(events, target) == stream, -1, stream)
        last = near(launched, launched.stream, wanted, at, BEFORE)
        end = np.where(last >= 0, events.end[last], np.iinfo(np.int64).min)
        better = (end >= latest) & (end <= begin + RETURN_TOLERANCE_NS)
        best[better], latest[better] = last[better], end[better]
    return best


def uncontradicted(events: RankEvents, rows: Rows) -> tuple[Rows, int]:
    """Pairs that the recorded times allow, and how many they do not."""
    source, target = rows
    real = (source >= 0) & (target >= 0) & (source != target)
    source, target = source[real], target[real]
    drift = (MAX_DRIFT * (events.end[source] - events.start[source])).astype(np.int64)
    ok = events.end[source] <= events.start[target] + RETURN_TOLERANCE_NS + drift
    return (source[ok], target[ok]), int((~ok).sum())
