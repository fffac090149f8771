"""The tables of an Nsight Systems export to those of our ranks, one for each process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from foretrace.traces import arrow
from foretrace.traces.coded import Coded
from foretrace.traces.collectives import EventView, collective_table
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.groups import GroupTable
from foretrace.traces.importers.nsys_names import mark_style, operator_of
from foretrace.traces.importers.nsys_tables import ABSENT, I64, Tables
from foretrace.traces.importers.tables import counts_of, span_of
from foretrace.traces.manifest import RankInfo, StepInfo
from foretrace.traces.salvage import Losses
from foretrace.traces.schema import EVENT_KINDS, EVENTS, arrow_schema
from foretrace.traces.steps import Rows, assign_steps, find_steps
from foretrace.traces.store import RankTables

_CODE = {kind: code for code, kind in enumerate(EVENT_KINDS)}
_ON_DEVICE = [_CODE[k] for k in ("kernel", "memcpy", "memset", "sync")]
_PID_BITS, _TID_BITS = 24, 24
_NVTX_RANGES = (59, 60)  # push/pop, start/end; other types are marks and names
_COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD",
    9: "HtoH", 10: "PtoP", 11: "Unified HtoD", 12: "Unified DtoH", 13: "Unified DtoD",
}  # fmt: skip
_SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}


@dataclass(slots=True)
class _Events:
    """Events of all processes while they are gathered; numbers by column of the schema."""

    strings: dict[str, int] = field(default_factory=dict)
    parts: list[dict[str, I64]] = field(default_factory=list)

    def code(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def add(self, kind: str, columns: dict[str, I64]) -> None:
        rows = len(columns["start_ns"])
        if rows:
            self.parts.append({"kind": np.full(rows, _CODE[kind]), **columns})

    def column(self, name: str) -> I64:
        missing = self.code("") if name in _TEXTS else ABSENT
        parts = [p.get(name, np.full(len(p["kind"]), missing, np.int64)) for p in self.parts]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


_TEXTS = ("name", "shapes", "grid", "block")


def ranks_of_export(tables: Tables, losses: Losses) -> list[RankTables]:
    """One rank for each process that used a device, or else for each that wrote ranges.

    A rank's number is -1 where there is one process only; several are numbered by the device
    they mostly used, or by their process ids where they share devices.

    Raises:
        TraceFormatError: the export holds no events of CUDA or NVTX.
    """
    names = _string_table(tables)
    events = _Events()
    work = {
        kind: _device_rows(tables, table, kind, events, names, losses)
        for kind, table in _DEVICE_TABLES.items()
    }
    _api_rows(tables, events, names, losses)
    ranges = _nvtx_rows(tables, events, names, losses)
    if not events.parts:
        raise TraceFormatError(
            "no events of CUDA or NVTX in this export; profile with --trace=cuda,nvtx"
        )
    process = events.column("process")
    busy = [w for w in work.values() if len(w)] or [ranges, process]
    found = np.unique(busy[0] if len(busy[0]) else process)
    if any(len(w) for w in work.values()):
        found = np.unique(np.concatenate([w for w in work.values() if len(w)]))
    others = ~np.isin(process, found)
    losses.add("events of processes that used no device (left out)", int(others.sum()))
    columns = {c: events.column(c) for c in (*_NUMBERS, *_TEXTS, "kind", "start_ns", "dur_ns")}
    columns["start_ns"] += _session_start(tables, losses)
    texts = list(events.strings)
    ranks = [
        _rank({c: v[process == p] for c, v in columns.items()}, texts, int(p), tables, losses)
        for p in found
    ]
    return _numbered(ranks)


_NUMBERS = ("thread", "device", "stream", "correlation", "bytes", "graph_node", "sequence")
_DEVICE_TABLES = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
    "sync": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
}


def _string_table(tables: Tables) -> dict[int, str]:
    ids = tables.numbers("StringIds", ["id"])["id"].tolist()
    return dict(zip(ids, tables.texts("StringIds", "value"), strict=True))


def _process(packed: I64) -> I64:
    """Process id out of a globalPid or globalTid: hardware, machine, process, thread."""
    return (packed >> _TID_BITS) & ((1 << _PID_BITS) - 1)


def _times(rows: dict[str, I64], table: str, losses: Losses) -> dict[str, I64]:
    """Start and duration; durations below 0 become 0."""
    duration = rows["end"] - rows["start"]
    backwards = (duration < 0) & (rows["end"] != ABSENT)
    losses.add("negative duration set to 0 (kept)", int(backwards.sum()), table)
    return {"start_ns": rows["start"], "dur_ns": np.maximum(duration, 0)}


def _kept(rows: dict[str, I64], table: str, losses: Losses) -> dict[str, I64]:
    """Rows that begin and end; those still open when the recording stopped go."""
    whole = (rows["start"] >= 0) & (rows["end"] >= 0)
    losses.add(f"rows of {table} without a start or an end (left out)", int((~whole).sum()))
    return rows if whole.all() else {c: v[whole] for c, v in rows.items()}


def _device_rows(
    tables: Tables, table: str, kind: str, events: _Events, names: dict[int, str], losses: Losses
) -> I64:
    """Add what ran on devices; gives the process of each row."""
    place = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId")
    more = {
        "kernel": ("demangledName", "shortName", "mangledName", "name", *_SIZES),
        "memcpy": ("bytes", "copyKind"),
        "memset": ("bytes",),
        "sync": ("syncType",),
    }[kind]
    rows = _kept(tables.numbers(table, [*place, *more]), table, losses)
    process = _process(rows["globalPid"])
    columns = {
        **_times(rows, table, losses),
        "device": rows["deviceId"],
        "stream": rows["streamId"],
        "correlation": rows["correlationId"],
        "graph_node": np.where(rows["graphNodeId"] > 0, rows["graphNodeId"], ABSENT),
        "process": process,
    }
    if kind == "kernel":
        columns["name"] = _kernel_names(rows, events, names)
        columns["grid"], columns["block"] = (_triples(rows, w, events) for w in ("grid", "block"))
    elif kind == "memcpy":
        columns["name"] = _labels(rows["copyKind"], _COPY_KINDS, "Memcpy {}", events)
        columns["bytes"] = rows["bytes"]
    elif kind == "memset":
        columns["name"] = np.full(len(process), events.code("Memset (Device)"))
        columns["bytes"] = rows["bytes"]
    else:
        columns["name"] = _labels(rows["syncType"], _SYNC_KINDS, "{}", events)
        # a wait for an event or for all belongs to no stream
        columns["stream"] = np.where(rows["streamId"] >= 1 << 32, ABSENT, rows["streamId"])
    events.add(kind, columns)
    return process


_SIZES = tuple(f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ")


def _kernel_names(rows: dict[str, I64], events: _Events, names: dict[int, str]) -> I64:
    """The full name, else the short or mangled one, else the number of the first one given."""
    columns = [rows[c] for c in ("demangledName", "name", "shortName", "mangledName")]
    known = np.array(list(names), np.int64)
    ids = np.full(len(columns[0]), ABSENT)
    for wanted in (lambda c: np.isin(c, known), lambda c: c > 0):
        for column in columns:
            ids = np.where((ids == ABSENT) & wanted(column), column, ids)
    return _by_id(ids, names, events, "kernel")


def _by_id(ids: I64, names: dict[int, str], events: _Events, unknown: str) -> I64:
    used, inverse = np.unique(ids, return_inverse=True)
    codes = [events.code(names.get(i) or f"{unknown} {i}") for i in used.tolist()]
    return np.array(codes, np.int64)[inverse]


def _labels(values: I64, words: dict[int, str], form: str, events: _Events) -> I64:
    used, inverse = np.unique(values, return_inverse=True)
    codes = [events.code(form.format(words.get(v, f"kind {v}"))) for v in used.tolist()]
    return np.array(codes, np.int64)[inverse]


def _triples(rows: dict[str, I64], what: str, events: _Events) -> I64:
    sizes = np.stack([rows[f"{what}{axis}"] for axis in "XYZ"], axis=1)
    used, inverse = np.unique(sizes, axis=0, return_inverse=True)
    codes = [events.code(str(s).replace(" ", "") if s[0] >= 0 else "") for s in used.tolist()]
    return np.array(codes, np.int64)[inverse.reshape(-1)]


def _api_rows(tables: Tables, events: _Events, names: dict[int, str], losses: Losses) -> None:
    table = "CUPTI_ACTIVITY_KIND_RUNTIME"
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    rows = _kept(tables.numbers(table, columns), table, losses)
    found = _by_id(rows["nameId"], {i: _plain(n) for i, n in names.items()}, events, "call")
    events.add(
        "runtime",
        {
            **_times(rows, table, losses),
            "name": found,
            "thread": rows["globalTid"] & ((1 << _TID_BITS) - 1),
            "correlation": rows["correlationId"],
            "process": _process(rows["globalTid"]),
        },
    )


def _plain(name: str) -> str:
    """A call's name without the version of the interface: ``cudaLaunchKernel_v7000``."""
    head, mark, tail = name.rpartition("_v")
    return head if mark and tail.isdigit() else name


def _nvtx_rows(tables: Tables, events: _Events, names: dict[int, str], losses: Losses) -> I64:
    """Add annotations, and operators where PyTorch annotated them; gives their processes."""
    table = "NVTX_EVENTS"
    columns = ["start", "end", "eventType", "textId", "globalTid"]
    rows = tables.numbers(table, columns)
    texts = tables.texts(table, "text")
    is_range = np.isin(rows["eventType"], _NVTX_RANGES) | (rows["eventType"] == ABSENT)
    at = np.flatnonzero(is_range)
    texts = [texts[i] for i in at.tolist()]
    rows = {c: v[at] for c, v in rows.items()}
    ids = rows["textId"].tolist()
    full = [t or names.get(i, "") or "range" for t, i in zip(texts, ids, strict=True)]
    codes: dict[str, int] = {}
    rows["code"] = np.array([codes.setdefault(t, len(codes)) for t in full], np.int64)
    rows = _kept(rows, table, losses)
    process = _process(rows["globalTid"])
    _add_ranges(rows, list(codes), events, _times(rows, table, losses), process)
    return process


def _add_ranges(
    rows: dict[str, I64], texts: Sequence[str], events: _Events, times: dict[str, I64], process: I64
) -> None:
    """Ranges as operators, where PyTorch made them, or else as annotations."""
    operators = [operator_of(t) for t in texts]
    sequence = np.array([o[1] if o else ABSENT for o in operators], np.int64)
    shapes = np.array([events.code(o[2] if o else "") for o in operators], np.int64)
    name = np.array(
        [events.code(o[0] if o else t) for o, t in zip(operators, texts, strict=True)], np.int64
    )
    is_operator = np.array([o is not None for o in operators], np.bool_)
    code = rows["code"]
    for kind, here in (("host_op", True), ("annotation", False)):
        at = np.flatnonzero(is_operator[code] == here) if len(code) else code
        events.add(
            kind,
            {
                **{c: v[at] for c, v in times.items()},
                "name": name[code[at]],
                "sequence": sequence[code[at]],
                "shapes": shapes[code[at]],
                "thread": rows["globalTid"][at] & ((1 << _TID_BITS) - 1),
                "process": process[at],
            },
        )


def _session_start(tables: Tables, losses: Losses) -> int:
    """Time at which the session began, ns since 1970; 0 and a note where it is not known."""
    start = tables.numbers("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])["utcEpochNs"]
    if len(start) and start[0] > 0:
        return int(start[0])
    losses.add("start of the session unknown: times count from it")
    return 0


def _rank(
    columns: dict[str, I64], texts: list[str], process: int, tables: Tables, losses: Losses
) -> RankTables:
    own = Losses()
    order = np.lexsort((-columns["dur_ns"], columns["start_ns"]))
    sorted_ = {c: v[order] for c, v in columns.items()}
    steps = _fill_steps(sorted_, texts, own)
    groups = GroupTable(0)
    table = _event_table(sorted_, texts)
    collectives = collective_table(_view(sorted_, texts), {}, groups)
    devices = sorted_["device"][np.isin(sorted_["kind"], _ON_DEVICE)]
    device = int(np.bincount(devices[devices >= 0]).argmax()) if (devices >= 0).any() else -1
    info = RankInfo(
        rank=-1,
        host=_environment(tables, "Hostname"),
        device_name=_device_name(tables, device),
        device_count=len(tables.numbers("TARGET_INFO_GPU", ["id"])["id"]),
        groups=groups.groups,
        steps=steps,
        span_ns=span_of(table),
        counts=counts_of(table),
        dropped=[*losses.as_list(), *own.as_list()],
        versions=_versions(tables),
        labels={"process": str(process), "device": str(device)},
    )
    return RankTables(info, table, collectives)


def _fill_steps(columns: dict[str, I64], texts: list[str], losses: Losses) -> list[StepInfo]:
    """Fill in the step of every event and give the steps; marks get the profiler's name."""
    styles = np.array([mark_style(t) for t in texts], np.int64).reshape(-1, 2)
    style, number = styles[columns["name"]].T
    is_mark = (columns["kind"] == _CODE["annotation"]) & (style >= 0)
    marks = np.flatnonzero(is_mark & (style == style[is_mark].min(initial=9)))
    if len(marks) and style[marks[0]] > 0:
        losses.add(
            "step mark renamed to ProfilerStep#N", len(marks), texts[columns["name"][marks[0]]]
        )
        known = {t: i for i, t in enumerate(texts)}
        for row in marks.tolist():
            name = f"ProfilerStep#{number[row]}"
            if name not in known:
                known[name] = len(texts)
                texts.append(name)
            columns["name"][row] = known[name]
    rows = Rows(
        start_ns=columns["start_ns"],
        dur_ns=columns["dur_ns"],
        thread=columns["thread"],
        correlation=columns["correlation"],
        is_call=columns["kind"] == _CODE["runtime"],
        on_device=np.isin(columns["kind"], _ON_DEVICE),
    )
    steps = find_steps(rows, marks, number[marks])
    columns["step"] = assign_steps(rows, steps).astype(np.int64)
    return steps


def _coded(codes: I64, texts: list[str]) -> Coded:
    used, inverse = np.unique(codes, return_inverse=True)
    return Coded(inverse.astype(np.int32), [texts[i] for i in used.tolist()])


def _event_table(columns: dict[str, I64], texts: list[str]) -> pa.Table:
    rows = len(columns["start_ns"])
    arrays: list[Any] = []
    for column in EVENTS:
        if column.name == "kind":
            arrays.append(arrow.coded(columns["kind"].astype(np.int32), EVENT_KINDS))
        elif column.name in _TEXTS:
            coded = _coded(columns[column.name], texts)
            arrays.append(arrow.coded(coded.codes, coded.values))
        elif column.name in columns:
            arrays.append(arrow.numbers(columns[column.name], column.type))
        elif pa.types.is_dictionary(column.type):
            arrays.append(arrow.coded(np.zeros(rows, np.int32), [""]))
        else:
            arrays.append(arrow.numbers(np.full(rows, column.absent), column.type))
    return pa.Table.from_arrays(arrays, schema=arrow_schema("events"))


def _view(columns: dict[str, I64], texts: list[str]) -> EventView:
    empty = Coded(np.zeros(len(columns["kind"]), np.int32), [""])
    return EventView(
        kind=columns["kind"].astype(np.int8),
        name=_coded(columns["name"], texts),
        start_ns=columns["start_ns"],
        end_ns=columns["start_ns"] + columns["dur_ns"],
        thread=columns["thread"],
        stream=columns["stream"],
        correlation=columns["correlation"],
        external_id=np.full(len(columns["kind"]), ABSENT),
        shapes=_coded(columns["shapes"], texts),
        dtypes=empty,
        inputs=empty,
    )


def _environment(tables: Tables, key: str) -> str:
    table = "TARGET_INFO_SYSTEM_ENV"
    pairs = zip(tables.texts(table, "name"), tables.texts(table, "value"), strict=True)
    return next((value for name, value in pairs if name == key), "")


def _device_name(tables: Tables, device: int) -> str:
    ids = tables.numbers("TARGET_INFO_GPU", ["id"])["id"].tolist()
    names = tables.texts("TARGET_INFO_GPU", "name")
    return names[ids.index(device)] if device in ids else ""


def _versions(tables: Tables) -> dict[str, str]:
    table = "META_DATA_EXPORT"
    pairs = zip(tables.texts(table, "name"), tables.texts(table, "value"), strict=True)
    wanted = {"EXPORT_SCHEMA_VERSION": "nsys_schema", "EXPORT_PRODUCT_VERSION": "nsys"}
    return {wanted[name]: value for name, value in pairs if name in wanted}


def _numbered(ranks: list[RankTables]) -> list[RankTables]:
    """Number the processes of one export by their devices, if each has its own."""
    if len(ranks) < 2:
        return ranks
    devices = [int(r.info.labels["device"]) for r in ranks]
    if len(set(devices)) == len(devices) and min(devices) >= 0:
        ranks = [r for _, r in sorted(zip(devices, ranks, strict=True), key=lambda pair: pair[0])]
    for number, rank in enumerate(ranks):
        rank.info.rank, rank.info.rank_from = number, "order"
    return ranks
