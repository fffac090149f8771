"""Slow and obvious readers of traces that are no profiler JSON; they share nothing with importers.

Each adds up the durations that a file states, in nanoseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import _plain_json
import pyarrow.parquet as pq


def lines_of(path: Path) -> Iterator[dict[str, object]]:
    """The JSON objects of a file of lines; what is none is passed over."""
    for line in path.read_text().splitlines():
        try:
            value = json.loads(line, parse_float=Decimal)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def profiler(path: Path) -> int:
    """Kernels, copies and fills of profiler JSON."""
    return sum(_plain_json.sum_device_work(path).duration_ns.values())


def chakra(path: Path) -> int:
    """All nodes of a graph, protobuf or the feeder's JSON."""
    data = path.read_bytes()
    if data[:1] == b"{":
        return sum(1000 * int(n.get("runtime", 0)) for n in json.loads(data)["workload_graph"])
    total, at = 0, 0
    size, at = _varint(data, at)
    at += size  # the first message is about the file
    while at < len(data):
        size, at = _varint(data, at)
        total += 1000 * _field_7(data[at : at + size])
        at += size
    return total


def _field_7(node: bytes) -> int:
    """Duration in microseconds out of a node's message."""
    at = 0
    while at < len(node):
        key, at = _varint(node, at)
        if key & 7 == 0:
            value, at = _varint(node, at)
            if key >> 3 == 7:
                return value
        elif key & 7 == 2:
            size, at = _varint(node, at)
            at += size
        else:
            at += 8 if key & 7 == 1 else 4
    return 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def nccl_kernels(path: Path) -> int:
    """Kernels that CUPTI saw, in a file of the NCCL profiler plugin."""
    found = (r for r in lines_of(path) if r.get("recordType") == "cuptiActivity")
    return sum(_plain_json.to_ns(Decimal(r["duration"])) for r in found)  # type: ignore[arg-type]


def inspector(path: Path) -> int:
    """Execution times of operations in a dump of the NCCL Inspector."""
    found = (r.get("coll_perf") for r in lines_of(path))
    return sum(1000 * int(p.get("coll_exec_time_us", 0)) for p in found if isinstance(p, dict))


def table(path: Path) -> int:
    """Durations of an operation table, rounded as its starts are: to whole nanoseconds."""
    seconds = pq.read_table(path, columns=["duration"])["duration"].to_pylist()
    return sum(round(s * 1e9) for s in seconds)


def pipeline(path: Path) -> int:
    """Forward and backward passes of all ranks of a folder."""
    total = 0
    for file in path.glob("pp_rank_*.json"):
        for step in json.loads(file.read_text()).values():
            for word in ("fwd", "bwd"):
                ends, starts = step[f"{word}_end"], step[f"{word}_start"]
                spans = zip(ends, starts, strict=True)
                total += sum(round(1e6 * b) - round(1e6 * a) for b, a in spans)
    return total
