"""Write the tables of a trace set as plain Parquet or CSV files, all ranks in each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.schema import OPTIONAL_TABLES, TABLES
from foretrace.traces.store import TraceSet

KINDS = ("csv", "parquet")


def export_tables(
    traces: TraceSet,
    folder: str | os.PathLike[str],
    kind: str,
    ranks: Sequence[int] | None = None,
) -> list[str]:
    """Write ``events``, ``collectives`` and, where recorded, the other tables.

    Each file holds all ranks, one after the other, with a column ``rank`` in front; one rank
    at a time is in memory. Lists become JSON texts in CSV.

    Args:
        traces: the trace set.
        folder: gets one file per table; a file that is there is replaced when the new one is
            whole.
        kind: "csv" or "parquet".
        ranks: which; None for all.

    Returns:
        The files written.

    Raises:
        TraceFormatError: ``kind`` is neither.
    """
    if kind not in KINDS:
        raise TraceFormatError(f"tables as {kind!r}: expected {' or '.join(KINDS)}")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name in TABLES:
        path = target / f"{name}.{kind}"
        if _write(traces, name, path, kind, traces.ranks if ranks is None else ranks):
            written.append(str(path))
    return written


def _write(traces: TraceSet, name: str, path: Path, kind: str, ranks: Sequence[int]) -> bool:
    """Whether there was anything to write."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    read: Callable[[int], pa.Table] = getattr(traces, name)
    rows = 0
    try:
        with ExitStack() as stack:
            writer = None
            for rank in ranks:
                table = _flat(_with_rank(read(rank), rank), kind)
                rows += len(table)
                if writer is None:
                    writer = stack.enter_context(_writer(part, table.schema, kind))
                writer.write_table(table)
        wanted = bool(rows) or name not in OPTIONAL_TABLES
        if wanted:
            part.replace(path)
        return wanted
    finally:
        part.unlink(missing_ok=True)


def _writer(path: Path, schema: pa.Schema, kind: str) -> Any:
    if kind == "csv":
        from pyarrow import csv

        return csv.CSVWriter(path, schema)
    from pyarrow import parquet

    return parquet.ParquetWriter(path, schema, compression="zstd")


def _with_rank(table: pa.Table, rank: int) -> pa.Table:
    import numpy as np

    ranks = pa.array(np.full(len(table), rank, np.int32))
    return table.add_column(0, pa.field("rank", pa.int32()), ranks)


def _flat(table: pa.Table, kind: str) -> pa.Table:
    """The table with columns that the kind of file can hold, the same ones for every rank."""
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            plain = table[field.name].cast(pa.string())
            table = table.set_column(place, pa.field(field.name, pa.string()), plain)
        elif pa.types.is_list(field.type) and kind == "csv":
            texts = pa.array([_text(v) for v in table[field.name].to_pylist()], pa.string())
            table = table.set_column(place, pa.field(field.name, pa.string()), texts)
    return table


def _text(values: Sequence[int] | None) -> str:
    return str(list(values)).replace(" ", "") if values else ""
