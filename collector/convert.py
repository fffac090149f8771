"""Turns one rank's recording into its folder of the trace set, in a process of its own.

Run as ``python -m foretrace.collector.convert``: the training process only writes raw files
and starts this, so that conversion takes neither its GIL nor its memory. Nothing here
imports torch.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from foretrace.collector.ranktables import rank_tables
from foretrace.collector.spool import Outcome
from foretrace.traces.errors import ForetraceError
from foretrace.traces.store import TraceSetWriter, rank_folder


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
