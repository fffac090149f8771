"""Operations of a GPU trace: its communication kernels, joined to what launched them."""

from __future__ import annotations

import numpy as np

from foretrace.traces.classify import classify, collective_kind
from foretrace.traces.collectives.copies import copy_engine_work
from foretrace.traces.collectives.inputs import metadata_of_inputs
from foretrace.traces.collectives.model import I64, EventView, Metadata, Operation
from foretrace.traces.collectives.p2p import fill_p2p
from foretrace.traces.collectives.sizes import fill_bytes, tensor_sizes
from foretrace.traces.collectives.waits import fill_waits
from foretrace.traces.enclosing import enclosing_rows
from foretrace.traces.steps import launch_rows

_LIBRARY_MARKS = ("nccl:", "rccl:", "ucc:", "mpi:", "xccl:")
_OPERATOR_MARKS = ("c10d::", "_c10d_functional::", "c10d_functional::")


def kernel_operations(events: EventView, metadata: dict[int, Metadata]) -> list[Operation]:
    """One operation per communication kernel or copy-engine collective, in issue order.

    Args:
        events: the rank's events.
        metadata: what was recorded about collectives, by row.
    """
    kernels = np.flatnonzero(events.is_kind("kernel"))
    codes = events.name.codes
    distinct = np.unique(codes[kernels])
    classes = classify([events.name.values[c] for c in distinct])
    communicates = np.zeros(len(events.name.values), np.bool_)
    communicates[distinct] = classes.communicates
    kind_of = dict(zip(distinct.tolist(), classes.kind, strict=True))
    work = kernels[communicates[codes[kernels]]]
    launch = launch_rows(
        events.correlation,
        events.is_kind("runtime"),
        events.is_kind("kernel", "memcpy", "memset"),
    )
    work = np.concatenate([work, copy_engine_work(events, metadata, launch, work)])
    if not len(work):
        return []
    work, launch = _issue_order(events, work, launch[work])
    hosts = _host_rows(events, work, launch)
    operations = []
    for w, at, host in zip(work.tolist(), launch.tolist(), hosts.tolist(), strict=True):
        operation = _operation(events, metadata, kind_of.get(int(codes[w]), ""), w, host)
        operation.launch = at
        operations.append(operation)
    fill_p2p(events, operations)
    fill_waits(events, metadata, operations)
    _fill_from_stream(events, operations)
    return operations


def _issue_order(events: EventView, work: I64, launch: I64) -> tuple[I64, I64]:
    """Order by launch; a kernel without a launch row keeps its place on its stream."""
    begin = events.start_ns[work]
    key = np.where(launch >= 0, events.start_ns[np.maximum(launch, 0)], begin)
    for stream in np.unique(events.stream[work]):
        backwards = np.flatnonzero(events.stream[work] == stream)[::-1]
        key[backwards] = np.minimum.accumulate(key[backwards])
    order = np.lexsort((begin, key))
    return work[order], launch[order]


def _host_rows(events: EventView, work: I64, launch: I64) -> I64:
    """Rows of (record_param_comms, c10d operator, library annotation) around each launch.

    ``nccl:coalesced`` spans the work, not its launch, so it says nothing about a launch.
    """
    wanted = (
        lambda name: name == "record_param_comms",
        lambda name: name.startswith(_OPERATOR_MARKS),
        lambda name: name.startswith(_LIBRARY_MARKS) and not name.endswith(":coalesced"),
    )
    hosts = np.full((len(work), 3), -1, np.int64)
    launched = np.flatnonzero(launch >= 0)
    at = launch[launched]
    moments = (events.start_ns[at], events.thread[at])
    spans = (events.start_ns, events.end_ns, events.thread)
    for column, mark in enumerate(wanted):
        hosts[launched, column] = enclosing_rows(events.host_rows(mark), spans, moments)
    _fill_by_external_id(events, work, hosts[:, 0], events.host_rows(wanted[0]))
    return hosts


def _fill_by_external_id(events: EventView, work: I64, record: I64, records: I64) -> None:
    """Where no launch is known, the operator whose id the kernel carries."""
    by_id = dict(zip(events.external_id[records].tolist(), records.tolist(), strict=True))
    by_id.pop(-1, None)
    for i in np.flatnonzero(record < 0):
        external = int(events.external_id[work[i]])
        if external != int(events.correlation[work[i]]):  # old traces write one for the other
            record[i] = by_id.get(external, -1)


def _operation(
    events: EventView,
    metadata: dict[int, Metadata],
    named_kind: str,
    work: int,
    hosts: list[int],
) -> Operation:
    record, operator, annotation = hosts
    if work in metadata:
        meta, source = metadata[work], "kernel"
    elif record >= 0:
        known = metadata.get(record) or metadata_of_inputs(events.inputs.text(record))
        meta, source = known or Metadata(), "record_param_comms"
    else:
        meta, source = Metadata(), "kernel"
    words = [meta.collective]
    words += [events.name.text(r) for r in (annotation, operator) if r >= 0]
    operation = Operation(
        kind=_choose_kind(named_kind, next(filter(None, map(collective_kind, words)), "")),
        work_event=work,
        source=source,
        meta=meta,
        call_event=next((r for r in (record, operator, annotation) if r >= 0), -1),
    )
    inputs = tensor_sizes(events, annotation, record)
    fill_bytes(operation, inputs, tensor_sizes(events, operator))
    return operation


def _choose_kind(named: str, hint: str) -> str:
    """The kernel's own name against what was called around it.

    A kernel that sends and receives serves all operations that only move data from rank to
    rank; any other name is overruled by the call (a barrier runs an all-reduce kernel).
    """
    if named == "send_recv":
        return hint if hint in ("send", "recv", "all_to_all", "gather", "scatter") else named
    return hint or named


def _fill_from_stream(events: EventView, operations: list[Operation]) -> None:
    """Give an operation that names no group the one of its stream: NCCL has one for each."""
    names: dict[int, set[str]] = {}
    ranks: dict[str, set[int]] = {}
    for op in operations:
        if op.meta.group_name:
            names.setdefault(int(events.stream[op.work_event]), set()).add(op.meta.group_name)
            if op.meta.group_rank >= 0:
                ranks.setdefault(op.meta.group_name, set()).add(op.meta.group_rank)
    for op in operations:
        on_stream = names.get(int(events.stream[op.work_event]), set())
        if not op.meta.group_name and len(on_stream) == 1:
            (op.meta.group_name,) = on_stream
        known = ranks.get(op.meta.group_name, set())
        if op.meta.group_rank < 0 and len(known) == 1:
            (op.meta.group_rank,) = known
