"""Streams that wait for each other: as the trace spells it out, or by the pattern of NCCL.

What the recorded order contradicts is dropped and counted, never kept with a negative delay.
"""

from __future__ import annotations

import numpy as np

from foretrace.replay.build.calls import MAX_DRIFT, RETURN_TOLERANCE_NS
from foretrace.replay.build.columns import KIND, NETWORK, RankCollectives, RankEvents
from foretrace.replay.build.launches import AFTER, BEFORE, Launches, join_key, near
from foretrace.replay.build.syncs import Rows, current_stream, recorded_event
from foretrace.replay.graph import I64


def collective_waits(
    events: RankEvents, collectives: RankCollectives, launched: Launches, call_of: I64
) -> tuple[Rows, Rows]:
    """The pattern of NCCL process groups.

    Before a launch the communication stream waits for the launching thread's current stream,
    whoever filled it; after the collective its wait call makes the waiting thread's current
    stream wait for it, whoever launches the next work there.

    Returns:
        ``(producer row, collective row)`` and ``(collective row, consumer row)`` pairs.
    """
    is_comm = np.zeros(len(events.kind), bool)
    is_comm[collectives.work[collectives.work >= 0]] = True
    other = launched.keep(~is_comm[launched.row])
    on_device = (collectives.work >= 0) & (events.device[collectives.work] != NETWORK)
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
    return (producer, work), (collectives.work[waited], consumer)


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


def uncontradicted(events: RankEvents, rows: Rows) -> tuple[Rows, int]:
    """Pairs that the recorded times allow, and how many they do not."""
    source, target = rows
    real = (source >= 0) & (target >= 0) & (source != target)
    source, target = source[real], target[real]
    drift = (MAX_DRIFT * (events.end[source] - events.start[source])).astype(np.int64)
    ok = events.end[source] <= events.start[target] + RETURN_TOLERANCE_NS + drift
    return (source[ok], target[ok]), int((~ok).sum())
