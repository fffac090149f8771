"""Small profiler files made by hand, in the manner of each era."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from foretrace.traces.importers import kineto
from foretrace.traces.store import RankTables

MAIN = 100  # host thread
GPU_STREAM = 7
COMM_STREAM = 20


def lasting(category: str, name: str, ts: Any, dur: Any, **fields: Any) -> dict[str, Any]:
    """An event that lasts; args by keyword ``args``."""
    event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": MAIN, "ts": ts, "dur": dur}
    return event | fields


def kernel(name: str, ts: Any, dur: Any, correlation: int, **args: Any) -> dict[str, Any]:
    """A kernel on the compute stream; ``stream`` moves it."""
    stream = args.pop("stream", GPU_STREAM)
    all_args = {"device": 0, "stream": stream, "correlation": correlation} | args
    return lasting("kernel", name, ts, dur, pid=0, tid=stream, args=all_args)


def launch(ts: Any, correlation: int, dur: Any = 1, **fields: Any) -> dict[str, Any]:
    """A kernel launch on the host."""
    args = {"correlation": correlation}
    return lasting("cuda_runtime", "cudaLaunchKernel", ts, dur, args=args, **fields)


def document(events: Iterable[dict[str, Any]], rank: int | None = 0, **top: Any) -> dict[str, Any]:
    """A whole file."""
    result: dict[str, Any] = {"schemaVersion": 1}
    if rank is not None:
        result["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    return result | top | {"traceEvents": list(events)}


def read(content: Any, chunk: int = 1 << 20, python: bool = False) -> RankTables:
    """Read a document, or its text, in pieces of ``chunk`` bytes."""
    if not isinstance(content, bytes | str):
        content = json.dumps(content)
    data = content.encode() if isinstance(content, str) else content
    pieces = [data[i : i + chunk] for i in range(0, len(data), chunk)]
    return kineto.read(pieces, python=python)


def rows(tables: RankTables, *columns: str) -> list[tuple[Any, ...]]:
    """Columns of the events as tuples."""
    return list(zip(*(tables.events[c].to_pylist() for c in columns), strict=True))


def losses(tables: RankTables) -> dict[str, int]:
    """What was dropped: reason and count."""
    return {d.reason: d.count for d in tables.info.dropped}


def write(path: Path, content: Any) -> Path:
    """Write a document or text to a file, gzipped if its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    """Write an archive."""
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
