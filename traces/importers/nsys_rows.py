"""Rows of an Nsight Systems export as events: device work, calls of CUDA and NVTX ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from foretrace.traces.importers.nsys_names import operator_of
from foretrace.traces.importers.nsys_tables import ABSENT, I64, Tables
from foretrace.traces.salvage import Losses
from foretrace.traces.schema import EVENT_KINDS

TEXTS = ("name", "shapes", "grid", "block")
NUMBERS = ("thread", "device", "stream", "correlation", "bytes", "graph_node", "sequence")
LATEST_NS = 1 << 61
"""No time lies beyond; what claims to is damaged."""

_CODE = {kind: code for code, kind in enumerate(EVENT_KINDS)}
_MOST_DEVICES = 1 << 16
_PID_BITS = _TID_BITS = 24
_TID = (1 << _TID_BITS) - 1
_NVTX_RANGES = (59, 60)  # push/pop, start/end; other types are marks and names
_COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD",
    9: "HtoH", 10: "PtoP", 11: "Unified HtoD", 12: "Unified DtoH", 13: "Unified DtoD",
}  # fmt: skip
_SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_API = "CUPTI_ACTIVITY_KIND_RUNTIME"
_NVTX = "NVTX_EVENTS"
_DEVICE_TABLES = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
    "sync": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
}
USED = (
    *_DEVICE_TABLES.values(),
    *(_API, _NVTX, "StringIds", "TARGET_INFO_GPU", "TARGET_INFO_SYSTEM_ENV"),
    *("TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT"),
)
"""Tables that are read; exports have many more."""
_NAMES = ("demangledName", "name", "shortName", "mangledName")
_SIZES = tuple(f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ")
_MORE = {
    "kernel": (*_NAMES, *_SIZES),
    "memcpy": ("bytes", "copyKind"),
    "memset": ("bytes",),
    "sync": ("syncType",),
}
_PLACE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId")


@dataclass(slots=True)
class Events:
    """Events of all processes while they are gathered.

    Attributes:
        strings: distinct texts and their codes.
        parts: blocks of rows; texts as codes.
    """

    strings: dict[str, int] = field(default_factory=dict)
    parts: list[dict[str, I64]] = field(default_factory=list)

    def code(self, text: str) -> int:
        """Code of a text."""
        return self.strings.setdefault(text, len(self.strings))

    def codes(self, values: I64, word: Callable[[int], str]) -> I64:
        """Codes of the texts that numbers stand for; ``word`` is asked once for each."""
        used, inverse = np.unique(values, return_inverse=True)
        found = np.array([self.code(word(v)) for v in used.tolist()], np.int64)
        return found[inverse] if len(found) else np.zeros(0, np.int64)

    def add(self, kind: str, columns: dict[str, I64]) -> None:
        """Add rows of one kind."""
        rows = len(columns["start_ns"])
        if rows:
            self.parts.append({"kind": np.full(rows, _CODE[kind]), **columns})

    def column(self, name: str) -> I64:
        """All rows of one column."""
        missing = self.code("") if name in TEXTS else ABSENT
        parts = [p.get(name, np.full(len(p["kind"]), missing, np.int64)) for p in self.parts]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Export:
    """One export while it is read.

    Attributes:
        tables: its tables.
        names: its texts by number.
        losses: told about what is left out.
    """

    tables: Tables
    names: dict[int, str]
    losses: Losses

    @classmethod
    def of(cls, tables: Tables, losses: Losses) -> Export:
        """Read the texts."""
        found = tables.read("StringIds", ["id"], ["value"])
        pairs = zip(found.numbers["id"].tolist(), found.texts["value"], strict=True)
        return cls(tables, dict(pairs), losses)

    def kept(self, rows: dict[str, I64], table: str) -> dict[str, I64]:
        """Rows that begin and end; those still open when the recording stopped go."""
        whole = (rows["start"] >= 0) & (rows["end"] >= 0)
        whole &= (rows["start"] < LATEST_NS) & (rows["end"] < LATEST_NS)
        what = f"rows of {table} without a start or an end (left out)"
        self.losses.add(what, int((~whole).sum()))
        return rows if whole.all() else {c: v[whole] for c, v in rows.items()}

    def times(self, rows: dict[str, I64], table: str) -> dict[str, I64]:
        """Start and duration; durations below 0 become 0."""
        duration = rows["end"] - rows["start"]
        self.losses.add("negative duration set to 0 (kept)", int((duration < 0).sum()), table)
        return {"start_ns": rows["start"], "dur_ns": np.maximum(duration, 0)}


def process_of(packed: I64) -> I64:
    """Process id out of a globalPid or globalTid: hardware, machine, process, thread."""
    return (packed >> _TID_BITS) & ((1 << _PID_BITS) - 1)


def device_rows(export: Export, events: Events) -> I64:
    """Add what ran on devices; gives the processes."""
    processes = [np.zeros(0, np.int64)]
    for kind, table in _DEVICE_TABLES.items():
        rows = export.kept(export.tables.read(table, [*_PLACE, *_MORE[kind]]).numbers, table)
        processes.append(process_of(rows["globalPid"]))
        stream = rows["streamId"]
        if kind == "sync":  # a wait for an event or for everything belongs to no stream
            stream = np.where(stream >= 1 << 32, ABSENT, stream)
        columns = {
            **export.times(rows, table),
            "device": np.where(rows["deviceId"] < _MOST_DEVICES, rows["deviceId"], ABSENT),
            "stream": stream,
            "correlation": rows["correlationId"],
            "graph_node": np.where(rows["graphNodeId"] > 0, rows["graphNodeId"], ABSENT),
            "process": processes[-1],
        }
        events.add(kind, columns | _particulars(kind, rows, export, events))
    return np.concatenate(processes)


def _particulars(kind: str, rows: dict[str, I64], export: Export, events: Events) -> dict[str, I64]:
    """The columns that only this kind of work has."""
    if kind == "kernel":
        return {
            "name": _kernel_names(rows, export, events),
            **{what: _triples(rows, what, events) for what in ("grid", "block")},
        }
    if kind == "memset":
        name = np.full(len(rows["start"]), events.code("Memset (Device)"))
        return {"name": name, "bytes": rows["bytes"]}
    if kind == "memcpy":
        name = events.codes(rows["copyKind"], lambda k: f"Memcpy {_COPY_KINDS.get(k, k)}")
        return {"name": name, "bytes": rows["bytes"]}
    return {"name": events.codes(rows["syncType"], lambda k: _SYNC_KINDS.get(k, f"Sync {k}"))}


def _kernel_names(rows: dict[str, I64], export: Export, events: Events) -> I64:
    """The full name, else the short or mangled one, else the number of the first one given."""
    known = np.array(list(export.names), np.int64)
    ids = np.full(len(rows["start"]), ABSENT)
    for column in _NAMES:
        ids = np.where((ids == ABSENT) & np.isin(rows[column], known), rows[column], ids)
    for column in _NAMES:
        ids = np.where((ids == ABSENT) & (rows[column] > 0), rows[column], ids)
    return events.codes(ids, lambda i: export.names.get(i) or f"kernel {i}")


def _triples(rows: dict[str, I64], what: str, events: Events) -> I64:
    sizes = np.stack([rows[f"{what}{axis}"] for axis in "XYZ"], axis=1)
    used, inverse = np.unique(sizes, axis=0, return_inverse=True)
    words = [str(s).replace(" ", "") if s[0] >= 0 else "" for s in used.tolist()]
    return events.codes(inverse.reshape(-1), lambda i: words[i])


def api_rows(export: Export, events: Events) -> None:
    """Add the calls of CUDA."""
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    rows = export.kept(export.tables.read(_API, columns).numbers, _API)
    events.add(
        "runtime",
        {
            **export.times(rows, _API),
            "name": events.codes(
                rows["nameId"], lambda i: _plain(export.names.get(i) or f"call {i}")
            ),
            "thread": rows["globalTid"] & _TID,
            "correlation": rows["correlationId"],
            "process": process_of(rows["globalTid"]),
        },
    )


def _plain(name: str) -> str:
    """A call's name without the version of the interface: ``cudaLaunchKernel_v7000``."""
    head, mark, tail = name.rpartition("_v")
    return head if mark and tail.isdigit() else name


def nvtx_rows(export: Export, events: Events) -> I64:
    """Add annotations, and operators where PyTorch annotated them; gives their processes."""
    found = export.tables.read(
        _NVTX, ["start", "end", "eventType", "textId", "globalTid"], ["text"]
    )
    rows, ids = found.numbers, found.numbers["textId"].tolist()
    full = [
        t or export.names.get(i) or "range" for t, i in zip(found.texts["text"], ids, strict=True)
    ]
    codes: dict[str, int] = {}
    rows["code"] = np.array([codes.setdefault(t, len(codes)) for t in full], np.int64)
    is_range = np.isin(rows["eventType"], _NVTX_RANGES) | (rows["eventType"] == ABSENT)
    rows = export.kept({c: v[is_range] for c, v in rows.items()}, _NVTX)
    _add_ranges(rows, list(codes), events, export.times(rows, _NVTX))
    return process_of(rows["globalTid"])


def _add_ranges(
    rows: dict[str, I64], texts: Sequence[str], events: Events, times: dict[str, I64]
) -> None:
    """Ranges as operators, where PyTorch made them, or else as annotations."""
    found = [operator_of(t) for t in texts]
    is_operator = np.array([o is not None for o in found], np.bool_)
    operators = [o or (t, ABSENT, "") for o, t in zip(found, texts, strict=True)]
    for kind, wanted in (("host_op", True), ("annotation", False)):
        at = np.flatnonzero(is_operator[rows["code"]] == wanted)
        code = rows["code"][at]
        sequence = np.array([o[1] for o in operators], np.int64)
        events.add(
            kind,
            {
                **{c: v[at] for c, v in times.items()},
                "name": events.codes(code, lambda i: operators[i][0]),
                "sequence": sequence[code],
                "shapes": events.codes(code, lambda i: operators[i][2]),
                "thread": rows["globalTid"][at] & _TID,
                "process": process_of(rows["globalTid"][at]),
            },
        )
