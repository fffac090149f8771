"""Waits that no hook can see: DDP's reducer waits for its buckets in C++.

At the end of a backward pass the reducer waits for every bucket it has launched, in the order
of launch, on the thread that launched them. So the place of each wait is known, and with the
end of each bucket's execution also how long the thread was held up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from foretrace.collector.matching import Rows
from foretrace.collector.spool import Call, Recording, Wait

I64 = NDArray[np.int64]
IdleSince = Callable[[int, int], int]

IMPLIED_NAME = "foretrace::implied_wait"
"""Name of the annotation row of such a wait."""


def implied_waits(recording: Recording, end_ns: I64, idle_since: IdleSince) -> list[Wait]:
    """The waits of all backward passes.

    Args:
        recording: what the hooks saw.
        end_ns: end of each call's execution, -1 unknown; shape ``(calls,)``.
        idle_since: thread, time -> since when the thread was doing nothing at that time;
            -1 if it was busy.

    Returns:
        One wait for each bucket, of no duration where the bucket was there in time.
    """
    waited = {wait.ident for wait in recording.waits}
    passes: dict[tuple[int, int], list[int]] = {}
    for i, call in enumerate(recording.calls):
        silent = call.backward >= 0 and not call.from_python and call.ident not in waited
        if silent and end_ns[i] >= 0:
            passes.setdefault((call.backward, call.thread), []).append(i)
    return [
        wait
        for buckets in passes.values()
        for wait in _one_pass(recording.calls, buckets, end_ns, idle_since)
    ]


def _one_pass(
    calls: Sequence[Call], buckets: list[int], end_ns: I64, idle_since: IdleSince
) -> list[Wait]:
    thread = calls[buckets[0]].thread
    now = max(calls[i].end_ns for i in buckets)
    waits = []
    for i in buckets:
        end = int(end_ns[i])
        since = idle_since(thread, end) if end > now else -1
        start = max(since, now) if since >= 0 else now
        now = end if since >= 0 else now
        waits.append(Wait(calls[i].ident, thread, start, now, annotated=False))
    return waits


def never_busy(_thread: int, _time_ns: int) -> int:
    """For recordings without operators: a thread that could be waiting is taken to be."""
    return 0


def idle_by_events(rows: Rows) -> IdleSince:
    """Idle times by the host operators of the profiler."""
    operators = rows.operators
    busy_until: dict[int, tuple[I64, I64]] = {}
    for thread in np.unique(rows.thread[operators]):
        mine = operators[rows.thread[operators] == thread]
        ends = np.maximum.accumulate(rows.end_ns[mine])
        busy_until[int(thread)] = rows.start_ns[mine], ends

    def idle_since(thread: int, time_ns: int) -> int:
        starts, ends = busy_until.get(thread, (np.zeros(0, np.int64), np.zeros(0, np.int64)))
        at = int(np.searchsorted(starts, time_ns, side="right")) - 1
        return int(ends[at]) if at >= 0 and ends[at] <= time_ns else -1

    return idle_since
