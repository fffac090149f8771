"""Batched point-to-point calls: their kernel is launched after the operators have returned."""

from __future__ import annotations

import numpy as np

from foretrace.traces.classify import collective_kind
from foretrace.traces.collectives.model import I64, EventView, Operation, decoded, number
from foretrace.traces.collectives.sizes import tensor_sizes

_CALLS = ("c10d::send", "c10d::recv_", "c10d::recv")
_LIBRARY = ("nccl:send", "nccl:recv")


def fill_p2p(events: EventView, operations: list[Operation]) -> None:
    """Fill in fused send/receive kernels from the sends and receives issued just before.

    They belong to the next communication kernel that their thread launches.
    """
    calls = events.host_rows(lambda name: name in _CALLS)
    inner = events.host_rows(lambda name: name.startswith(_LIBRARY))
    if not len(calls):
        return
    since: dict[int, int] = {}
    for operation in operations:
        if operation.launch < 0:
            continue
        thread, at = int(events.thread[operation.launch]), int(events.start_ns[operation.launch])
        begin, since[thread] = since.get(thread, -1), at
        if operation.kind == "send_recv" and operation.call_event < 0:
            _fill(
                events, operation, *(_between(events, r, thread, begin, at) for r in (calls, inner))
            )


def _between(events: EventView, rows: I64, thread: int, begin: int, end: int) -> I64:
    """Those of ``rows`` that ran on ``thread`` between two moments."""
    first, last = np.searchsorted(events.start_ns[rows], (begin, end))
    rows = rows[first:last]
    here: I64 = rows[(events.thread[rows] == thread) & (events.end_ns[rows] <= end)]
    return here


def _fill(events: EventView, operation: Operation, calls: I64, inner: I64) -> None:
    if not len(calls):
        return
    kinds = {collective_kind(events.name.text(r)) for r in calls.tolist()}
    operation.kind = kinds.pop() if len(kinds) == 1 else "send_recv"
    operation.call_event = int(calls[-1])
    moved = {"send": 0, "recv": 0}
    for row in inner.tolist():
        for size, dtype in tensor_sizes(events, row):
            moved[collective_kind(events.name.text(row))] += size
            operation.meta.dtype = dtype
    if len(inner):
        operation.bytes_in, operation.bytes_out = moved["send"], moved["recv"]
    peers = {_peer(events.inputs.text(r)) for r in calls.tolist()}
    if len(peers) == 1:
        operation.meta.root = peers.pop()


def _peer(inputs: str) -> int:
    """Number within the group of the peer: ``['', '', peer, tag]``."""
    values = decoded(inputs)
    return number(values[2]) if isinstance(values, list) and len(values) == 4 else -1
