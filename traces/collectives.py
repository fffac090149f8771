"""The communication operations of one rank, put together from what its trace tells.

GPU traces: one row per communication kernel, joined to the host operators that were running
when it was launched. gloo: one row per ``gloo:*`` annotation, joined to the call it works for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foretrace.traces.classify import classify, collective_kind
from foretrace.traces.dtypes import element_bytes, scalar_type
from foretrace.traces.enclosing import enclosing_rows
from foretrace.traces.groups import GroupTable, ranks_of
from foretrace.traces.schema import COLLECTIVES, arrow_schema
from foretrace.traces.steps import launch_rows
from foretrace.traces.waits import Call, Wait, match_waits

I64 = NDArray[np.int64]
P2P_KINDS = ("send", "recv", "send_recv")


@dataclass(slots=True)
class Metadata:
    """What a profiler recorded about one collective; absent values as in the schema.

    Attributes:
        collective: the operation's name.
        in_elements: elements put in.
        out_elements: elements got out.
        group_size: members.
        dtype: element type.
        in_splits: elements to each member.
        out_splits: elements from each member.
        group_name: the rank's name of the group.
        group_description: what the framework calls the group.
        group_ranks: members.
        seq: sequence number.
        comm_id: communicator id.
        peer: p2p peer.
        is_async: 1, 0 or -1.
        group_rank: this rank's number within the group.
    """

    collective: str = ""
    in_elements: int = -1
    out_elements: int = -1
    group_size: int = -1
    dtype: str = ""
    in_splits: list[int] = field(default_factory=list)
    out_splits: list[int] = field(default_factory=list)
    group_name: str = ""
    group_description: str = ""
    group_ranks: list[int] = field(default_factory=list)
    seq: int = -1
    comm_id: int = 0
    peer: int = -1
    is_async: int = -1
    group_rank: int = -1


@dataclass(frozen=True, slots=True)
class EventView:
    """Columns of a rank's sorted events that collectives are read from; shape ``(events,)``.

    Attributes:
        kind: text of ``events.kind``.
        name: dictionary array.
        start_ns: start.
        end_ns: end.
        thread: host thread.
        stream: device stream.
        correlation: call id.
        external_id: operator id.
        shapes: dictionary array of JSON texts.
        dtypes: dictionary array of JSON texts.
        inputs: dictionary array of JSON texts.
    """

    kind: NDArray[Any]
    name: pa.DictionaryArray
    start_ns: I64
    end_ns: I64
    thread: I64
    stream: I64
    correlation: I64
    external_id: I64
    shapes: pa.DictionaryArray
    dtypes: pa.DictionaryArray
    inputs: pa.DictionaryArray

    def rows_named(self, wanted: NDArray[np.bool_]) -> I64:
        """Host rows whose name's dictionary entry is marked in ``wanted``."""
        codes = self.name.indices.to_numpy(zero_copy_only=False)
        host = (self.kind == "host_op") | (self.kind == "annotation")
        return np.flatnonzero(wanted[codes] & host) if len(wanted) else np.zeros(0, np.int64)


def collective_table(
    events: EventView, metadata: dict[int, Metadata], groups: GroupTable
) -> pa.Table:
    """One row per communication operation, in issue order; columns of ``schema.COLLECTIVES``.

    Args:
        events: the rank's events, sorted.
        metadata: what was recorded about collectives, by row of the events.
        groups: the rank's groups; those seen here for the first time are added.
    """
    rows = _kernel_rows(events, metadata) or _gloo_rows(events)
    for row in rows:
        _fill_group(row, groups)
    return _as_table(rows)


@dataclass(slots=True)
class _Row:
    """One communication operation on its way into the table."""

    kind: str
    call_event: int
    work_event: int
    meta: Metadata
    source: str
    bytes_in: int = -1
    bytes_out: int = -1
    group: int = -1
    wait_event: int = -1
    launch: int = -1


def _kernel_rows(events: EventView, metadata: dict[int, Metadata]) -> list[_Row]:
    names = events.name.dictionary.to_pylist()
    codes = events.name.indices.to_numpy(zero_copy_only=False)
    kernels = np.flatnonzero(events.kind == "kernel")
    distinct = np.unique(codes[kernels])
    classes = classify([names[c] for c in distinct])
    kind_of = {
        c: k for c, k, yes in zip(distinct, classes.kind, classes.communicates, strict=True) if yes
    }
    work = kernels[np.isin(codes[kernels], list(kind_of))] if kind_of else kernels[:0]
    if not len(work):
        return []
    on_device = np.isin(events.kind, ("kernel", "memcpy", "memset"))
    launch = launch_rows(events.correlation, events.kind == "runtime", on_device)[work]
    work, launch = _issue_order(events, work, launch)
    hosts = _host_rows(events, names, work, launch)
    rows = [
        _kernel_row(events, metadata, kind_of[codes[w]], int(w), tuple(h))
        for w, h in zip(work, hosts.tolist(), strict=True)
    ]
    for row, at in zip(rows, launch.tolist(), strict=True):
        row.launch = at
    _fill_waits(events, metadata, rows, events.rows_named(_is_record(names)))
    _fill_from_stream(events, rows)
    return rows


def _is_record(names: list[str]) -> NDArray[np.bool_]:
    return np.array([n == "record_param_comms" for n in names], np.bool_)


def _fill_waits(
    events: EventView, metadata: dict[int, Metadata], rows: list[_Row], records: I64
) -> None:
    """Join the later, short record_param_comms rows; they also tell what the call left out."""
    calls = [
        Call(
            key=i,
            thread=int(events.thread[r.launch]),
            at_ns=int(events.start_ns[r.launch]),
            seq=r.meta.seq,
            p2p=r.kind in P2P_KINDS,
            group=r.meta.group_name,
        )
        for i, r in enumerate(rows)
        if r.launch >= 0
    ]
    claimed = {r.call_event for r in rows}
    waits: list[Wait] = []
    said: dict[int, Metadata] = {}
    for record in records.tolist():
        meta = None if record in claimed else _wait_metadata(events, metadata.get(record), record)
        if meta is not None:
            said[record] = meta
            waits.append(
                Wait(
                    row=record,
                    thread=int(events.thread[record]),
                    at_ns=int(events.start_ns[record]),
                    seq=meta.seq,
                    group=meta.group_name,
                )
            )
    for i, wait in match_waits(calls, waits).items():
        rows[i].wait_event = wait.row
        meta, told = rows[i].meta, said[wait.row]
        if meta.seq < 0 and told.seq > 0:
            meta.seq = told.seq
        if meta.group_rank < 0:
            meta.group_rank = told.group_rank


def _wait_metadata(events: EventView, meta: Metadata | None, record: int) -> Metadata | None:
    """What a record_param_comms row says if it is a wait, None if it is none.

    Old waits have the inputs ``[seq, 0, rank in the group, '', in splits, out splits]``.
    """
    if meta is not None:
        return meta if meta.collective == "wait" else None
    values = _decode(_text(events.inputs, record))
    types = _decode(_text(events.dtypes, record))
    if isinstance(values, list) and len(values) >= 6 and str(values[0]).isdigit():
        return Metadata(seq=int(values[0]), group_rank=_number(values[2]))
    if values is None and isinstance(types, list) and types[:1] == ["Scalar"]:
        return Metadata()
    return None


def _fill_from_stream(events: EventView, rows: list[_Row]) -> None:
    """Give a call that names no group the group of its stream: NCCL has one for each group."""
    on_stream: dict[int, set[str]] = {}
    ranks: dict[str, set[int]] = {}
    for row in rows:
        if row.meta.group_name:
            on_stream.setdefault(int(events.stream[row.work_event]), set()).add(row.meta.group_name)
        if row.meta.group_name and row.meta.group_rank >= 0:
            ranks.setdefault(row.meta.group_name, set()).add(row.meta.group_rank)
    for row in rows:
        names = on_stream.get(int(events.stream[row.work_event]), set())
        if not row.meta.group_name and len(names) == 1:
            row.meta.group_name = next(iter(names))
        known = ranks.get(row.meta.group_name, set())
        if row.meta.group_rank < 0 and len(known) == 1:
            row.meta.group_rank = next(iter(known))


def _issue_order(events: EventView, work: I64, launch: I64) -> tuple[I64, I64]:
    """Order by launch; work without a launch row keeps its place on its stream."""
    begin = events.start_ns[work]
    key = np.where(launch >= 0, events.start_ns[np.maximum(launch, 0)], begin)
    for stream in np.unique(events.stream[work]):
        here = np.flatnonzero(events.stream[work] == stream)
        late = here[::-1]  # nothing on a stream is issued after what follows it there
        key[late] = np.minimum.accumulate(key[late])
    order = np.lexsort((begin, key))
    return work[order], launch[order]


def _host_rows(events: EventView, names: list[str], work: I64, launch: I64) -> I64:
    """Rows of (record_param_comms, c10d operator, nccl annotation) around each launch."""
    wanted = (
        _is_record(names),
        np.array([n.startswith(("c10d::", "_c10d_functional::")) for n in names]),
        np.array([n.startswith(("nccl:", "rccl:", "ucc:", "mpi:", "xccl:")) for n in names]),
    )
    hosts = np.full((len(work), 3), -1, np.int64)
    launched = np.flatnonzero(launch >= 0)
    at = launch[launched]
    for column, mark in enumerate(wanted):
        hosts[launched, column] = enclosing_rows(
            events.rows_named(mark),
            events.start_ns,
            events.end_ns,
            events.thread,
            events.start_ns[at],
            events.thread[at],
        )
    records = events.rows_named(wanted[0])
    by_id = dict(zip(events.external_id[records].tolist(), records.tolist(), strict=True))
    by_id.pop(-1, None)
    for i in np.flatnonzero(hosts[:, 0] < 0):
        external = int(events.external_id[work[i]])
        if external != int(events.correlation[work[i]]):  # old traces write one for the other
            hosts[i, 0] = by_id.get(external, -1)
    return hosts


def _kernel_row(
    events: EventView,
    metadata: dict[int, Metadata],
    named_kind: str,
    work: int,
    hosts: tuple[int, ...],
) -> _Row:
    record, operator, annotation = hosts
    meta = metadata.get(work) or metadata.get(record)
    source = "kernel" if meta is None or work in metadata else "record_param_comms"
    if meta is None and record >= 0:
        meta = _from_inputs(_text(events.inputs, record))
        source = "record_param_comms"
    meta = meta or Metadata()
    hints = [collective_kind(meta.collective)] if meta.collective else []
    hints += [collective_kind(_text(events.name, r)) for r in (annotation, operator) if r >= 0]
    hint = next((h for h in hints if h), "")
    kind = _choose_kind(named_kind, hint)
    call = next((r for r in (record, operator, annotation) if r >= 0), -1)
    row = _Row(kind, call, work, meta, source)
    _fill_bytes(row, _sizes(events, (annotation, record)), _sizes(events, (operator,)))
    return row


def _choose_kind(named: str, hint: str) -> str:
    """The kernel's own name wins, except where it stands for several operations."""
    if named in ("send_recv", "unknown"):
        return (
            hint
            if hint in ("send", "recv", "all_to_all", "gather", "scatter")
            or (named == "unknown" and hint)
            else named
        )
    return hint or named


def _gloo_rows(events: EventView) -> list[_Row]:
    names = events.name.dictionary.to_pylist()
    work = events.rows_named(np.array([n.startswith("gloo:") for n in names]))
    calls = events.rows_named(np.array([n.startswith("c10d::") for n in names]))
    by_kind: dict[str, list[int]] = {}
    for call in calls.tolist():
        by_kind.setdefault(collective_kind(_text(events.name, call)), []).append(call)
    taken: dict[str, int] = {}
    rows = []
    for w in work.tolist():
        kind = collective_kind(_text(events.name, w).removeprefix("gloo:")) or "unknown"
        position = taken.get(kind, 0)
        waiting = by_kind.get(kind, [])
        call = waiting[position] if position < len(waiting) else -1
        if call >= 0 and events.start_ns[call] > events.start_ns[w]:
            call = -1  # the call of this work lies before the window
        else:
            taken[kind] = position + 1
        row = _Row(kind, call, w, Metadata(), "gloo")
        _fill_bytes(row, _sizes(events, (w,)), _sizes(events, (call,)))
        rows.append(row)
    rows.sort(
        key=lambda r: int(events.start_ns[r.call_event if r.call_event >= 0 else r.work_event])
    )
    return rows


def _text(array: pa.DictionaryArray, row: int) -> str:
    return str(array[row].as_py() or "")


@lru_cache(maxsize=1 << 14)
def _decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return None


def _from_inputs(text: str) -> Metadata | None:
    """Metadata out of record_param_comms' concrete inputs, before it had names.

    They are ``['', seq, group pointer, rank, '', in splits, out splits(, world size)]``.
    """
    values = _decode(text)
    if not isinstance(values, list) or len(values) < 7 or values[0] != "":
        return None
    number = [_number(v) for v in values]
    return Metadata(
        seq=number[1] if number[1] > 0 else -1,
        group_name=str(values[2]),
        group_rank=number[3],
        in_splits=ranks_of(values[5]),
        out_splits=ranks_of(values[6]),
        group_size=number[7] if len(number) > 7 else -1,
    )


def _number(value: Any) -> int:
    text = str(value)
    return int(text) if text.removeprefix("-").isdigit() else -1


@lru_cache(maxsize=1 << 14)
def _tensor_sizes(shapes: str, dtypes: str) -> tuple[tuple[int, str], ...]:
    """(bytes, element type) of each tensor among an operator's inputs, in order."""
    dims, types = _decode(shapes), _decode(dtypes)
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) != len(types):
        return ()
    sizes = []
    for shape, kind in zip(dims, types, strict=True):
        width = element_bytes(kind) if isinstance(kind, str) else 0
        flat = isinstance(shape, list) and shape and all(isinstance(d, int) for d in shape)
        if width and flat:
            sizes.append((width * int(np.prod(shape, dtype=np.int64)), scalar_type(kind)))
    return tuple(sizes)


def _sizes(events: EventView, rows: tuple[int, ...]) -> tuple[tuple[int, str], ...]:
    """Tensor sizes of the first row that has any."""
    for row in rows:
        if row >= 0:
            sizes = _tensor_sizes(_text(events.shapes, row), _text(events.dtypes, row))
            if sizes:
                return sizes
    return ()


def _fill_bytes(
    row: _Row, inputs: tuple[tuple[int, str], ...], operands: tuple[tuple[int, str], ...]
) -> None:
    """Bytes in and out: from metadata, else from the shapes of the operators around.

    Args:
        row: gets the bytes and the type.
        inputs: what the communication library was given.
        operands: what the c10d operator was given; (output, input) for the base variants.
    """
    meta = row.meta
    width = element_bytes(meta.dtype)
    meta.dtype = scalar_type(meta.dtype) or meta.dtype
    if width and meta.in_elements >= 0:
        row.bytes_in, row.bytes_out = meta.in_elements * width, meta.out_elements * width
    elif inputs:
        row.bytes_in = sum(size for size, _ in inputs)
        meta.dtype = inputs[0][1]
    if len(operands) == 2 and row.kind in ("all_gather", "reduce_scatter", "all_to_all"):
        (out, dtype), (put_in, _) = operands
        row.bytes_in = put_in if row.bytes_in < 0 else row.bytes_in
        row.bytes_out = out if row.bytes_out < 0 else row.bytes_out
        meta.dtype = meta.dtype or dtype
    if row.kind in ("all_reduce", "broadcast", "send", "recv", "reduce") and row.bytes_out < 0:
        row.bytes_out = row.bytes_in
    if row.kind == "send":
        row.bytes_out = min(row.bytes_out, 0)
    if row.kind == "recv":
        row.bytes_in = min(row.bytes_in, 0)


def _fill_group(row: _Row, groups: GroupTable) -> None:
    meta = row.meta
    row.group = groups.row(
        meta.group_name, meta.group_ranks, max(meta.group_size, 0), meta.group_description
    )
    if row.group < 0:
        return
    known = groups.groups[row.group].size
    if meta.group_size < 0 and known:
        meta.group_size = known
    size = meta.group_size
    if size > 0 and row.bytes_in >= 0 and row.bytes_out < 0:
        if row.kind == "all_gather":
            row.bytes_out = row.bytes_in * size
        elif row.kind == "reduce_scatter":
            row.bytes_out = row.bytes_in // size


def _as_table(rows: list[_Row]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "kind": [r.kind for r in rows],
        "call_event": [r.call_event for r in rows],
        "work_event": [r.work_event for r in rows],
        "wait_event": [r.wait_event for r in rows],
        "group": [r.group for r in rows],
        "group_key": [r.meta.group_name for r in rows],
        "group_size": [r.meta.group_size for r in rows],
        "group_rank": [r.meta.group_rank for r in rows],
        "seq": [r.meta.seq for r in rows],
        "comm_id": [r.meta.comm_id for r in rows],
        "p2p": [r.kind in P2P_KINDS for r in rows],
        "peer": [r.meta.peer for r in rows],
        "bytes_in": [r.bytes_in for r in rows],
        "bytes_out": [r.bytes_out for r in rows],
        "dtype": [r.meta.dtype for r in rows],
        "in_splits": [r.meta.in_splits for r in rows],
        "out_splits": [r.meta.out_splits for r in rows],
        "is_async": [r.meta.is_async for r in rows],
        "source": [r.source for r in rows],
    }
    schema = arrow_schema("collectives")
    arrays = []
    for column in COLLECTIVES:
        kind = column.type
        if pa.types.is_dictionary(kind):
            arrays.append(pa.array(columns[column.name], pa.string()).dictionary_encode())
        else:
            arrays.append(pa.array(columns[column.name], kind))
    return pa.Table.from_arrays(arrays, schema=schema)
