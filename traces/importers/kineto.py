"""PyTorch profiler (Kineto) JSON, of every era, to the tables of one rank."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foretrace.traces.collectives import EventView, Metadata, collective_table
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.groups import GroupTable, ranks_of
from foretrace.traces.importers.ahead import ahead
from foretrace.traces.importers.columns import EventColumns, MemoryColumns, as_int
from foretrace.traces.importers.events import NO_STREAM, CommArgs
from foretrace.traces.importers.metadata import FileMetadata, read_metadata
from foretrace.traces.importers.stream import EventStream
from foretrace.traces.manifest import RankInfo
from foretrace.traces.salvage import Losses
from foretrace.traces.schema import EVENT_KINDS, EVENTS, arrow_schema
from foretrace.traces.steps import Rows, assign_steps, find_steps, step_of_name
from foretrace.traces.store import RankTables

I64 = NDArray[np.int64]

NAME = "PyTorch profiler (Kineto) JSON"

_MARKERS = re.compile(
    rb'"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|ph)"\s*:'
)

_KIND_OF_CATEGORY = {
    "cpu_op": "host_op",
    "operator": "host_op",
    "user_annotation": "annotation",
    "gpu_user_annotation": "gpu_annotation",
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "runtime": "runtime",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "glow_runtime": "runtime",
    "mtia_runtime": "runtime",
    "xpu_runtime": "runtime",
    "xpu_driver": "runtime",
    "privateuse1_runtime": "runtime",
    "privateuse1_driver": "runtime",
    "mtia_ccp_events": "kernel",
    "hpu_op": "kernel",
    "collective_comm": "kernel",
    "cuda_sync": "sync",
    "xpu_sync": "sync",
    "cuda_event": "sync",
    "python_function": "python",
    "overhead": "overhead",
    "pid cpu functions": "host_op",  # the first profiler wrote no categories
    "pid cuda functions": "kernel",
}
_ON_DEVICE = ("kernel", "memcpy", "memset", "sync", "gpu_annotation")
_CODE = {kind: code for code, kind in enumerate(EVENT_KINDS)}


def sniff(head: bytes, name: str) -> bool:
    """Whether a file that begins with ``head`` is profiler JSON."""
    del name
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") and bool(_MARKERS.search(head))


def read(chunks: Iterable[bytes], *, python: bool = False) -> RankTables:
    """Read one file; the rank is -1 if the file does not tell it.

    Args:
        chunks: the uncompressed text, in pieces of any size.
        python: keep the frames of Python functions.

    Raises:
        TraceFormatError: the text holds no events.
    """
    losses = Losses()
    stream = EventStream(chunks, losses)
    columns = EventColumns(losses, python)
    memory = MemoryColumns(losses)
    with _no_garbage_collection():
        for block in ahead(stream.blocks()):
            columns.add(block)
            memory.add(block)
        if not stream.closed:
            losses.add("end of the file is missing (whole events kept)", 1)
        meta = read_metadata(stream.head, stream.tail, stream.closed, losses)
        fields = columns.finish()
        if not fields:
            raise TraceFormatError("it holds no events that last (ph X)")
        if meta.base_lost:
            losses.add("base time lost: times are as written in the file", 1)
        return _tables(fields, columns.comm, meta, memory.finish(meta.base_ns), losses)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """No structs that are decoded refer to each other: collecting would find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _tables(
    fields: dict[str, Any],
    comm: dict[int, CommArgs],
    meta: FileMetadata,
    memory: pa.Table | None,
    losses: Losses,
) -> RankTables:
    kind = _kinds(fields)
    fields["start_ns"] += meta.base_ns
    order = np.lexsort((-fields["dur_ns"], fields["start_ns"]))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    _lanes(fields, kind)
    kind = kind[order]
    fields = {name: _take(values, order) for name, values in fields.items()}
    rows = _step_rows(fields, kind)
    steps = _steps(fields["name"], rows)
    fields["step"] = assign_steps(rows, steps)
    world = as_int(meta.distributed.get("world_size"), 0)
    groups = GroupTable(world)
    groups.add_config(meta.distributed.get("pg_config"))
    kinds = np.array(EVENT_KINDS)[kind]
    collectives = collective_table(
        _view(fields, kinds), {int(place[r]): _metadata(a) for r, a in comm.items()}, groups
    )
    events = _event_table(fields, kind)
    info = _info(meta, fields, kind, losses)
    info.groups = groups.groups
    info.steps = steps
    return RankTables(info, events, collectives, memory)


def _take(values: Any, order: I64) -> Any:
    return values[order] if isinstance(values, np.ndarray) else values.take(pa.array(order))


def _kinds(fields: dict[str, Any]) -> NDArray[np.int8]:
    """Code of each event's kind, an index into EVENT_KINDS."""
    category = fields["category"]
    texts = [c.lower() for c in category.dictionary.to_pylist()]
    codes = np.array([_CODE[_KIND_OF_CATEGORY.get(t, "other")] for t in texts], np.int8)
    kind = codes[category.indices.to_numpy(zero_copy_only=False)]
    names = fields["name"]
    marks = np.array([step_of_name(n) >= 0 for n in names.dictionary.to_pylist()])
    is_mark = marks[names.indices.to_numpy(zero_copy_only=False)]
    kind[is_mark & (kind == _CODE["host_op"])] = _CODE["annotation"]
    return kind


def _lanes(fields: dict[str, Any], kind: NDArray[np.int8]) -> None:
    """Thread, device and stream of each row from process, thread and arguments."""
    on_device = np.isin(kind, [_CODE[k] for k in _ON_DEVICE])
    stream, device = fields["stream"], fields["device"]
    stream = np.where(stream == NO_STREAM, fields["tid"], stream)
    device = np.where(device < 0, fields["pid"], device)
    fields["thread"] = np.where(on_device, -1, fields["tid"])
    fields["stream"] = np.where(on_device, stream, -1)
    fields["device"] = np.where(on_device, device, -1).astype(np.int32)


def _step_rows(fields: dict[str, Any], kind: NDArray[np.int8]) -> Rows:
    return Rows(
        start_ns=fields["start_ns"],
        dur_ns=fields["dur_ns"],
        thread=fields["thread"],
        correlation=fields["correlation"],
        is_call=kind == _CODE["runtime"],
        on_device=np.isin(kind, [_CODE[k] for k in _ON_DEVICE]),
    )


def _steps(names: pa.DictionaryArray, rows: Rows) -> Any:
    numbers = np.array([step_of_name(n) for n in names.dictionary.to_pylist()], np.int64)
    number = numbers[names.indices.to_numpy(zero_copy_only=False)]
    marks = np.flatnonzero((number >= 0) & ~rows.on_device)
    return find_steps(rows, marks, number[marks])


def _view(fields: dict[str, Any], kinds: NDArray[Any]) -> EventView:
    return EventView(
        kind=kinds,
        name=fields["name"],
        start_ns=fields["start_ns"],
        end_ns=fields["start_ns"] + fields["dur_ns"],
        thread=fields["thread"],
        stream=fields["stream"],
        correlation=fields["correlation"],
        external_id=fields["external_id"],
        shapes=fields["shapes"],
        dtypes=fields["dtypes"],
        inputs=fields["inputs"],
    )


def _metadata(args: CommArgs) -> Metadata:
    name = args.group_name if args.group_name != "" else args.group_id
    source, target = as_int(args.src_rank), as_int(args.dst_rank)
    kind = args.collective.lower()
    comm_id = args.comm_id
    comm_id = int(comm_id) if isinstance(comm_id, int | str) and str(comm_id).isdigit() else 0
    return Metadata(
        collective=args.collective,
        in_elements=as_int(args.in_elements),
        out_elements=as_int(args.out_elements),
        group_size=as_int(args.group_size),
        dtype=args.dtype,
        in_splits=ranks_of(args.in_splits),
        out_splits=ranks_of(args.out_splits),
        group_name="" if name is None else str(name),
        group_description=args.group_description,
        group_ranks=_group_ranks(args),
        seq=as_int(args.seq),
        comm_id=comm_id,
        peer=target if "send" in kind and target >= 0 else source,
        is_async=as_int(args.is_async),
        group_rank=_group_rank(args),
    )


def _group_rank(args: CommArgs) -> int:
    """The rank within the group, which is what ``Rank`` says."""
    return as_int(args.rank)


def _group_ranks(args: CommArgs) -> list[int]:
    """Members, from the list or, where that was cut off, from first rank and stride."""
    ranks = ranks_of(args.group_ranks)
    size = as_int(args.group_size)
    if ranks and len(ranks) == size:
        return ranks
    first, stride = as_int(args.rank_start), as_int(args.rank_stride)
    if size > 0 and first >= 0 and stride > 0:
        return list(range(first, first + size * stride, stride))
    return []


def _event_table(fields: dict[str, Any], kind: NDArray[np.int8]) -> pa.Table:
    columns = dict(fields)
    columns["kind"] = pa.DictionaryArray.from_arrays(
        pa.array(kind.astype(np.int32)), pa.array(EVENT_KINDS, pa.string())
    )
    arrays = []
    for column in EVENTS:
        values = columns[column.name]
        values = pa.array(values) if isinstance(values, np.ndarray) else values
        arrays.append(values.cast(column.type))
    return pa.Table.from_arrays(arrays, schema=arrow_schema("events"))


def _info(
    meta: FileMetadata, fields: dict[str, Any], kind: NDArray[np.int8], losses: Losses
) -> RankInfo:
    counts = np.bincount(kind, minlength=len(EVENT_KINDS))
    device = fields["device"][np.isin(kind, [_CODE[k] for k in ("kernel", "memcpy", "memset")])]
    index = int(np.bincount(device[device >= 0]).argmax()) if (device >= 0).any() else 0
    rank = as_int(meta.distributed.get("rank"))
    return RankInfo(
        rank=rank,
        world_size=as_int(meta.distributed.get("world_size"), 0),
        host=meta.host,
        device_name=meta.devices[index] if index < len(meta.devices) else "",
        device_count=len(meta.devices),
        backend=str(meta.distributed.get("backend") or ""),
        rank_from="distributedInfo" if rank >= 0 else "",
        span_ns=(
            int(fields["start_ns"].min()),
            int((fields["start_ns"] + fields["dur_ns"]).max()),
        ),
        counts={k: int(n) for k, n in zip(EVENT_KINDS, counts, strict=True) if n},
        dropped=losses.as_list(),
        versions=meta.versions,
        labels=meta.labels,
    )
