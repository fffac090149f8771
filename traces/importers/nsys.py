"""The tables of an Nsight Systems export to those of our ranks, one for each process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from foretrace.traces import arrow
from foretrace.traces.coded import Coded
from foretrace.traces.collectives import EventView, collective_table
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.groups import GroupTable
from foretrace.traces.importers.faults import cap_overruns, note_clocks
from foretrace.traces.importers.nsys_names import mark_style
from foretrace.traces.importers.nsys_rows import (
    LATEST_NS,
    NUMBERS,
    TEXTS,
    Events,
    Export,
    api_rows,
    device_rows,
    nvtx_rows,
)
from foretrace.traces.importers.nsys_tables import ABSENT, I64, Tables
from foretrace.traces.importers.numbering import BY_PROCESS
from foretrace.traces.importers.tables import counts_of, span_of, table_of
from foretrace.traces.manifest import RankInfo, StepInfo
from foretrace.traces.salvage import Losses
from foretrace.traces.schema import EVENT_KINDS
from foretrace.traces.steps import Rows, assign_steps, find_steps
from foretrace.traces.store import RankTables

_CODE = {kind: code for code, kind in enumerate(EVENT_KINDS)}
_ON_DEVICE = [_CODE[k] for k in ("kernel", "memcpy", "memset", "sync")]


def ranks_of_export(tables: Tables, losses: Losses) -> list[RankTables]:
    """One rank for each process that used a device, or else for each that wrote ranges.

    A rank's number is -1 where there is one process only; several are numbered by the device
    they mostly used, or by their process ids where they share devices.

    Raises:
        TraceFormatError: the export holds no events of CUDA or NVTX.
    """
    export, events = Export.of(tables, losses), Events()
    working = device_rows(export, events)
    api_rows(export, events)
    ranges = nvtx_rows(export, events)
    if not events.parts:
        raise TraceFormatError(
            "no events of CUDA or NVTX in this export; profile with --trace=cuda,nvtx"
        )
    process = events.column("process")
    found = np.unique(next((p for p in (working, ranges) if len(p)), process))
    others = int((~np.isin(process, found)).sum())
    losses.add("events of processes that used no device (left out)", others)
    columns = {c: events.column(c) for c in ("kind", "start_ns", "dur_ns", *NUMBERS, *TEXTS)}
    columns["start_ns"] += _session_start(export)
    texts = list(events.strings)
    ranks = [
        _rank({c: v[process == p] for c, v in columns.items()}, list(texts), int(p), export)
        for p in found
    ]
    return _numbered(ranks)


def _session_start(export: Export) -> int:
    """Time at which the session began, ns since 1970; 0 and a note where it is not known."""
    found = export.tables.read("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])
    start = found.numbers["utcEpochNs"]
    if len(start) and 0 < start[0] < LATEST_NS:
        return int(start[0])
    export.losses.add("start of the session unknown: times count from it")
    return 0


def _rank(columns: dict[str, I64], texts: list[str], process: int, export: Export) -> RankTables:
    own = Losses()
    order = np.lexsort((-columns["dur_ns"], columns["start_ns"]))
    columns = {c: v[order] for c, v in columns.items()}
    _mend(columns, texts, own)
    steps = _fill_steps(columns, texts, own)
    groups = GroupTable(0)
    words = {name: _coded(columns[name], texts) for name in TEXTS}
    table = _event_table(columns, words)
    collectives = collective_table(_view(columns, words), {}, groups)
    device = _main_device(columns)
    gpus = export.tables.read("TARGET_INFO_GPU", ["id"], ["name"])
    names = dict(zip(gpus.numbers["id"].tolist(), gpus.texts["name"], strict=True))
    info = RankInfo(
        rank=-1,
        host=_value_of(export, "TARGET_INFO_SYSTEM_ENV", "Hostname"),
        device_name=names.get(device, ""),
        device_count=len(names),
        groups=groups.groups,
        steps=steps,
        span_ns=span_of(table),
        counts=counts_of(table),
        dropped=[*export.losses.as_list(), *own.as_list()],
        versions=_versions(export),
        labels={"process": str(process), "device": str(device)},
    )
    return RankTables(info, table, collectives)


def _main_device(columns: dict[str, I64]) -> int:
    """The device that most rows lie on, -1 if none does."""
    devices = columns["device"][np.isin(columns["kind"], _ON_DEVICE)]
    used, count = np.unique(devices[devices >= 0], return_counts=True)
    return int(used[count.argmax()]) if len(used) else -1


def _mend(columns: dict[str, I64], texts: list[str], losses: Losses) -> None:
    """Cut durations that cannot be, and count what clocks got wrong."""
    on_device = np.isin(columns["kind"], _ON_DEVICE)
    is_work = on_device & (columns["kind"] != _CODE["sync"])
    view = {**columns, "name": _coded(columns["name"], texts)}
    cap_overruns(view, is_work, losses)
    note_clocks(view, losses, columns["kind"] == _CODE["runtime"], on_device)


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
    used = np.flatnonzero(np.bincount(codes, minlength=len(texts)))
    place = np.zeros(len(texts), np.int32)
    place[used] = np.arange(len(used))
    return Coded(place[codes], [texts[i] for i in used.tolist()])


def _event_table(columns: dict[str, I64], words: dict[str, Coded]) -> pa.Table:
    given: dict[str, Any] = {c: v for c, v in columns.items() if c not in TEXTS}
    given["kind"] = arrow.coded(columns["kind"].astype(np.int32), EVENT_KINDS)
    for name, coded in words.items():
        given[name] = arrow.coded(coded.codes, coded.values)
    return table_of("events", given)


def _view(columns: dict[str, I64], words: dict[str, Coded]) -> EventView:
    empty = Coded(np.zeros(len(columns["kind"]), np.int32), [""])
    return EventView(
        kind=columns["kind"].astype(np.int8),
        name=words["name"],
        start_ns=columns["start_ns"],
        end_ns=columns["start_ns"] + columns["dur_ns"],
        thread=columns["thread"],
        stream=columns["stream"],
        correlation=columns["correlation"],
        external_id=np.full(len(columns["kind"]), ABSENT),
        shapes=words["shapes"],
        dtypes=empty,
        inputs=empty,
    )


def _value_of(export: Export, table: str, key: str) -> str:
    found = export.tables.read(table, [], ["name", "value"]).texts
    pairs = zip(found["name"], found["value"], strict=True)
    return next((value for name, value in pairs if name == key), "")


def _versions(export: Export) -> dict[str, str]:
    wanted = {"nsys_schema": "EXPORT_SCHEMA_VERSION", "nsys": "EXPORT_PRODUCT_VERSION"}
    found = {k: _value_of(export, "META_DATA_EXPORT", key) for k, key in wanted.items()}
    return {k: v for k, v in found.items() if v}


def _numbered(ranks: list[RankTables]) -> list[RankTables]:
    """Number the processes of one export by their devices, if each has its own."""
    if len(ranks) < 2:
        return ranks
    devices = [int(r.info.labels["device"]) for r in ranks]
    if len(set(devices)) == len(devices) and min(devices) >= 0:
        ranks = [ranks[i] for i in np.argsort(devices).tolist()]
    for number, rank in enumerate(ranks):
        rank.info.rank, rank.info.rank_from = number, BY_PROCESS
        if number:  # what concerns the whole export is told once
            rank.info.dropped = [d for d in rank.info.dropped if d not in ranks[0].info.dropped]
    return ranks
