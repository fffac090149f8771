"""Which later call waits for which communication operation.

PyTorch writes a second, short ``record_param_comms`` where an operation is waited for. It is
joined to its operation by sequence number; point-to-point operations have the number 0 there,
and traces without recorded inputs have none: those are taken first in, first out per thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from foretrace.traces.collectives.inputs import wait_of_inputs
from foretrace.traces.collectives.model import P2P_KINDS, EventView, Metadata, Operation


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


def fill_waits(
    events: EventView, metadata: dict[int, Metadata], operations: list[Operation]
) -> None:
    """Join the waits to the operations; a wait also tells what the call left out."""
    calls = [
        Call(
            key=i,
            thread=int(events.thread[op.launch]),
            at_ns=int(events.start_ns[op.launch]),
            seq=op.meta.seq,
            p2p=op.kind in P2P_KINDS,
            group=op.meta.group_name,
        )
        for i, op in enumerate(operations)
        if op.launch >= 0
    ]
    claimed = {op.call_event for op in operations}
    said: dict[int, Metadata] = {}
    for row in events.host_rows(lambda name: name == "record_param_comms").tolist():
        meta = None if row in claimed else _said(events, metadata.get(row), row)
        if meta is not None:
            said[row] = meta
    waits = [
        Wait(r, int(events.thread[r]), int(events.start_ns[r]), m.seq, m.group_name)
        for r, m in said.items()
    ]
    for i, wait in match_waits(calls, waits).items():
        meta, told = operations[i].meta, said[wait.row]
        operations[i].wait_event = wait.row
        meta.seq = told.seq if meta.seq < 0 < told.seq else meta.seq
        meta.group_rank = told.group_rank if meta.group_rank < 0 else meta.group_rank


def _said(events: EventView, meta: Metadata | None, row: int) -> Metadata | None:
    """What a record_param_comms row says if it is a wait, None if it is none."""
    if meta is not None:
        return meta if meta.collective == "wait" else None
    return wait_of_inputs(events.inputs.text(row), events.dtypes.text(row))


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
