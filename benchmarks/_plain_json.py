"""A slow and obvious reader of profiler JSON, against which the importer is checked.

It shares nothing with the importer: the standard ``json`` module, exact decimals, loops.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

DEVICE_WORK = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}


@dataclass
class Sums:
    """What a file holds of work on devices; times in ns."""

    count: dict[str, int] = field(default_factory=dict)
    duration_ns: dict[str, int] = field(default_factory=dict)
    first_ns: int = 0
    last_ns: int = 0
    start_sum_ns: int = 0
    lasting_events: int = 0
    python_frames: int = 0


def read_text(path: Path) -> str:
    """Content of a plain or gzipped file."""
    data = path.read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()


def to_ns(us: Decimal | int | str) -> int:
    """Microseconds as they stand in the file to whole nanoseconds."""
    return int((Decimal(us) * 1000).quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


def sum_device_work(path: Path) -> Sums:
    """Add up all kernels, copies and fills of a file."""
    document: Any = json.loads(read_text(path), parse_float=Decimal)
    events = document if isinstance(document, list) else document["traceEvents"]
    base = 0 if isinstance(document, list) else int(document.get("baseTimeNanoseconds", 0))
    sums = Sums()
    for event in events:
        category = str(event.get("cat", "")).lower()
        if event.get("ph") != "X" or category == "trace":
            continue
        if category == "python_function":
            sums.python_frames += 1
            continue
        start, duration = base + to_ns(event["ts"]), max(to_ns(event.get("dur", 0)), 0)
        sums.first_ns = min(sums.first_ns or start, start)
        sums.last_ns = max(sums.last_ns, start + duration)
        sums.lasting_events += 1
        kind = DEVICE_WORK.get(category)
        if kind:
            sums.count[kind] = sums.count.get(kind, 0) + 1
            sums.duration_ns[kind] = sums.duration_ns.get(kind, 0) + duration
            sums.start_sum_ns += start
    return sums
