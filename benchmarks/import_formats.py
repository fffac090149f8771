"""What is read of every real trace at hand, per format, and whether its time is conserved.

Run: python benchmarks/import_formats.py [--data DIR]

Every file under DIR/traces is imported by itself, members of archives and files of one folder
that are one recording as their own. One row per format: files, ranks, rows of the tables, the time
that a second reader adds up (_plain_json.py and _plain_formats.py: the standard json module,
exact decimals, no code of the importers), and how far the trace set is from it. Below stands
what the import says that it did not keep as it stood. It ends with status 1 if a file was not
imported or a time differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _plain_formats as plain

from foretrace.traces.errors import ForetraceError
from foretrace.traces.importers import import_paths
from foretrace.traces.importers.registry import format_of, reads_folders
from foretrace.traces.importers.sources import Source, read_head
from foretrace.traces.schema import DEVICE_WORK_KINDS
from foretrace.traces.store import TraceSet

DATA = Path(os.environ.get("FORETRACE_DATA", Path(__file__).resolve().parents[2] / "shared/data"))


def device_ns(traces: TraceSet, rank: int) -> int:
    """Durations of the rank's device work."""
    return _sum_of_kinds(traces, rank, DEVICE_WORK_KINDS)


def all_ns(traces: TraceSet, rank: int) -> int:
    """Durations of all events of a rank."""
    return sum(traces.events(rank, ["dur_ns"])["dur_ns"].to_pylist())


def host_ns(traces: TraceSet, rank: int) -> int:
    """Durations of the rank's host operators."""
    return _sum_of_kinds(traces, rank, ("host_op",))


def exec_ns(traces: TraceSet, rank: int) -> int:
    """Execution times of the rank's communication operations."""
    return sum(max(ns, 0) for ns in traces.collectives(rank, ["exec_ns"])["exec_ns"].to_pylist())


def _sum_of_kinds(traces: TraceSet, rank: int, kinds: tuple[str, ...]) -> int:
    rows = traces.events(rank, ["kind", "dur_ns"]).to_pylist()
    return sum(r["dur_ns"] for r in rows if r["kind"] in kinds)


Sum = tuple[str, Callable[[Path], int], Callable[[TraceSet, int], int]]
SUMS: dict[str, Sum] = {
    "PyTorch profiler (Kineto) JSON": ("device work", plain.profiler, device_ns),
    "Chakra graph": ("all nodes", plain.chakra, all_ns),
    "NCCL profiler plugin": ("kernels", plain.nccl_kernels, device_ns),
    "NCCL Inspector dump": ("operations", plain.inspector, exec_ns),
    "operation table": ("all rows", plain.table, host_ns),
    "pipeline recording (JSON)": ("all passes", plain.pipeline, host_ns),
}
"""What is added up of a format, by whom, and what of the trace set must equal it."""


@dataclass
class Row:
    """What was read of one format."""

    files: int = 0
    ranks: int = 0
    bytes: int = 0
    events: int = 0
    collectives: int = 0
    dependencies: int = 0
    stated_ns: int = 0
    read_ns: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


def units(folder: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    """(format, file or folder) of everything that is imported by itself."""
    bundles = set()
    for path in sorted(_files(folder, scratch)):
        kind = format_of(read_head(Source(str(path))), path.name)
        if kind is None:
            continue
        unit = path.parent if reads_folders(kind) else path
        if unit not in bundles:
            yield kind.NAME, unit
        bundles.add(unit)


def _files(folder: Path, scratch: Path) -> Iterator[Path]:
    """All files, archives unpacked."""
    for path in folder.rglob("*"):
        if path.name.endswith((".tar.gz", ".tgz")):
            target = scratch / path.name
            with tarfile.open(path) as tar:
                tar.extractall(target, filter="data")
            yield from (p for p in target.rglob("*") if p.is_file() and p.name[:2] != "._")
        elif path.is_file():
            yield path


def add(row: Row, path: Path, sums: Sum | None, scratch: Path) -> None:
    """Import one file or folder and add what came of it."""
    row.files += len([*path.iterdir()]) if path.is_dir() else 1
    try:
        report = import_paths([path], scratch / "one.trace", jobs=1)
    except ForetraceError as error:
        row.failed.append(str(error))
        return
    traces = TraceSet.open(scratch / "one.trace")
    row.ranks += len(traces.ranks)
    row.bytes += max(f.bytes for f in report.files)
    row.events += report.events
    for file in report.files:
        row.losses.update({d.reason: d.count for d in file.dropped})
    for rank in traces.ranks:
        tables = traces.tables(rank)
        row.collectives += len(tables.collectives)
        row.dependencies += 0 if tables.dependencies is None else len(tables.dependencies)
        row.read_ns += sums[2](traces, rank) if sums else 0
    row.stated_ns += sums[1](path) if sums else 0


def print_rows(rows: dict[str, Row]) -> None:
    """One line per format, then what was not kept as it stood."""
    head = ("files", "ranks", "MB", "events", "operations", "dependencies")
    print("| format | " + " | ".join(head) + " | time stated | difference |")
    print("| --- |" + " ---: |" * (len(head) + 2))
    for name, row in rows.items():
        what = SUMS[name][0] if name in SUMS else ""
        time = f"{what} {row.stated_ns / 1e9:,.3f} s" if what else "none"
        numbers: list[Any] = [row.files, row.ranks, f"{row.bytes / 1e6:,.1f}"]
        numbers += [f"{n:,}" for n in (row.events, row.collectives, row.dependencies)]
        apart = f"{row.read_ns - row.stated_ns:,} ns" if what else "-"
        print(f"| {name} | " + " | ".join(map(str, numbers)) + f" | {time} | {apart} |")
    print("\nnot kept as it stood:")
    for name, row in rows.items():
        for reason, count in row.losses.most_common():
            print(f"- {name}: {count:,} x {reason}")
    for row in rows.values():
        for line in row.failed:
            print(f"FAILED {line}")


def main() -> None:
    """Import everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    folder = parser.parse_args().data / "traces"
    if not folder.is_dir():
        sys.exit(f"skipped: no real traces at {folder} (set FORETRACE_DATA or --data)")
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, path in units(folder, Path(scratch)):
            add(rows.setdefault(name, Row()), path, SUMS.get(name), Path(scratch))
    print_rows(rows)
    sys.exit(any(row.failed or row.read_ns != row.stated_ns for row in rows.values()))


if __name__ == "__main__":
    main()
