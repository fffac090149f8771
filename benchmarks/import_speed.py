"""How fast profiler JSON becomes a trace set, what it takes, and whether any time is lost.

Run: python benchmarks/import_speed.py [--data DIR] [--runs 7]

1. The largest single file, .json.gz to Parquet, each run in a fresh process that uses one
   process (a thread unpacks while another scans); the compiled scanner is in its cache.
2. Every single-rank file against benchmarks/_plain_json.py, a reader with the standard json
   module and exact decimals: kernels, copies and fills must sum to the same nanosecond.
3. Opening a trace set of 10,000 ranks, each in a group of everybody and four small ones.

Bars: 120 MB/s of uncompressed JSON, memory 3x the uncompressed size, Parquet no larger than
the .gz, every file conserved, 2 s to open. Traces are read from DIR (default: FORETRACE_DATA,
else ../shared/data beside the project).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LARGEST = "hta-v100-216k.json.gz"
RANKS = 10_000


def import_once(path: Path) -> None:
    """What a fresh process does: import one file and print what it took."""
    from foretrace.traces.importers import import_paths
    from foretrace.traces.importers.report import peak_rss_bytes

    before = peak_rss_bytes()
    with tempfile.TemporaryDirectory() as folder:
        began, cpu = time.perf_counter(), time.process_time()
        report = import_paths([path], f"{folder}/o.trace", jobs=1)
        result = {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - cpu,
            "bytes": report.bytes,
            "events": report.events,
            "peak_rss_bytes": report.peak_rss_bytes,
            "rss_before_bytes": before,
            "parquet_bytes": sum(f.stat().st_size for f in Path(folder).rglob("*.parquet")),
        }
    print(json.dumps(result))


def measure(path: Path, runs: int) -> None:
    results = []
    for run in range(runs + 1):
        command = (sys.executable, __file__, "--once", str(path))
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        if run:  # the first one may compile
            results.append(json.loads(output))
    size = results[0]["bytes"]
    speeds = sorted(size / r["seconds"] / 1e6 for r in results)
    peak = max(r["peak_rss_bytes"] for r in results)
    base = min(r["rss_before_bytes"] for r in results)
    median = statistics.median(r["seconds"] for r in results)
    parquet = results[0]["parquet_bytes"] / path.stat().st_size
    print(f"{path.name}: {size / 1e6:.1f} MB of JSON, {runs} runs, one process each")
    row(
        "MB/s of JSON, median", f"{statistics.median(speeds):.0f}", statistics.median(speeds) >= 120
    )
    row("MB/s of JSON, best and worst", f"{speeds[-1]:.0f} {speeds[0]:.0f}")
    cpu = statistics.median(r["cpu_seconds"] for r in results)
    row("seconds of processor time, median", f"{cpu:.2f}")
    row("events/s kept, median", f"{results[0]['events'] / median:,.0f}")
    row("peak memory / JSON", f"{peak / size:.2f}", peak <= 3 * size)
    row("of which before the import began", f"{base / size:.2f}")
    row("without that", f"{(peak - base) / size:.2f}")
    row("Parquet / .gz", f"{parquet:.2f}", parquet <= 1)


def row(name: str, value: str, kept: bool | None = None) -> None:
    print(f"  {name:36}{value:>14}  {'' if kept is None else 'ok' if kept else 'MISSED'}")


def check_conservation(folder: Path) -> bool:
    """Import every file and compare with the plain reader."""
    import _plain_json

    from foretrace.traces.importers import import_paths
    from foretrace.traces.store import TraceSet

    print(f"\n{'file':40}{'events':>9}{'device rows':>13}{'device time, ns':>18}{'lost, ns':>10}")
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted(folder.glob("*.json*")):
            import_paths([path], f"{scratch}/o.trace", jobs=1)
            traces = TraceSet.open(f"{scratch}/o.trace")
            found = device_sums(traces.events(traces.ranks[0], ["kind", "start_ns", "dur_ns"]))
            expected = _plain_json.sum_device_work(path)
            wanted = (expected.count, expected.duration_ns, expected.start_sum_ns)
            lost = sum(expected.duration_ns.values()) - sum(found[1].values())
            total, count = sum(expected.duration_ns.values()), sum(expected.count.values())
            mark = "ok" if wanted == found else "NOT THE SAME"
            good = good and wanted == found
            events = sum(traces.info(traces.ranks[0]).counts.values())
            print(f"{path.name:40}{events:>9,}{count:>13,}{total:>18,}{lost:>10}  {mark}")
    return good


def device_sums(events: Any) -> tuple[dict[str, int], dict[str, int], int]:
    """(rows, time in ns) of each kind of device work, and the sum of all their starts."""
    count: dict[str, int] = {}
    duration: dict[str, int] = {}
    starts = 0
    for kind, start, dur in zip(*(c.to_pylist() for c in events.columns), strict=True):
        if kind in ("kernel", "memcpy", "memset"):
            count[kind] = count.get(kind, 0) + 1
            duration[kind] = duration.get(kind, 0) + dur
            starts += start
    return count, duration, starts


def measure_opening() -> None:
    import msgspec

    from foretrace.traces.manifest import GroupInfo, RankInfo, StepInfo, pack
    from foretrace.traces.store import TraceSet

    everybody = GroupInfo(name="0", ranks=list(range(RANKS)), size=RANKS)
    infos = [
        RankInfo(
            rank=rank,
            world_size=RANKS,
            host=f"node{rank // 8}",
            source=f"/data/run/rank{rank}.json.gz",
            groups=[everybody]
            + [
                GroupInfo(name=str(n), ranks=[rank - rank % 8 + i for i in range(8)], size=8)
                for n in range(1, 5)
            ],
            steps=[StepInfo(step=s, start_ns=s, end_ns=s + 1) for s in range(10)],
        )
        for rank in range(RANKS)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(RANKS):
            Path(folder, f"rank={rank:05d}").mkdir()
        index = msgspec.json.encode(pack(infos, {}, "benchmark"))
        Path(folder, "manifest.json").write_bytes(index)
        times = []
        for _ in range(5):
            began = time.perf_counter()
            TraceSet.open(folder)
            times.append(time.perf_counter() - began)
    print(f"\nopening {RANKS:,} ranks, index of {len(index) / 1e6:.1f} MB")
    row("seconds, median", f"{statistics.median(times):.2f}", statistics.median(times) <= 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETRACE_DATA"))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        import_once(options.once)
        return
    folder = Path(options.data or ROOT.parent / "shared" / "data") / "traces/single-rank"
    if folder.is_dir():
        measure(folder / LARGEST, options.runs)
        good = check_conservation(folder)
    else:
        print(f"skipped: no traces at {folder}; give --data DIR")
        good = True
    measure_opening()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
