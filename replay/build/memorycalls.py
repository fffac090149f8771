"""Calls that allocate or free device memory: the host waits until the device has drained.

Freeing always waits for everything launched before, allocating often does. What the recording
contradicts (the call returned while older work still ran) waits for nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.calls import RETURN_TOLERANCE_NS
from foretrace.replay.build.columns import KIND, RankEvents
from foretrace.replay.build.launches import Launches
from foretrace.replay.build.named import matching
from foretrace.replay.graph import I64

MEMORY_CALL = re.compile(r"^(cuda|hip)(Malloc|MallocPitch|Free)(_v\d+)?$|^cuMem(Alloc|Free)(_v2)?$")


@dataclass(frozen=True, slots=True)
class MemoryCalls:
    """Allocating and freeing calls that wait for the device; arrays of shape ``(calls,)``.

    Attributes:
        row: runtime row.
        cost_ns: what the call took once the device had drained.
    """

    row: I64
    cost_ns: I64


def memory_calls(
    events: RankEvents, launched: Launches, names: tuple[str, ...]
) -> tuple[MemoryCalls, int]:
    """The rank's waiting memory calls, and how many returned while older work still ran."""
    named = matching(MEMORY_CALL, names)[events.name]
    rows = np.flatnonzero(named & (events.kind == KIND["runtime"]))
    drained = drained_at(events, launched, rows)
    held = drained <= events.end[rows] + RETURN_TOLERANCE_NS
    rows, drained = rows[held], drained[held]
    cost = events.end[rows] - np.maximum(drained, events.start[rows])
    return MemoryCalls(rows, np.maximum(cost, 0)), int((~held).sum())


def drained_at(events: RankEvents, launched: Launches, rows: I64) -> I64:
    """When everything launched before each host row had ended, ns; the row's start at least."""
    here = events.device[launched.row] >= 0
    end = np.maximum.accumulate(events.end[launched.row[here]])
    before = np.searchsorted(launched.at[here], events.start[rows])
    if not len(end):
        return events.start[rows]
    return np.where(before > 0, np.maximum(end[before - 1], events.start[rows]), events.start[rows])
