"""The tables of one dry-run rank, with the marks of its training steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from foretrace.collector.annotations import event_table, with_annotations
from foretrace.collector.dryrun.spec import Mark, Record
from foretrace.collector.overlay import as_table, call_row, join_groups, moved_events
from foretrace.collector.ranktables import counts_of, rank_tables
from foretrace.collector.spool import Step, Wait
from foretrace.traces.importers.tables import NO_TIMES, TIMES_LABEL
from foretrace.traces.manifest import Dropped, RankInfo, StepInfo
from foretrace.traces.schema import arrow_schema
from foretrace.traces.store import RankTables

FORWARD, BACKWARD = 1, 2
"""Threads of operators without data."""

_ALONE = "communication took no time: the other ranks were not there"


def dry_tables(folder: Path, record: Record) -> RankTables:
    """The tables of a rank.

    Args:
        folder: its raw files.
        record: what it handed back.

    Raises:
        TraceFormatError: a raw file is missing or damaged.
    """
    tables = _ticked(record) if record.fake else rank_tables(folder)
    dropped = [*tables.info.dropped, Dropped(reason=_ALONE, count=len(tables.collectives))]
    dropped += [Dropped(reason=note, count=1) for note in record.notes]
    info = msgspec.structs.replace(
        tables.info, dropped=dropped, source="foretrace.collector.dryrun", rank_from="collector"
    )
    marked = msgspec.structs.replace(info, steps=[])
    return _with_steps(RankTables(marked, tables.events, tables.collectives), steps_of(record))


def steps_of(record: Record) -> list[Step]:
    """Training steps: each ends when an optimizer has stepped, the last before a forward pass.

    The first begins with the first forward pass, every other where the one before has ended.
    """
    ends: list[Mark] = []
    for mark in record.marks:
        if mark.forward or not ends:
            ends.append(mark)
        ends[-1] = mark
    start, steps = record.first, []
    for number, end in enumerate(ends):
        thread = FORWARD if record.fake else end.thread
        steps.append(Step(number, max(start, 0), end.time, thread))
        start = end.time
    return steps


def _with_steps(tables: RankTables, steps: Sequence[Step]) -> RankTables:
    events, collectives = tables.events, tables.collectives
    for step in steps:
        span = Wait(-1, step.thread, step.start_ns, step.end_ns, annotated=True)
        events, moved = with_annotations(events, [span], f"ProfilerStep#{step.step}")
        collectives = moved_events(collectives, moved)
    start = np.asarray(events.column("start_ns").to_numpy(), np.int64)
    number = np.full(len(start), -1, np.int32)
    for step in steps:
        number[(start >= step.start_ns) & (start < step.end_ns)] = step.step
    at = events.schema.get_field_index("step")
    field = arrow_schema("events").field("step")
    events = events.set_column(at, field, pa.array(number, pa.int32()))
    info = msgspec.structs.replace(
        tables.info,
        counts=counts_of(events),
        steps=[
            StepInfo(step=s.step, start_ns=s.start_ns, end_ns=s.end_ns, thread=s.thread)
            for s in steps
        ],
    )
    return RankTables(info, events, collectives)


def _ticked(record: Record) -> RankTables:
    """Tables of tensors without data: all calls in order, none of any duration."""
    recording, operations = record.recording, record.operations
    rows = [(o.tick, o.name, o.shapes, o.dtypes, o.backward) for o in operations]
    calls = recording.calls
    rows += [(c.start_ns, f"c10d::{c.operator}", "", "", c.backward >= 0) for c in calls]
    order = sorted(range(len(rows)), key=lambda i: rows[i][0])
    place = {at: row for row, at in enumerate(order)}
    ticks, names, shapes, dtypes, backward = zip(*(rows[i] for i in order), strict=True)
    events = event_table(
        {
            "kind": ["host_op"] * len(rows),
            "name": names,
            "start_ns": np.array(ticks, np.int64),
            "dur_ns": np.zeros(len(rows), np.int64),
            "thread": [BACKWARD if late else FORWARD for late in backward],
            "shapes": shapes,
            "dtypes": dtypes,
        },
        len(rows),
    )
    collectives = as_table(
        [
            call_row(call, recording) | {"call_event": place[len(operations) + i]}
            for i, call in enumerate(calls)
        ]
    )
    groups, _ = join_groups(recording.groups, [])
    info = RankInfo(
        rank=recording.rank,
        world_size=recording.world_size,
        backend=recording.backend,
        groups=groups,
        span_ns=(recording.start_ns, recording.end_ns),
        dropped=[
            Dropped(
                reason=f"{NO_TIMES} in a dry run without data: start_ns counts the calls, "
                "durations are 0",
                count=len(rows),
            )
        ],
        versions=recording.versions,
        layout=recording.layout,
        labels=recording.environment | recording.labels | {TIMES_LABEL: "order"},
    )
    return RankTables(info, events, collectives)
