"""Adds rows to a table of events that other tables point into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from foretrace.collector.spool import Wait
from foretrace.traces.schema import EVENTS, arrow_schema

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Moved:
    """Where rows of events went.

    Attributes:
        new: new row of each old row, shape ``(old events,)``.
        added: row of each added event.
    """

    new: I64
    added: I64

    def old(self, rows: I64) -> I64:
        """New rows for old ones; -1 stays -1."""
        if not len(self.new):
            return rows
        return np.where(rows >= 0, self.new[np.maximum(rows, 0)], -1)


def with_annotations(events: pa.Table, spans: Sequence[Wait], name: str) -> tuple[pa.Table, Moved]:
    """``events`` with an annotation row for each of ``spans``, still sorted by start.

    Args:
        events: columns of ``schema.EVENTS``, sorted.
        spans: what to mark.
        name: name of the marks.
    """
    given = np.asarray(events.column("start_ns").to_numpy(), np.int64)
    start = np.array([span.start_ns for span in spans], np.int64)
    dur = np.array([span.end_ns for span in spans], np.int64) - start
    before = np.searchsorted(given, start, side="right") - 1
    steps = np.asarray(events.column("step").to_numpy(), np.int32)
    columns: dict[str, Any] = {
        "kind": ["annotation"] * len(spans),
        "name": [name] * len(spans),
        "start_ns": start,
        "dur_ns": dur,
        "thread": [span.thread for span in spans],
        "step": steps[np.maximum(before, 0)],
    }
    joined = pa.concat_tables([events, event_table(columns, len(spans))]).unify_dictionaries()
    order = np.argsort(np.concatenate([given, start]), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    moved = Moved(place[: len(given)], place[len(given) :])
    return joined.take(pa.array(order)).combine_chunks(), moved


def as_annotations(events: pa.Table, name: str) -> pa.Table:
    """``events`` with all rows of ``name`` of kind annotation: they are no work."""
    marked = pc.equal(events.column("name"), name)
    if not pc.any(marked).as_py():
        return events
    at = events.schema.get_field_index("kind")
    kinds = pc.if_else(marked, "annotation", events.column("kind").cast(pa.string()))
    return events.set_column(at, events.schema.field(at), kinds.cast(events.schema.field(at).type))


def event_table(columns: dict[str, Any], rows: int) -> pa.Table:
    """A table of events out of some columns; all others are absent."""
    arrays = []
    for column in EVENTS:
        values = columns.get(column.name, [column.absent] * rows)
        plain = pa.string() if pa.types.is_dictionary(column.type) else column.type
        arrays.append(pa.array(values, plain).cast(column.type))
    return pa.table(arrays, schema=arrow_schema("events"))
