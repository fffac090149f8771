"""Profiler steps: their marks on the host, and the step that every event belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.traces.manifest import StepInfo

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]

_MARK = re.compile(r"ProfilerStep#([0-9]{1,9})$")


@dataclass(frozen=True, slots=True)
class Rows:
    """The columns of a rank's events that decide on steps; each of shape ``(events,)``.

    Attributes:
        start_ns: start.
        dur_ns: duration.
        thread: host thread, -1 on a device.
        correlation: id of the call; 0 and -1 mean none.
        is_call: whether the row is a device API call.
        on_device: whether the row lies on a device.
    """

    start_ns: I64
    dur_ns: I64
    thread: I64
    correlation: I64
    is_call: NDArray[np.bool_]
    on_device: NDArray[np.bool_]


def step_of_name(name: str) -> int:
    """The number in ``ProfilerStep#12``; -1 for any other name."""
    match = _MARK.match(name)
    return int(match.group(1)) if match else -1


def find_steps(rows: Rows, marks: Any, numbers: I64) -> list[StepInfo]:
    """The steps that the host rows ``marks`` stand for, by start.

    Args:
        rows: columns of all events.
        marks: row numbers of the marks.
        numbers: step number of each mark.
    """
    steps = [
        StepInfo(
            step=int(number),
            start_ns=int(rows.start_ns[row]),
            end_ns=int(rows.start_ns[row] + rows.dur_ns[row]),
            thread=int(rows.thread[row]),
        )
        for row, number in zip(marks, numbers, strict=True)
    ]
    return sorted(steps, key=lambda s: (s.start_ns, s.step))


def assign_steps(rows: Rows, steps: list[StepInfo]) -> I32:
    """Step of each event, -1 outside of any, shape ``(events,)``.

    A host row counts to the step in which it starts, a device row to the step of the call
    that launched it, and to the step in which it starts where no call is known.
    """
    step = _by_time(rows.start_ns, steps)
    launch = launch_rows(rows.correlation, rows.is_call, rows.on_device)
    known = launch >= 0
    step[known] = step[launch[known]]
    return step


def launch_rows(correlation: I64, is_call: NDArray[np.bool_], on_device: NDArray[np.bool_]) -> I64:
    """For each device row, the row of the call that launched it; -1 elsewhere.

    Args:
        correlation: ids that join calls and device rows; 0 and -1 join nothing.
        is_call: rows that are device API calls.
        on_device: rows that lie on a device.
    """
    launch = np.full(len(correlation), -1, np.int64)
    calls = np.flatnonzero(is_call & (correlation > 0))
    device = np.flatnonzero(on_device & (correlation > 0))
    if not len(calls) or not len(device):
        return launch
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    ids = correlation[calls]
    at = np.minimum(np.searchsorted(ids, correlation[device]), len(ids) - 1)
    hit = ids[at] == correlation[device]
    launch[device[hit]] = calls[at[hit]]
    return launch


def _by_time(start_ns: I64, steps: list[StepInfo]) -> I32:
    if not steps:
        return np.full(len(start_ns), -1, np.int32)
    begins = np.array([s.start_ns for s in steps], np.int64)
    ends = np.array([s.end_ns for s in steps], np.int64)
    numbers = np.array([s.step for s in steps], np.int32)
    at = np.searchsorted(begins, start_ns, side="right") - 1
    inside = (at >= 0) & (start_ns < ends[at])
    return np.where(inside, numbers[at], np.int32(-1)).astype(np.int32)
