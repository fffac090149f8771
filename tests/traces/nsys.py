"""Small Nsight Systems exports with the tables and columns of the real schema.

The tables are the same in both forms; ``OLD`` and ``NEW`` are two versions of the schema.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from foretrace.traces.importers import nsys_parquet, nsys_sqlite
from foretrace.traces.store import RankTables

Row = dict[str, Any]
Export = dict[str, list[Row]]

_PLACE = "start end deviceId contextId streamId correlationId globalPid"
_KERNEL = (
    "demangledName shortName launchType cacheConfig registersPerThread gridX gridY gridZ "
    "blockX blockY blockZ staticSharedMemory dynamicSharedMemory localMemoryPerThread "
    "localMemoryTotal gridId sharedMemoryExecuted"
)
NEW = {
    "StringIds": "id value",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_PLACE} greenContextId {_KERNEL} mangledName graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_PLACE} greenContextId bytes copyKind srcKind dstKind "
    "srcDeviceId dstDeviceId graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_PLACE} greenContextId value bytes graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_PLACE} syncType eventId eventSyncId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId "
    "returnValue callchainId",
    "NVTX_EVENTS": "start end eventType rangeId category color text globalTid endGlobalTid "
    "textId domainId uint64Value int64Value doubleValue jsonTextId",
    "TARGET_INFO_GPU": "vmId id name busLocation isDiscrete smCount",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName name nameEnum value",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    "META_DATA_EXPORT": "name value",
    "ANALYSIS_FILE": "id filename globalPid",
}
OLD = NEW | {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_PLACE} {_KERNEL}",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_PLACE} bytes copyKind srcKind dstKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_PLACE} value bytes",
    "NVTX_EVENTS": "start end eventType rangeId category color text globalTid endGlobalTid textId "
    "domainId",
}
_TEXT = {"value", "text", "name", "filename", "busLocation", "devStateName", "utcTime", "localTime"}
_NUMBER_VALUE = ("CUPTI_ACTIVITY_KIND_MEMSET",)


def pid_of(process: int) -> int:
    """globalPid: hardware id, machine id, process id, then 24 empty bits."""
    return (1 << 56) | (2 << 48) | (process << 24)


def tid_of(process: int, thread: int) -> int:
    """globalTid."""
    return pid_of(process) | thread


STRINGS = {
    1: "void gemm_kernel<float>(int)",
    2: "gemm_kernel",
    3: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
    4: "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    5: "cudaLaunchKernel_v7000",
    6: "cudaMemcpyAsync_v3020",
    7: "cudaStreamSynchronize_v3020",
    8: "forward",
    9: "cudaMemsetAsync_v3020",
}


def example(process: int = 4000, device: int = 0) -> Export:
    """One step: a launch and its kernel, an all-reduce, a copy, a fill, a wait and ranges."""
    gpu = {"deviceId": device, "contextId": 1, "globalPid": pid_of(process)}
    host = {"globalTid": tid_of(process, 4001)}
    grid = {f"{k}{a}": v for k, v in (("grid", 4), ("block", 128)) for a in "X"}
    ones = {f"{k}{a}": 1 for k in ("grid", "block") for a in "YZ"}
    kernel = gpu | grid | ones

    def row(start: int, end: int, **more: Any) -> Row:
        return {"start": start, "end": end, **more}

    return {
        "StringIds": [{"id": i, "value": v} for i, v in STRINGS.items()],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            row(300, 800, streamId=7, correlationId=11, demangledName=1, shortName=2, **kernel),
            row(900, 1500, streamId=9, correlationId=12, demangledName=3, shortName=4, **kernel),
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [
            row(850, 880, streamId=7, correlationId=13, bytes=4096, copyKind=1, **gpu)
        ],
        "CUPTI_ACTIVITY_KIND_MEMSET": [
            row(820, 830, streamId=7, correlationId=14, bytes=64, value=0, **gpu)
        ],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
            row(1400, 1510, streamId=9, correlationId=15, syncType=3, **gpu)
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            row(200, 220, correlationId=11, nameId=5, returnValue=0, **host),
            row(230, 250, correlationId=12, nameId=5, returnValue=0, **host),
            row(260, 270, correlationId=13, nameId=6, returnValue=0, **host),
            row(271, 280, correlationId=14, nameId=9, returnValue=0, **host),
            row(1390, 1520, correlationId=15, nameId=7, returnValue=0, **host),
        ],
        "NVTX_EVENTS": [
            row(100, 1600, eventType=59, text="step 5", **host),
            row(150, 300, eventType=59, textId=8, **host),
            row(
                160,
                290,
                eventType=59,
                text="aten::mm, seq = 12, op_id = 3, sizes = [[4, 2], [2, 8]]",
                **host,
            ),
            {"start": 170, "eventType": 34, "text": "a mark has no end", **host},
        ],
        "TARGET_INFO_GPU": [{"id": i, "name": f"NVIDIA H{i}00"} for i in range(2)],
        "TARGET_INFO_SYSTEM_ENV": [{"name": "Hostname", "value": "node7"}],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 1_700_000_000_000_000_000}],
        "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.11.0"}],
        "ANALYSIS_FILE": [{"id": 1, "filename": "a.qdstrm"}],
    }


def _columns(table: str, schema: dict[str, str]) -> list[tuple[str, bool]]:
    return [
        (c, c in _TEXT and not (c == "value" and table in _NUMBER_VALUE))
        for c in schema[table].split()
    ]


def write_sqlite(path: Path, export: Export, schema: dict[str, str] = NEW) -> Path:
    """An export as ``--type sqlite`` makes it; tables without rows are left out."""
    db = sqlite3.connect(path)
    for table, rows in export.items():
        if not rows:
            continue
        columns = _columns(table, schema)
        kinds = ", ".join(f'"{c}" {"TEXT" if text else "INTEGER"}' for c, text in columns)
        db.execute(f'CREATE TABLE "{table}" ({kinds})')
        marks = ", ".join("?" for _ in columns)
        values = [tuple(r.get(c) for c, _ in columns) for r in rows]
        db.executemany(f'INSERT INTO "{table}" VALUES ({marks})', values)  # noqa: S608
    db.commit()
    db.close()
    return path


def write_parquet(folder: Path, export: Export, schema: dict[str, str] = NEW) -> Path:
    """An export as ``--type parquetdir`` makes it."""
    folder.mkdir(parents=True, exist_ok=True)
    for table, rows in export.items():
        if rows:
            columns = _columns(table, schema)
            arrays = {
                c: pa.array([r.get(c) for r in rows], pa.string() if text else pa.int64())
                for c, text in columns
            }
            pq.write_table(pa.table(arrays), folder / f"{table}.parquet")
    return folder


def read_sqlite(path: Path) -> list[RankTables]:
    """Read one export."""
    return nsys_sqlite.read([path.read_bytes()])


def read_parquet(folder: Path) -> list[RankTables]:
    """Read one export."""
    return nsys_parquet.read_bundle({str(p): p.read_bytes() for p in folder.iterdir()})
