"""Literal trace sets of one rank with rows of every table, for the kernel and memory tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from foretrace.traces.manifest import RankInfo
from foretrace.traces.schema import TABLES, arrow_schema
from foretrace.traces.store import RankTables, TraceSet, TraceSetWriter


def rows_to_table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """A table of the trace set; columns a row leaves out take their absent value."""
    schema = arrow_schema(name)
    columns = {c.name: [row.get(c.name, c.absent) for row in rows] for c in TABLES[name]}
    return pa.table(
        {k: pa.array(v, schema.field(k).type) for k, v in columns.items()}, schema=schema
    )


def trace_set(
    path: Path, events: list[dict[str, Any]], *, collectives: list[dict[str, Any]] | None = None,
    memory: list[dict[str, Any]] | None = None,
) -> TraceSet:  # fmt: skip
    """Write and open a set of rank 0."""
    ordered = sorted(events, key=lambda row: row["start_ns"])
    info = RankInfo(rank=0, world_size=1, device_name="NVIDIA A100-SXM4-80GB", device_count=1)
    writer = TraceSetWriter(str(path))
    writer.write_rank(
        RankTables(
            info,
            rows_to_table("events", ordered),
            rows_to_table("collectives", collectives or []),
            rows_to_table("memory", memory) if memory is not None else None,
        )
    )
    writer.finish()
    return TraceSet.open(str(path))


def kernel(name: str, start: int, dur: int, **values: Any) -> dict[str, Any]:
    """A kernel row, ns."""
    shape = {"grid": "[10, 2, 1]", "block": "[128, 1, 1]"}
    base = {"kind": "kernel", "name": name, "start_ns": start, "dur_ns": dur, "device": 0}
    return base | {"stream": 7} | shape | values


def operator(
    name: str, start: int, dur: int, shapes: str, dtypes: str, **values: Any
) -> dict[str, Any]:
    """A host operator row with shapes, ns."""
    base = {"kind": "host_op", "name": name, "start_ns": start, "dur_ns": dur, "thread": 1}
    return base | {"shapes": shapes, "dtypes": dtypes} | values


def launch(start: int, correlation: int) -> dict[str, Any]:
    """A launch call row, ns."""
    return {
        "kind": "runtime", "name": "cudaLaunchKernel", "start_ns": start, "dur_ns": 1, "thread": 1,
        "correlation": correlation,
    }  # fmt: skip
