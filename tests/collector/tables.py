"""Small tables of events and recordings, written row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from foretrace.collector.spool import Call, Group, Recording
from foretrace.traces.schema import COLLECTIVES, EVENTS, arrow_schema

MAIN, WORKER, OTHER = 7, 100, 101


def events(*rows: dict[str, Any]) -> pa.Table:
    """Events out of partial rows; ``end`` may stand for a duration."""
    full = []
    for row in sorted(rows, key=lambda r: r["start_ns"]):
        given = dict(row)
        given["dur_ns"] = given.pop("end") - given["start_ns"]
        full.append({c.name: c.absent for c in EVENTS} | {"thread": MAIN} | given)
    return _table("events", EVENTS, full)


def collectives(*rows: dict[str, Any]) -> pa.Table:
    """Collectives out of partial rows."""
    absent: dict[str, Any] = {c.name: c.absent for c in COLLECTIVES} | {"p2p": False}
    return _table("collectives", COLLECTIVES, [absent | row for row in rows])


def _table(name: str, columns: Any, rows: list[dict[str, Any]]) -> pa.Table:
    arrays = []
    for column in columns:
        plain = pa.string() if pa.types.is_dictionary(column.type) else column.type
        arrays.append(pa.array([row[column.name] for row in rows], plain).cast(column.type))
    return pa.table(arrays, schema=arrow_schema(name))


def op(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"kind": "host_op", "name": name, "start_ns": start, "end": end} | more


def note(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"kind": "annotation", "name": name, "start_ns": start, "end": end} | more


def kernel(name: str, start: int, end: int, correlation: int, **more: Any) -> dict[str, Any]:
    place = {"device": 0, "stream": 20, "thread": -1, "correlation": correlation}
    return {"kind": "kernel", "name": name, "start_ns": start, "end": end} | place | more


def launch(start: int, correlation: int) -> dict[str, Any]:
    return {
        "kind": "runtime",
        "name": "cudaLaunchKernelExC",
        "start_ns": start,
        "end": start + 2,
        "correlation": correlation,
    }


def call(ident: int, operator: str, start: int, end: int, **more: Any) -> Call:
    given: dict[str, Any] = {
        "ident": ident,
        "operator": operator,
        "thread": MAIN,
        "start_ns": start,
        "end_ns": end,
        "group": 0,
        "seq": ident,
        "peer": -1,
        "bytes_in": 8,
        "bytes_out": 8,
        "dtype": "Float",
        "is_async": 1,
        "in_splits": None,
        "out_splits": None,
    }
    return Call(**(given | more))


def recording(*calls: Call, **more: Any) -> Recording:
    given: dict[str, Any] = {
        "rank": 1,
        "world_size": 4,
        "detail": "full",
        "backend": "gloo",
        "start_ns": 0,
        "end_ns": 10**6,
        "groups": [Group("0", "default_pg", [0, 1, 2, 3]), Group("1", "mesh_dp", [1, 3])],
        "calls": list(calls),
    }
    return Recording(**(given | more))


def column(table: pa.Table, name: str) -> list[Any]:
    return table.column(name).to_pylist()


def names_at(table: pa.Table, rows: list[int]) -> list[str]:
    names = column(table, "name")
    return [names[row] if row >= 0 else "" for row in rows]


def starts_at(table: pa.Table, rows: list[int]) -> list[int]:
    starts = np.asarray(table.column("start_ns").to_numpy())
    return [int(starts[row]) if row >= 0 else -1 for row in rows]
