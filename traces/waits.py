"""Which later call waits for which communication operation.

PyTorch writes a second, short ``record_param_comms`` where an operation is waited for. It is
joined to its operation by sequence number; point-to-point operations have the number 0 there,
and traces without recorded inputs have none: those are taken first in, first out per thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """A communication operation when it was issued.

    Attributes:
        key: whatever the caller knows it by.
        thread: issuing host thread.
        at_ns: when it was issued.
        seq: sequence number, -1 unknown.
        p2p: point-to-point.
        group: the rank's own handle of the group, "" unknown.
    """

    key: int
    thread: int
    at_ns: int
    seq: int
    p2p: bool
    group: str


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that waits for an operation.

    Attributes:
        row: row of events.
        thread: waiting host thread.
        at_ns: when.
        seq: sequence number; 0 for point-to-point in some versions, -1 unknown.
        group: the rank's own handle of the group, "" unknown.
    """

    row: int
    thread: int
    at_ns: int
    seq: int
    group: str


def match_waits(calls: Iterable[Call], waits: Iterable[Wait]) -> dict[int, Wait]:
    """The wait of each call that has one, by the call's key."""
    found: dict[int, Wait] = {}
    pending: list[Call] = []
    steps: list[Call | Wait] = sorted([*calls, *waits], key=lambda s: s.at_ns)
    for step in steps:
        if isinstance(step, Call):
            pending.append(step)
            continue
        position = _waited_for(pending, step)
        if position >= 0:
            found[pending.pop(position).key] = step
    return found


def _waited_for(pending: list[Call], wait: Wait) -> int:
    """Position of the call that ``wait`` ends, -1 for none."""
    if wait.seq > 0:
        for same_thread in (True, False):
            for i in range(len(pending) - 1, -1, -1):
                if pending[i].seq == wait.seq and _compatible(pending[i], wait, same_thread):
                    return i
    for i, call in enumerate(pending):
        fits = call.p2p if wait.seq == 0 else not call.p2p or wait.seq < 0
        if fits and (call.seq < 0 or wait.seq <= 0) and _compatible(call, wait, True):
            return i
    return -1


def _compatible(call: Call, wait: Wait, same_thread: bool) -> bool:
    if same_thread and call.thread != wait.thread:
        return False
    return not (call.group and wait.group) or call.group == wait.group
