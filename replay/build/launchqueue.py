"""Launches that a full queue holds up: the host waits for the device to take old work.

A device's streams hold a limited number of launches (1,024 on NVIDIA's). Once a stream is full,
each launch returns only when an old kernel has ended, and its recorded time is mostly waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.columns import RankEvents
from foretrace.replay.build.launches import Launches
from foretrace.replay.graph import I64

MIN_DEPTH = 500
"""With less work than this waiting on its stream a launch had some other reason to be slow."""

FULL = 0.9
"""A stream is full when it holds this share of the most that it ever held."""

MIN_RATIO = 2.0
"""A blocked launch takes at least this many times what launches usually take."""

CLOSE_NS = 50_000
"""A blocked launch returns within this time of the end of the work that made room."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Blocked launches of one rank; arrays of shape ``(blocked,)``.

    Attributes:
        row: runtime row of the launch.
        source: device row whose end made room.
        cost_ns: what the launch itself took.
    """

    row: I64
    source: I64
    cost_ns: I64


def blocked_launches(events: RankEvents, launched: Launches, call_of: I64) -> Blocked:
    """Launches that lasted long while hundreds stood on their stream, and what let them go on."""
    row, source, usual = [], [], []
    for stream in np.unique(launched.stream):
        mine = launched.row[launched.stream == stream]
        call = call_of[mine]
        took = events.end[call] - events.start[call]
        free = np.maximum.accumulate(events.end[mine])
        # Work of the stream that had ended when the launch returned, and what still stood there.
        ended = np.searchsorted(free, events.end[call], side="right")
        depth = np.arange(len(mine)) - ended
        known = call >= 0
        ordinary = took[known & (depth < MIN_DEPTH)]
        if not len(ordinary) or not (known & (depth >= MIN_DEPTH)).any():
            continue
        typical = int(np.median(ordinary))
        full = max(FULL * int(depth[known].max()), MIN_DEPTH)
        blocked = known & (depth >= full) & (ended > 0) & (took > MIN_RATIO * typical)
        at = np.flatnonzero(blocked)
        last = ended[at] - 1
        close = events.end[call[at]] - free[last] <= CLOSE_NS
        row.append(call[at[close]])
        source.append(mine[last[close]])
        usual.append(np.full(int(close.sum()), typical))
    if not row:
        none = np.zeros(0, np.int64)
        return Blocked(none, none, none)
    rows, sources = np.concatenate(row), np.concatenate(source)
    since = events.end[rows] - events.end[sources]
    return Blocked(rows, sources, np.clip(since, 0, np.concatenate(usual)))
