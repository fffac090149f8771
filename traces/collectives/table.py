"""From operations to the collectives table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from foretrace.traces import arrow
from foretrace.traces.collectives.gloo import gloo_operations
from foretrace.traces.collectives.kernels import kernel_operations
from foretrace.traces.collectives.model import P2P_KINDS, EventView, Metadata, Operation
from foretrace.traces.collectives.sizes import fill_by_group_size
from foretrace.traces.groups import GroupTable
from foretrace.traces.schema import COLLECTIVES, arrow_schema


def collective_table(
    events: EventView, metadata: dict[int, Metadata], groups: GroupTable
) -> pa.Table:
    """One row per communication operation, in issue order; columns of ``schema.COLLECTIVES``.

    Args:
        events: the rank's events, sorted.
        metadata: what was recorded about collectives, by row of the events.
        groups: the rank's groups; those seen here for the first time are added.
    """
    operations = kernel_operations(events, metadata) or gloo_operations(events)
    for operation in operations:
        _fill_group(operation, groups)
        fill_by_group_size(operation)
    return as_table(operations)


def _fill_group(operation: Operation, groups: GroupTable) -> None:
    meta = operation.meta
    operation.group = groups.row(
        meta.group_name, meta.group_ranks, max(meta.group_size, 0), meta.group_description
    )
    if operation.group < 0:
        return
    known = groups.groups[operation.group]
    if meta.group_size < 0 and known.size:
        meta.group_size = known.size
    if groups.rank in known.ranks:
        meta.group_rank = known.ranks.index(groups.rank)
    if meta.peer < 0 and 0 <= meta.root < len(known.ranks):
        meta.peer = known.ranks[meta.root]


def as_table(operations: list[Operation]) -> pa.Table:
    """Operations as rows of ``schema.COLLECTIVES``."""
    metas = [op.meta for op in operations]
    columns: dict[str, list[Any]] = {
        "kind": [op.kind for op in operations],
        "call_event": [op.call_event for op in operations],
        "work_event": [op.work_event for op in operations],
        "wait_event": [op.wait_event for op in operations],
        "group": [op.group for op in operations],
        "group_key": [m.group_name for m in metas],
        "group_size": [m.group_size for m in metas],
        "group_rank": [m.group_rank for m in metas],
        "seq": [m.seq for m in metas],
        "comm_id": [m.comm_id for m in metas],
        "p2p": [op.kind in P2P_KINDS for op in operations],
        "peer": [m.peer for m in metas],
        "bytes_in": [op.bytes_in for op in operations],
        "bytes_out": [op.bytes_out for op in operations],
        "dtype": [m.dtype for m in metas],
        "in_splits": [m.in_splits for m in metas],
        "out_splits": [m.out_splits for m in metas],
        "is_async": [m.is_async for m in metas],
        "source": [op.source for op in operations],
        "algorithm": [m.algorithm for m in metas],
        "protocol": [m.protocol for m in metas],
        "channels": [m.channels for m in metas],
        "exec_ns": [m.exec_ns for m in metas],
    }
    arrays = [_array(columns[c.name], c.type) for c in COLLECTIVES]
    return pa.Table.from_arrays(arrays, schema=arrow_schema("collectives"))


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return arrow.texts(values)
    if pa.types.is_list(kind):
        return arrow.number_lists(values)
    return arrow.numbers(values, kind)
