"""Where steps begin and end on the host: the profiler's marks, or one step where there are none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.columns import RankEvents
from foretrace.replay.build.named import numbers_behind
from foretrace.replay.graph import I32, I64

STEP_MARK = "ProfilerStep#"
ONLY_STEP = 0
"""Number of the one step of a recording without marks."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Step marks of one rank's host threads; arrays of shape ``(marks,)``.

    Attributes:
        row: event row of the mark, -1 where it was made up.
        thread: host thread id.
        start: ns.
        end: ns.
        step: step number.
    """

    row: I64
    thread: I64
    start: I64
    end: I64
    step: I32


def recorded_marks(events: RankEvents, names: tuple[str, ...]) -> Marks:
    """The profiler's step annotations."""
    step = numbers_behind(STEP_MARK, names)[events.name]
    rows = np.flatnonzero(step >= 0)
    rows = rows[events.is_host[rows]]
    return Marks(rows, events.thread[rows], events.start[rows], events.end[rows], step[rows])


def whole_recording(events: RankEvents, blocking: I64) -> Marks:
    """One mark over everything that a rank's busiest host thread did; none without host rows.

    Blocking calls at the end stay outside: they are the profiler's own.

    Args:
        events: the rank's events.
        blocking: rows of blocking calls.
    """
    rows = np.flatnonzero(events.is_host)
    if not len(rows):
        none = np.zeros(0, np.int64)
        return Marks(none, none, none, none, none.astype(np.int32))
    threads, count = np.unique(events.thread[rows], return_counts=True)
    busiest = threads[np.argmax(count)]
    rows = rows[events.thread[rows] == busiest]
    return Marks(
        np.array([-1]),
        np.array([busiest]),
        events.start[rows].min()[None],
        events.end[np.setdiff1d(rows, blocking)].max(initial=events.start[rows].min())[None],
        np.array([ONLY_STEP], np.int32),
    )
