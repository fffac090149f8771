"""Tables of a rank out of plain lists and arrays, for formats that are read record by record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foretrace.traces import arrow
from foretrace.traces.schema import EVENT_KINDS, TABLES, arrow_schema

I64 = NDArray[np.int64]

TIMES_LABEL = "times"
"""Label of a rank whose times were not measured: "order" or "laid out"."""

NO_TIMES = "no times"
"""How the reason begins that says so."""


def table_of(name: str, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> pa.Table:
    """A table of the schema; columns that are not given hold what stands for "absent".

    Args:
        name: table of ``schema.TABLES``.
        columns: values by column, all of one length; Arrow arrays of the right type go as they are.

    Raises:
        KeyError: a column that cannot be absent is not given.
    """
    rows = len(next(iter(columns.values()), ()))
    arrays = []
    for column in TABLES[name]:
        if column.name in columns:
            arrays.append(_array(columns[column.name], column.type))
        elif pa.types.is_list(column.type):
            arrays.append(arrow.number_lists([()] * rows))
        elif pa.types.is_dictionary(column.type):
            arrays.append(arrow.coded(np.zeros(rows, np.int32), [""]))
        elif column.absent is None:
            raise KeyError(column.name)
        else:
            arrays.append(arrow.numbers(np.full(rows, column.absent), column.type))
    return pa.Table.from_arrays(arrays, schema=arrow_schema(name))


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if pa.types.is_dictionary(kind):
        return arrow.texts(values)
    if pa.types.is_list(kind):
        return arrow.number_lists(values)
    return arrow.numbers(values, kind)


def event_table(columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> tuple[pa.Table, I64]:
    """An events table in the order of its rows' starts.

    Args:
        columns: as for :func:`table_of`, in any order of rows.

    Returns:
        The table, and for each given row its place in it.
    """
    start = np.asarray(columns["start_ns"], np.int64)
    order = np.lexsort((-np.asarray(columns["dur_ns"], np.int64), start))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    table = table_of("events", columns)
    unchanged = (order == np.arange(len(order))).all()
    return table if unchanged else table.take(pa.array(order)), place


def counts_of(events: pa.Table) -> dict[str, int]:
    """Rows of an events table per kind."""
    kind = events["kind"].combine_chunks()
    counts = np.bincount(kind.indices.to_numpy(), minlength=len(kind.dictionary))
    by_kind = dict(zip(kind.dictionary.to_pylist(), counts.tolist(), strict=True))
    return {k: by_kind[k] for k in EVENT_KINDS if by_kind.get(k)}


def span_of(events: pa.Table) -> tuple[int, int]:
    """Start of the first and end of the last event, ns; zeros where there are none."""
    if not len(events):
        return 0, 0
    start, duration = events["start_ns"].to_numpy(), events["dur_ns"].to_numpy()
    return int(start.min()), int((start + duration).max())
