"""Tables of one rank as Parquet files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from foretrace.traces.errors import IncompleteTraceError, TraceFormatError
from foretrace.traces.schema import OPTIONAL_TABLES, TABLES, arrow_schema
from foretrace.traces.storage import Folder

ROW_GROUP_ROWS = 1 << 16

# Columns that climb or repeat in runs: differences are far smaller than a dictionary.
_DELTA = (
    "start_ns",
    "time_ns",
    "correlation",
    "external_id",
    "call_event",
    "work_event",
    "wait_event",
    "rf_id",
    "source",
    "target",
)

_SORTED = ("start_ns", "time_ns")
"""Columns whose least and largest values tell a reader which rows it needs."""


def write_table(folder: Folder, name: str, table: pa.Table) -> None:
    """Write a table of one rank into the rank's folder."""
    schema = arrow_schema(name)
    left_out = {c.name for c in TABLES[name] if c.optional} - set(table.column_names)
    schema = pa.schema([field for field in schema if field.name not in left_out])
    if not table.schema.equals(schema):  # casting loads all of pyarrow.compute
        table = table.select(schema.names).cast(schema)
    climbing = [f.name for f in schema if f.name in _DELTA and pa.types.is_integer(f.type)]
    texts = [name for name in schema.names if name not in climbing]
    delta = dict.fromkeys(climbing, "DELTA_BINARY_PACKED")
    with folder.fs.open(folder.path(f"{name}.parquet"), "wb") as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            row_group_size=ROW_GROUP_ROWS,
            use_dictionary=texts,
            column_encoding=delta,
            write_statistics=[name for name in schema.names if name in _SORTED],
        )


def read_table(folder: Folder, rank: str, name: str, wanted: list[str]) -> pa.Table:
    """Read columns of a table of one rank.

    Args:
        folder: the trace set.
        rank: name of the rank's folder in it.
        name: table.
        wanted: columns in order.

    Returns:
        The table in one chunk; no rows where it is optional and was not recorded.

    Raises:
        IncompleteTraceError: the file or a column that cannot be left out is missing.
        TraceFormatError: the file is damaged.
    """
    path = folder.path(rank, f"{name}.parquet")
    if name in OPTIONAL_TABLES and not folder.fs.exists(path):
        return arrow_schema(name).empty_table().select(wanted)
    try:
        with _open(folder, path) as file:
            parquet = pq.ParquetFile(file)
            here = set(parquet.schema_arrow.names)
            kept = [c for c in wanted if c in here]
            table = parquet.read(columns=kept, use_threads=folder.is_local)
            rows = parquet.metadata.num_rows
    except FileNotFoundError:
        raise IncompleteTraceError(f"{path}: the file is gone; import or record it again") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise TraceFormatError(f"{path}: not a readable Parquet file ({error})") from None
    return _complete(table, name, wanted, rows).unify_dictionaries().combine_chunks()


def _open(folder: Folder, path: str) -> Any:
    """A file that Arrow can read.

    Arrow's threads must never be given a file that is a Python object: one that lets go of
    it while the interpreter ends takes the process down with it.
    """
    return pa.OSFile(path, "rb") if folder.is_local else folder.fs.open(path, "rb")


def _complete(table: pa.Table, name: str, wanted: list[str], rows: int) -> pa.Table:
    """Put in columns that an older writer left out, and order all as wanted."""
    columns = {c.name: c for c in TABLES[name]}
    arrays, here = [], set(table.column_names)
    for column in (columns[w] for w in wanted):
        if column.name in here:
            arrays.append(table[column.name])
        elif column.absent is None:
            raise IncompleteTraceError(f"table {name} lacks its column {column.name}")
        else:
            is_text = pa.types.is_dictionary(column.type)
            kind = pa.string() if is_text else column.type
            filled = pa.repeat(pa.scalar(column.absent, kind), rows)
            arrays.append(filled.dictionary_encode() if is_text else filled)
    schema = arrow_schema(name)
    return pa.Table.from_arrays(arrays, schema=pa.schema([schema.field(w) for w in wanted]))
