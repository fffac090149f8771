"""The tables of one rank, put together from its raw files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from foretrace.collector.lighttables import light_tables
from foretrace.collector.overlay import join_groups, overlay
from foretrace.collector.spool import KINETO_NAME, Recording, read_recording
from foretrace.traces.importers import kineto
from foretrace.traces.manifest import Dropped, RankInfo, StepInfo
from foretrace.traces.schema import arrow_schema
from foretrace.traces.store import RankTables

_CHUNK_BYTES = 1 << 24


def rank_tables(folder: Path) -> RankTables:
    """The tables of the rank whose raw files lie in ``folder``.

    Raises:
        TraceFormatError: a raw file is missing or damaged.
    """
    recording = read_recording(folder)
    full = recording.detail == "full"
    tables = _full(recording, folder / KINETO_NAME) if full else _light(recording)
    return _shifted(tables, recording.clock_offset_ns)


def _full(recording: Recording, path: Path) -> RankTables:
    tables = kineto.read(_chunks(path))
    groups, group_of = join_groups(recording.groups, tables.info.groups)
    events, collectives = overlay(tables.events, tables.collectives, recording, group_of)
    info = msgspec.structs.replace(
        _info(recording, tables.info), groups=groups, counts=counts_of(events)
    )
    return RankTables(info, events, collectives, tables.memory)


def _light(recording: Recording) -> RankTables:
    events, collectives = light_tables(recording)
    groups, _ = join_groups(recording.groups, [])
    info = msgspec.structs.replace(
        _info(recording, RankInfo(rank=recording.rank)),
        groups=groups,
        counts=counts_of(events),
        steps=[
            StepInfo(step=s.step, start_ns=s.start_ns, end_ns=s.end_ns, thread=s.thread)
            for s in recording.steps
        ],
        span_ns=(recording.start_ns, recording.end_ns),
    )
    return RankTables(info, events, collectives)


def counts_of(events: pa.Table) -> dict[str, int]:
    """Rows of each kind."""
    counted = pc.value_counts(events.column("kind")).to_pylist()
    return {str(each["values"]): int(each["counts"]) for each in counted}


def _info(recording: Recording, imported: RankInfo) -> RankInfo:
    """The rank's manifest: what the trace says, put right by what the rank itself knows."""
    dropped = list(imported.dropped)
    if recording.hook:
        reason = f"no collective hook: {recording.hook}; sizes are the profiler's own"
        dropped.append(Dropped(reason=reason, count=1))
    # The profiler's own labels name the raw file, which will be gone.
    labels = recording.environment | recording.labels
    labels |= {f"overhead.{name}": f"{value:.6g}" for name, value in recording.overhead.items()}
    return msgspec.structs.replace(
        imported,
        rank=recording.rank,
        world_size=recording.world_size,
        host=recording.host or imported.host,
        device_name=recording.device_name or imported.device_name,
        device_count=recording.device_count or imported.device_count,
        backend=recording.backend or imported.backend,
        source="foretrace.collector",
        rank_from="collector",
        clock_offset_ns=recording.clock_offset_ns,
        clock_samples=msgspec.to_builtins(recording.clock_samples),
        dropped=dropped,
        versions=imported.versions | recording.versions,
        detail=recording.detail,
        layout=recording.layout,
        labels=labels,
    )


def _shifted(tables: RankTables, offset_ns: int) -> RankTables:
    """The tables with ``offset_ns`` added to every time."""
    if not offset_ns:
        return tables
    info = tables.info
    steps = [
        msgspec.structs.replace(s, start_ns=s.start_ns + offset_ns, end_ns=s.end_ns + offset_ns)
        for s in info.steps
    ]
    span = (info.span_ns[0] + offset_ns, info.span_ns[1] + offset_ns)
    return RankTables(
        msgspec.structs.replace(info, steps=steps, span_ns=span),
        _added(tables.events, "events", "start_ns", offset_ns),
        tables.collectives,
        None if tables.memory is None else _added(tables.memory, "memory", "time_ns", offset_ns),
    )


def _added(table: pa.Table, name: str, column: str, offset_ns: int) -> pa.Table:
    at = table.schema.get_field_index(column)
    values = pc.add(table.column(column), pa.scalar(offset_ns, pa.int64()))
    return table.set_column(at, arrow_schema(name).field(column), values)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
