"""What had been launched where when a host call was made: the question behind most waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.columns import RankEvents
from foretrace.replay.build.labelkernel import nearest
from foretrace.replay.graph import I64

NO_STREAM = -1
MAX_STREAM = 1 << 31
"""Synchronisation rows write "no stream" as -1 or as its unsigned twin."""

BEFORE, AFTER = -1, 0


@dataclass(frozen=True, slots=True)
class Launches:
    """Device rows in the order in which they were launched; shape ``(rows,)``.

    Attributes:
        row: event row.
        at: when its launching call began, ns.
        stream: key of its stream (see :func:`stream_key`).
        thread: launching thread, -1 unknown.
    """

    row: I64
    at: I64
    stream: I64
    thread: I64

    def keep(self, mask: np.ndarray) -> Launches:
        """Only some of the launches."""
        return Launches(self.row[mask], self.at[mask], self.stream[mask], self.thread[mask])


def launches(events: RankEvents, call_of: I64) -> Launches:
    """All device work of one rank by launch; ties keep the order of their streams.

    Work without a recorded launch was launched before the window, so before everything else.
    """
    row = stream_order(events)
    call = call_of[row]
    at = np.where(call >= 0, events.start[call], np.iinfo(np.int64).min)
    order = np.argsort(at, kind="stable")
    row, at, call = row[order], at[order], call[order]
    thread = np.where(call >= 0, events.thread[call], -1)
    return Launches(row, at, stream_key(events, row), thread)


def stream_order(events: RankEvents) -> I64:
    """Rows of device work sorted by (device, stream, start)."""
    rows = np.flatnonzero(events.is_device_work)
    order = np.lexsort(
        (events.end[rows], events.start[rows], events.stream[rows], events.device[rows])
    )
    return rows[order]


def stream_key(events: RankEvents, rows: I64) -> I64:
    """One number per (device, stream) of event rows; -1 for row -1."""
    return np.where(rows >= 0, join_key(events.device[rows], events.stream[rows]), NO_STREAM)


def join_key(device: np.ndarray, stream: np.ndarray) -> I64:
    """One number per (device, stream); -1 where the stream is no stream."""
    known = (stream > -(1 << 31)) & (stream != -1) & (stream < MAX_STREAM)
    key = (np.maximum(device.astype(np.int64), -2) + 3 << 40) + stream
    return np.where(known, key, NO_STREAM)


def near(launched: Launches, key: I64, wanted: I64, at: I64, side: int) -> I64:
    """The last row launched before (BEFORE), or the first after (AFTER), an instant.

    Args:
        launched: launches to choose from.
        key: a key of each launch, shape ``(rows,)``: its stream or its thread.
        wanted: key asked for, shape ``(k,)``; -1 finds nothing.
        at: instants, ns, shape ``(k,)``.
        side: BEFORE or AFTER.

    Returns:
        Event rows, -1 for none, shape ``(k,)``.
    """
    found = nearest((key, wanted), (launched.at, at), side)
    return np.append(launched.row, -1)[found]
