"""PyTorch profiler (Kineto) JSON, of every era, to the tables of one rank."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foretrace.traces import arrow
from foretrace.traces.coded import Coded
from foretrace.traces.collectives import EventView, collective_table
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.groups import GroupTable
from foretrace.traces.importers import faults
from foretrace.traces.importers.ahead import ahead
from foretrace.traces.importers.collective_args import read_collective
from foretrace.traces.importers.columns import EventColumns, MemoryColumns
from foretrace.traces.importers.keys import ABSENT
from foretrace.traces.importers.metadata import FileMetadata, read_metadata
from foretrace.traces.importers.stream import EventStream
from foretrace.traces.manifest import RankInfo, StepInfo
from foretrace.traces.salvage import Losses
from foretrace.traces.schema import (
    DEVICE_WORK_KINDS,
    EVENT_KINDS,
    EVENTS,
    MEMORY,
    arrow_schema,
)
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
    "external_correlation": "other",
    "cuda_profiler_range": "other",
    "xpu_scope_profiler": "other",
    "hardware_counters": "other",
    "gpu_pm_counter": "other",
    "mtia_insight": "other",
    "mtia_counters": "other",
    "mtia_workloadd": "runtime",
    "": "host_op",  # the first profiler wrote no categories
}
_COLUMN_OF_KEY = {
    "name": "name",
    "Input Dims": "shapes",
    "Input type": "dtypes",
    "Concrete Inputs": "inputs",
    "grid": "grid",
    "block": "block",
    "correlation": "correlation",
    "External id": "external_id",
    "Sequence number": "sequence",
    "Fwd thread id": "fwd_thread",
    "bytes": "bytes",
    "graph node id": "graph_node",
    "wait_on_stream": "wait_stream",
    "wait_on_cuda_event_record_corr_id": "wait_correlation",
    "Record function id": "rf_id",
}
_NPU_TASKS = (
    (re.compile(r"(?:event|notify)_?(?:wait|record|reset)", re.IGNORECASE), "sync"),
    (re.compile(r"memcpy|sdma", re.IGNORECASE), "memcpy"),
    (re.compile(""), "kernel"),
)
MOST_DEVICES = 1 << 16
"""Larger numbers are process ids or damage."""
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
    stream = EventStream(chunks, losses, python)
    events = EventColumns(losses, python)
    memory = MemoryColumns(losses)
    for block in ahead(stream.blocks()):
        events.add(block)
        memory.add(block)
    if not stream.closed:
        losses.add("end of the file is missing (whole events kept)")
    meta = read_metadata(stream.head, stream.tail, stream.closed, losses)
    if not len(events):
        raise TraceFormatError(
            "it holds no events that last (ph X); was the profiler's window empty?"
        )
    if meta.base_lost:
        losses.add("base time lost: times are as written in the file")
    columns, order = _usable(events, losses)
    columns["start_ns"] += meta.base_ns
    _fill_columns(columns, losses)
    info = _info(meta, columns)
    groups = GroupTable(info.world_size, info.rank)
    groups.add_config(meta.distributed.get("pg_config"))
    collectives = _collectives(events.collectives, order, columns, groups, losses)
    info.groups = groups.groups
    info.steps = _fill_steps(columns)
    info.dropped = losses.as_list()
    return RankTables(info, _event_table(columns), collectives, _memory_table(memory, meta))


def _usable(events: EventColumns, losses: Losses) -> tuple[dict[str, Any], I64]:
    """Columns of the events that have a time of their own, and which row each was."""
    order = events.order()
    columns = events.finish(order)
    keep = faults.usable_rows(columns, losses)
    if not keep.all():
        order = order[keep]
        for key, values in columns.items():
            coded = isinstance(values, Coded)
            columns[key] = Coded(values.codes[keep], values.values) if coded else values[keep]
    return columns, order


def _fill_columns(columns: dict[str, Any], losses: Losses) -> None:
    """Turn the keys of events into the columns of the schema."""
    old_id = columns.pop("external id")
    columns["External id"] = np.where(
        columns["External id"] == ABSENT, old_id, columns["External id"]
    )
    for key, column in _COLUMN_OF_KEY.items():
        values = columns.pop(key)
        if not isinstance(values, Coded):
            values[values == ABSENT] = -1
        columns[column] = values
    columns["kind"] = kind = _kinds(columns, losses)
    on_device = np.isin(kind, [_CODE[k] for k in _ON_DEVICE])
    pid, tid = columns.pop("pid"), columns.pop("tid")
    stream, device = columns.pop("stream"), columns.pop("device")
    stream = np.where(stream == ABSENT, tid, stream)
    device = np.where((device == ABSENT) | (device < 0), pid, device)
    device = np.where((device < 0) | (device > MOST_DEVICES), ABSENT, device)
    columns["on_device"] = on_device
    columns["thread"] = np.where(on_device | (tid == ABSENT), -1, tid)
    columns["stream"] = np.where(on_device & (stream != ABSENT), stream, -1)
    columns["device"] = np.where(on_device & (device != ABSENT), device, -1)
    is_work = np.isin(kind, [_CODE[k] for k in DEVICE_WORK_KINDS])
    faults.cap_overruns(columns, is_work, losses)
    faults.note_clocks(columns, losses, kind == _CODE["runtime"], is_work)


def _kinds(columns: dict[str, Any], losses: Losses) -> NDArray[np.int8]:
    """Code of each event's kind, an index into EVENT_KINDS.

    What names a device and a stream of it is device work, even in a category of tomorrow.
    """
    category: Coded = columns.pop("cat")
    codes = [_CODE[_KIND_OF_CATEGORY.get(c.lower(), "other")] for c in category.values]
    kind = np.array(codes, np.int8)[category.codes]
    _name_npu_tasks(kind, category, columns)
    unknown = np.array([c.lower() not in _KIND_OF_CATEGORY for c in category.values])
    if unknown[category.codes].any():
        placed = (columns["device"] >= 0) & (columns["stream"] >= 0)
        kind[unknown[category.codes] & placed] = _CODE["kernel"]
        _note_unknown(category, unknown, placed, losses)
    is_mark = columns["name"].marked(lambda name: step_of_name(name) >= 0)
    kind[is_mark & (kind == _CODE["host_op"])] = _CODE["annotation"]
    return kind


def _name_npu_tasks(kind: NDArray[np.int8], category: Coded, columns: dict[str, Any]) -> None:
    """NPU profilers give no categories: what lies on a stream is a task of the device."""
    tasks = (category.codes == 0) & (columns["stream"] != ABSENT)
    if not tasks.any():
        return
    for pattern, word in _NPU_TASKS:
        named = tasks & columns["name"].marked(lambda name, p=pattern: bool(p.match(name)))
        kind[named] = _CODE[word]
        tasks &= ~named


def _note_unknown(
    category: Coded, unknown: NDArray[np.bool_], placed: NDArray[np.bool_], losses: Losses
) -> None:
    for code in np.flatnonzero(unknown).tolist():
        rows = category.codes == code
        work = int((rows & placed).sum())
        name = category.values[code]
        losses.add(f"unknown category {name!r} taken for device work", work)
        losses.add(f"unknown category {name!r} (kept as other)", int(rows.sum()) - work)


def _collectives(
    texts: dict[int, bytes],
    order: I64,
    columns: dict[str, Any],
    groups: GroupTable,
    losses: Losses,
) -> pa.Table:
    place = np.full(int(order.max()) + 1, -1, np.int64)
    place[order] = np.arange(len(order))
    rows = {r: int(place[r]) if r < len(place) else -1 for r in texts}
    found = {rows[r]: read_collective(text, losses) for r, text in texts.items() if rows[r] >= 0}
    view = EventView(
        kind=columns["kind"],
        name=columns["name"],
        start_ns=columns["start_ns"],
        end_ns=columns["start_ns"] + columns["dur_ns"],
        thread=columns["thread"],
        stream=columns["stream"],
        correlation=columns["correlation"],
        external_id=columns["external_id"],
        shapes=columns["shapes"],
        dtypes=columns["dtypes"],
        inputs=columns["inputs"],
    )
    return collective_table(view, {r: m for r, m in found.items() if m is not None}, groups)


def _fill_steps(columns: dict[str, Any]) -> list[StepInfo]:
    """Fill in the step of every event and give the steps."""
    rows = Rows(
        start_ns=columns["start_ns"],
        dur_ns=columns["dur_ns"],
        thread=columns["thread"],
        correlation=columns["correlation"],
        is_call=columns["kind"] == _CODE["runtime"],
        on_device=columns["on_device"],
    )
    names: Coded = columns["name"]
    number = np.array([step_of_name(n) for n in names.values], np.int64)[names.codes]
    marks = np.flatnonzero((number >= 0) & (columns["kind"] == _CODE["annotation"]))
    steps = find_steps(rows, marks, number[marks])
    columns["step"] = assign_steps(rows, steps)
    return steps


def _event_table(columns: dict[str, Any]) -> pa.Table:
    columns["kind"] = Coded(columns["kind"].astype(np.int32), list(EVENT_KINDS))
    arrays = []
    for column in EVENTS:
        values = columns[column.name]
        if isinstance(values, Coded):
            arrays.append(arrow.coded(values.codes, values.values))
        else:
            arrays.append(arrow.numbers(values, column.type))
    return pa.Table.from_arrays(arrays, schema=arrow_schema("events"))


def _memory_table(memory: MemoryColumns, meta: FileMetadata) -> pa.Table | None:
    columns = memory.finish()
    if not columns:
        return None
    values = {
        "time_ns": columns["ts"] + meta.base_ns,
        "thread": columns["tid"],
        "device_type": np.clip(columns["Device Type"], -1, 127),
        "device": columns["Device Id"],
        "address": columns["Addr"],
        "bytes": columns["Bytes"],
        "allocated_bytes": columns["Total Allocated"],
        "reserved_bytes": columns["Total Reserved"],
    }
    arrays = [
        arrow.numbers(np.where(values[c.name] == ABSENT, c.absent or 0, values[c.name]), c.type)
        for c in MEMORY
    ]
    return pa.Table.from_arrays(arrays, schema=arrow_schema("memory"))


def _info(meta: FileMetadata, columns: dict[str, Any]) -> RankInfo:
    kind = columns["kind"]
    counts = np.bincount(kind, minlength=len(EVENT_KINDS))
    device = columns["device"][np.isin(kind, [_CODE[k] for k in DEVICE_WORK_KINDS])]
    index = int(np.bincount(device[device >= 0]).argmax()) if (device >= 0).any() else 0
    rank = meta.integer("rank", -1)
    return RankInfo(
        rank=rank,
        world_size=meta.integer("world_size", 0),
        host=meta.host,
        device_name=meta.devices[index] if index < len(meta.devices) else "",
        device_count=len(meta.devices),
        backend=str(meta.distributed.get("backend") or ""),
        rank_from="distributedInfo" if rank >= 0 else "",
        span_ns=(
            int(columns["start_ns"][0]),
            int((columns["start_ns"] + columns["dur_ns"]).max()),
        ),
        counts={k: int(n) for k, n in zip(EVENT_KINDS, counts, strict=True) if n},
        versions=meta.versions,
        labels=meta.labels,
    )
