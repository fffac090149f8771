"""Turns one rank's recording into its folder of the trace set, in a process of its own.

Run as ``python -m foretrace.collector.convert``: the training process only writes raw files
and starts this, so that conversion takes neither its GIL nor its memory. Nothing here
imports torch.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from foretrace.collector.lighttables import light_tables
from foretrace.collector.overlay import join_groups, overlay
from foretrace.collector.spool import KINETO_NAME, Outcome, Recording, read_recording
from foretrace.traces.errors import ForetraceError
from foretrace.traces.importers import kineto
from foretrace.traces.manifest import Dropped, RankInfo, StepInfo
from foretrace.traces.schema import arrow_schema
from foretrace.traces.store import RankTables, TraceSetWriter

_CHUNK_BYTES = 1 << 24


def rank_tables(folder: Path) -> RankTables:
    """The tables of the rank whose raw files lie in ``folder``.

    Raises:
        TraceFormatError: a raw file is missing or damaged.
    """
    recording = read_recording(folder)
    if recording.detail == "light":
        events, collectives = light_tables(recording)
        groups, _ = join_groups(recording.groups, [])
        info = _info(recording, RankInfo(rank=recording.rank))
        counts = {
            str(v["values"]): int(v["counts"]) for v in pc.value_counts(events["kind"]).to_pylist()
        }
        steps = [
            StepInfo(step=s.step, start_ns=s.start_ns, end_ns=s.end_ns, thread=s.thread)
            for s in recording.steps
        ]
        info = msgspec.structs.replace(
            info,
            groups=groups,
            counts=counts,
            steps=steps,
            span_ns=(recording.start_ns, recording.end_ns),
        )
        return _shifted(RankTables(info, events, collectives), recording.clock_offset_ns)
    tables = kineto.read(_chunks(folder / KINETO_NAME))
    groups, group_of = join_groups(recording.groups, tables.info.groups)
    collectives = tables.collectives
    if not recording.hook:
        collectives = overlay(tables.events, collectives, recording, group_of)
    info = _info(recording, tables.info)
    info = msgspec.structs.replace(info, groups=groups if not recording.hook else info.groups)
    tables = RankTables(info, tables.events, collectives, tables.memory)
    return _shifted(tables, recording.clock_offset_ns)


def _info(recording: Recording, imported: RankInfo) -> RankInfo:
    """The rank's manifest: what the trace says, put right by what the rank itself knows."""
    dropped = list(imported.dropped)
    if recording.hook:
        reason = f"no collective hook: {recording.hook}; sizes are the profiler's own"
        dropped.append(Dropped(reason=reason, count=1))
    labels = imported.labels | recording.environment | recording.labels
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


def convert(folder: Path, target: str) -> Outcome:
    """Write the rank in ``folder`` into the trace set ``target``."""
    began = time.perf_counter()
    tables = rank_tables(folder)
    writer = TraceSetWriter(target)
    writer.write_rank(tables)
    columns = tables.collectives
    return Outcome(
        seconds=time.perf_counter() - began,
        events=len(tables.events),
        collectives=len(columns),
        matched=_known(columns, "call_event"),
        executed=_known(columns, "work_event"),
        bytes=_size(writer, tables.info.rank),
    )


def _known(table: pa.Table, column: str) -> int:
    return int(pc.sum(pc.greater_equal(table.column(column), 0)).as_py() or 0)


def _size(writer: TraceSetWriter, rank: int) -> int:
    from foretrace.traces.store import rank_folder

    if not writer.folder.is_local:
        return -1
    folder = Path(writer.folder.path(rank_folder(rank)))
    return sum(file.stat().st_size for file in folder.iterdir())


def main(arguments: list[str]) -> int:
    """``rank FOLDER TARGET`` converts one rank, ``join TARGET JOB`` writes the index."""
    try:
        if arguments[0] == "rank":
            outcome = convert(Path(arguments[1]), arguments[2])
        else:
            TraceSetWriter(arguments[1]).finish(**msgspec.json.decode(arguments[2]))
            outcome = Outcome()
    except (ForetraceError, OSError) as error:
        outcome = Outcome(error=str(error).splitlines()[0])
    sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
    return 2 if outcome.error else 0


if __name__ == "__main__":
    # The training job goes on beside this: stay out of its way.
    os.nice(10)
    pa.set_cpu_count(1)
    sys.exit(main(sys.argv[1:]))
