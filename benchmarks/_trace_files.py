"""Trace files of every format as bytes, for the fuzzers: real ones, and made ones where none are.

No flight recorder dump and no Nsight Systems export is among the real traces, so these are made
here with the keys and tables that the real ones have.
"""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from foretrace.traces.importers.registry import FORMATS, format_of, reads_folders
from foretrace.traces.importers.sources import ends_of

ARCHIVE = "archive"
OTHER = "no trace"
CALLS = 40
TEXT_ROWS = 400
DAY_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file.

    Attributes:
        name: without its folder.
        data: content, uncompressed unless it is an archive.
        kind: name of its format.
        beside: other files of its folder that are read with it, by name.
    """

    name: str
    data: bytes
    kind: str
    beside: dict[str, bytes] = field(default_factory=dict)


def trace_files(folder: Path | None) -> list[TraceFile]:
    """All files of a folder, archives and their first members among them, and the made ones."""
    files = [*made_files()]
    for place in sorted({p.parent for p in folder.rglob("*")} if folder else ()):
        inside = [_named(n, d) for p in sorted(place.iterdir()) for n, d in _contents(p)]
        for file in inside:
            others = {f.name: f.data for f in inside if f.kind == file.kind and f is not file}
            together = file.kind in {f.NAME for f in FORMATS if reads_folders(f)}
            files.append(TraceFile(file.name, file.data, file.kind, others if together else {}))
    return files


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and plain content of a file, of an archive's first members, of a table as text."""
    if not path.is_file() or path.name.endswith((".csv", ".yaml")):
        return
    data = path.read_bytes()
    if path.name.endswith((".tar.gz", ".tgz")):
        yield path.name, data
        with tarfile.open(path) as tar:
            for member in [m for m in tar if m.isfile()][:4]:
                file = tar.extractfile(member)
                yield member.name.rsplit("/", 1)[-1], file.read() if file else b""
    elif path.name.endswith(".gz"):
        yield path.name.removesuffix(".gz"), gzip.decompress(data)
    else:
        yield path.name, data
    if path.suffix == ".parquet":
        yield f"{path.stem}.csv", _as_text(data)


def _named(name: str, data: bytes) -> TraceFile:
    """The file with its format; archives are a kind of their own."""
    if name.endswith((".tar.gz", ".tgz")):
        return TraceFile(name, data, ARCHIVE)
    kind = format_of(ends_of(data), name)
    return TraceFile(name, data, kind.NAME if kind else OTHER)


def made_files() -> Iterator[TraceFile]:
    """A flight recorder dump and an Nsight Systems export in each form."""
    dump = flight_recorder_dump()
    yield _named("nccl_trace_rank_3", pickle.dumps(dump, 2))
    yield _named("nccl_trace_rank_4", pickle.dumps(dump, 4))
    yield _named("nccl_trace_rank_5.json", json.dumps(dump, indent=1).encode())
    tables = nsys_tables()
    yield _named("report.sqlite", _as_sqlite(tables))
    packed = {f"{name}.parquet": _as_parquet(rows) for name, rows in tables.items()}
    for name, data in packed.items():
        kind = _named(name, data).kind
        yield TraceFile(name, data, kind, {k: v for k, v in packed.items() if k != name})


def flight_recorder_dump() -> dict[str, Any]:
    """One rank's last calls, sends among them, the last one hanging."""
    entries = []
    for i in range(CALLS):
        at, sends = DAY_NS + i * 10_000_000, i % 5 == 4
        entries.append(
            {
                "frames": [{"name": "train", "filename": "train.py", "line": 3}],
                "record_id": i,
                "pg_id": int(sends),
                "process_group": ("1", "pp") if sends else ("0", "default_pg"),
                "collective_seq_id": i + 1,
                "p2p_seq_id": i if sends else 0,
                "op_id": i + 1,
                "profiling_name": "nccl:send 0->1" if sends else "nccl:all_reduce",
                "time_created_ns": at,
                "input_sizes": [[1024, 2]],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [[1024, 2]],
                "output_dtypes": ["BFloat16"],
                "state": "completed" if i < CALLS - 1 else "scheduled",
                "time_discovered_started_ns": at + 1_000_000 if i < CALLS - 1 else None,
                "time_discovered_completed_ns": at + 3_000_000 if i < CALLS - 1 else None,
                "retired": i < CALLS - 1,
                "timeout_ms": 600_000,
                "is_p2p": sends,
            }
        )
    groups = (("0", "default_pg", "[0, 1, 2, 3]"), ("1", "pp", "[1, 3]"))
    return {
        "version": "2.4",
        "nccl_version": "2.21.5",
        "pg_config": {n: {"name": n, "desc": d, "ranks": r} for n, d, r in groups},
        "pg_status": {"0": {"last_enqueued_collective": CALLS, "last_completed_collective": 9}},
        "entries": entries,
    }


def nsys_tables() -> dict[str, list[dict[str, Any]]]:
    """Launches, kernels, an all-reduce each, and ranges of one process."""
    pid = (1 << 56) | (2 << 48) | (4000 << 24)
    names = ["gemm_kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "cudaLaunchKernel_v7000"]
    kernels, calls, ranges = [], [], []
    for i in range(CALLS):
        at, link = 1000 * i, i + 1
        calls.append({"start": at, "end": at + 20, "globalTid": pid | 4001,
                      "correlationId": link, "nameId": 3, "returnValue": 0})  # fmt: skip
        kernels.append({"start": at + 100, "end": at + 700, "deviceId": 0, "contextId": 1,
                        "streamId": 7 + i % 2, "correlationId": link, "globalPid": pid,
                        "demangledName": 1 + i % 2, "shortName": 1 + i % 2, "gridX": 4,
                        "gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1,
                        "graphNodeId": None})  # fmt: skip
        ranges.append({"start": at, "end": at + 900, "eventType": 59, "globalTid": pid | 4001,
                       "text": f"step {i // 8}", "textId": None, "domainId": 0})  # fmt: skip
    return {
        "StringIds": [{"id": i + 1, "value": v} for i, v in enumerate(names)],
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
        "NVTX_EVENTS": ranges,
        "TARGET_INFO_GPU": [{"id": 0, "name": "NVIDIA H100"}],
        "TARGET_INFO_SYSTEM_ENV": [{"name": "Hostname", "value": "node7"}],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": DAY_NS}],
        "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.11.0"}],
    }


def _as_sqlite(tables: dict[str, list[dict[str, Any]]]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        base = sqlite3.connect(path)
        for name, rows in tables.items():
            columns = ", ".join(rows[0])
            marks = ", ".join("?" for _ in rows[0])
            base.execute(f"CREATE TABLE {name} ({columns})")
            base.executemany(
                f"INSERT INTO {name} VALUES ({marks})",  # noqa: S608
                [tuple(r.values()) for r in rows],
            )
        base.commit()
        base.close()
        return path.read_bytes()


def _as_parquet(rows: list[dict[str, Any]]) -> bytes:
    out = BytesIO()
    columns = {}
    for key, value in rows[0].items():
        kind = pa.string() if isinstance(value, str) else pa.int64()
        columns[key] = pa.array([r[key] for r in rows], kind)
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def _as_text(table: bytes) -> bytes:
    """The first rows of a Parquet table as CSV."""
    out = BytesIO()
    pyarrow.csv.write_csv(pq.read_table(BytesIO(table)).slice(0, TEXT_ROWS), out)
    return out.getvalue()
