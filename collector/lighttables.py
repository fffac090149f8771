"""Tables of a light recording: steps, calls, executions and waits, from the hooks alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from foretrace.collector.annotations import event_table
from foretrace.collector.calls import OPERATORS
from foretrace.collector.implied import IMPLIED_NAME, implied_waits, never_busy
from foretrace.collector.overlay import as_table, call_row
from foretrace.collector.spool import Recording, Wait
from foretrace.collector.waits import WAIT_NAME


@dataclass(slots=True)
class _Event:
    """A row of events on its way into the table."""

    kind: str
    name: str
    start_ns: int
    end_ns: int
    thread: int = -1
    device: int = -1
    stream: int = -1


def light_tables(recording: Recording) -> tuple[pa.Table, pa.Table]:
    """Events and collectives of a light recording.

    Events: an annotation for each step (as the profiler names it), a host operator for each
    call, an execution for each call whose end somebody saw, an annotation for each wait.

    Args:
        recording: what the hooks saw.

    Returns:
        Events sorted by start, and collectives in issue order that point to them.
    """
    marks = [
        _Event("annotation", f"ProfilerStep#{s.step}", s.start_ns, s.end_ns, s.thread)
        for s in recording.steps
    ]
    calls = [
        _Event("host_op", f"c10d::{c.operator}", c.start_ns, c.end_ns, c.thread)
        for c in recording.calls
    ]
    works = _executions(recording)
    implied = _implied(recording, works)
    waits = [
        _Event("annotation", name, w.start_ns, w.end_ns, w.thread)
        for name, group in ((WAIT_NAME, recording.waits), (IMPLIED_NAME, implied))
        for w in group
    ]
    listed = [*marks, *calls, *waits, *works.values()]
    order = sorted(range(len(listed)), key=lambda i: (listed[i].start_ns, -listed[i].end_ns))
    row_of = {id(listed[i]): row for row, i in enumerate(order)}
    first_wait: dict[int, int] = {}
    for wait, event in zip([*recording.waits, *implied], waits, strict=True):
        first_wait.setdefault(wait.ident, row_of[id(event)])
    rows = []
    for call, event in zip(recording.calls, calls, strict=True):
        row = call_row(call, recording) | {"call_event": row_of[id(event)]}
        row["wait_event"] = first_wait.get(call.ident, -1)
        if call.ident in works:
            row["work_event"] = row_of[id(works[call.ident])]
        rows.append(row)
    return _event_table([listed[i] for i in order], recording), as_table(rows)


def _implied(recording: Recording, works: dict[int, _Event]) -> list[Wait]:
    """Waits of DDP's reducer on the host; on a device it makes streams wait instead."""
    ends = [
        works[c.ident].end_ns if c.ident in works and works[c.ident].device < 0 else -1
        for c in recording.calls
    ]
    return implied_waits(recording, np.array(ends, np.int64), never_busy)


def _executions(recording: Recording) -> dict[int, _Event]:
    """The execution of each call whose end is known, by the call's number."""
    found = _on_library_threads(recording) | _on_callers_thread(recording)
    calls = {c.ident: c for c in recording.calls}
    for span in recording.spans:
        if span.ident in calls and span.end_ns >= 0:
            name = f"nccl:{OPERATORS[calls[span.ident].operator].kind}"
            start, end = span.start_ns, max(span.start_ns, span.end_ns)
            found[span.ident] = _Event(
                "kernel", name, start, end, device=span.device, stream=span.stream
            )
    return found


def _on_library_threads(recording: Recording) -> dict[int, _Event]:
    """Collectives whose end the communication library's own thread reported.

    Such a thread runs one collective after the other: none starts before the one before it
    on the same thread has ended. A work that is over before it can be asked for its end
    reports on the calling thread; which thread ran it is then unknown.
    """
    calls = {c.ident: c for c in recording.calls}
    free_at: dict[int, int] = {}
    found = {}
    for done in sorted(recording.done, key=lambda d: d.time_ns):
        call = calls.get(done.ident)
        if call is None:
            continue
        name = f"gloo:{OPERATORS[call.operator].gloo}"
        thread = done.thread if done.thread != call.thread else -1
        start = min(max(call.start_ns, free_at.get(thread, 0)), done.time_ns)
        found[done.ident] = _Event("annotation", name, start, done.time_ns, thread)
        if thread >= 0:
            free_at[thread] = done.time_ns
    return found


def _on_callers_thread(recording: Recording) -> dict[int, _Event]:
    """Sends and receives: known to be over when the wait for them returns."""
    on_device = {span.ident for span in recording.spans}
    p2p = {
        c.ident: c
        for c in recording.calls
        if OPERATORS[c.operator].p2p and c.ident not in on_device
    }
    found: dict[int, _Event] = {}
    for wait in recording.waits:
        call = p2p.get(wait.ident)
        if call is not None and wait.ident not in found:
            name = f"gloo:{OPERATORS[call.operator].gloo}"
            found[wait.ident] = _Event("annotation", name, call.start_ns, wait.end_ns, call.thread)
    return found


def _event_table(events: list[_Event], recording: Recording) -> pa.Table:
    start = np.array([e.start_ns for e in events], np.int64)
    columns: dict[str, Any] = {
        "kind": [e.kind for e in events],
        "name": [e.name for e in events],
        "start_ns": start,
        "dur_ns": np.array([e.end_ns for e in events], np.int64) - start,
        "thread": [e.thread for e in events],
        "device": [e.device for e in events],
        "stream": [e.stream for e in events],
        "step": _steps(start, recording),
    }
    return event_table(columns, len(events))


def _steps(start_ns: np.ndarray[Any, np.dtype[np.int64]], recording: Recording) -> Any:
    step = np.full(len(start_ns), -1, np.int32)
    for mark in recording.steps:
        step[(start_ns >= mark.start_ns) & (start_ns < mark.end_ns)] = mark.step
    return step
