"""Operations of a CPU trace: gloo's annotations, joined to the calls they work for."""

from __future__ import annotations

from foretrace.traces.classify import collective_kind
from foretrace.traces.collectives.model import EventView, Operation
from foretrace.traces.collectives.sizes import fill_bytes, tensor_sizes


def gloo_operations(events: EventView) -> list[Operation]:
    """One operation per ``gloo:*`` annotation, in issue order."""
    waiting: dict[str, list[int]] = {}
    for call in events.host_rows(lambda name: name.startswith("c10d::")).tolist():
        waiting.setdefault(collective_kind(events.name.text(call)), []).append(call)
    operations = []
    for work in events.host_rows(lambda name: name.startswith("gloo:")).tolist():
        kind = collective_kind(events.name.text(work).removeprefix("gloo:")) or "unknown"
        calls = waiting.get(kind, [])
        call = -1
        if calls and events.start_ns[calls[0]] <= events.start_ns[work]:
            call = calls.pop(0)  # a call of before the window is not there to be taken
        operation = Operation(kind, work, "gloo", call_event=call)
        fill_bytes(operation, tensor_sizes(events, work), tensor_sizes(events, call))
        operations.append(operation)
    return sorted(operations, key=lambda op: _issued_ns(events, op))


def _issued_ns(events: EventView, operation: Operation) -> int:
    row = operation.call_event if operation.call_event >= 0 else operation.work_event
    return int(events.start_ns[row])
