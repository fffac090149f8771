"""How much memory an import takes when one rank is very long, and when there are very many.

Run: python benchmarks/import_scale.py [--gigabytes 2] [--ranks 512] [--jobs 1]

1. One rank whose JSON is so many gigabytes (plain text, made up in the manner of PyTorch:
   operators, launches, kernels, collectives with metadata) is imported by a fresh process.
   Bar: 4 GB of memory for 2 GB of JSON.
2. Ranks of 5 MB each, 8 of them and then many. Memory is that of the largest process that took
   part. Bar: no more than 1.5 times as much for 512 ranks as for 8.

Needs as much free disk as the gigabytes and some more, under the folder of temporary files.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

RANK_BYTES = 5_000_000
NAMES = 400


def events(count_bytes: int) -> Iterator[str]:
    """Text of about ``count_bytes`` of events, comma before each but the first."""
    size = i = 0
    comma = ""
    while size < count_bytes:
        ts = f"{4_203_669_000_000 + i * 31}.{i % 1000:03d}"
        name = f"void at::native::elementwise_kernel_{i * 7919 % NAMES}<128, 4, float>(int, float)"
        text = (
            f'{comma}\n  {{"ph": "X", "cat": "cpu_op", "name": "aten::op_{i % NAMES}", "pid": 77, '
            f'"tid": 77, "ts": {ts}, "dur": 30.125, "args": {{"External id": {i}, '
            f'"Record function id": 0, "Sequence number": {i // 2}, "Input Dims": [[{i % 64}, 8]], '
            f'"Ev Idx": {i}}}}},\n  {{"ph": "X", "cat": "cuda_runtime", "name": '
            f'"cudaLaunchKernel", "pid": 77, "tid": 77, "ts": {ts}, "dur": 4.5, "args": '
            f'{{"cbid": 211, "correlation": {i + 1}, "External id": {i}}}}},\n  {{"ph": "X", '
            f'"cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, "ts": {ts}, "dur": 12.75, '
            f'"args": {{"queued": 0, "device": 0, "context": 1, "stream": 7, '
            f'"correlation": {i + 1}, "External id": {i}, "registers per thread": 32, '
            f'"shared memory": 0, "grid": [{i % 108}, 1, 1], "block": [128, 1, 1], '
            f'"est. achieved occupancy %": 43}}}},\n  '
            f'{{"ph": "s", "id": {i + 1}, "pid": 77, "tid": 77, "ts": {ts}, "cat": "ac2g", '
            f'"name": "ac2g"}}'
        )
        size += len(text)
        comma = ","
        i += 1
        yield text


def head(rank: int, world: int) -> str:
    info = {"backend": "nccl", "rank": rank, "world_size": world}
    return f'{{"schemaVersion": 1, "distributedInfo": {json.dumps(info)}, "traceEvents": ['


def once(path: str, jobs: int) -> None:
    """What a fresh process does: import and print what it took."""
    from foretrace.traces.importers import import_paths
    from foretrace.traces.importers.report import peak_rss_bytes

    before = peak_rss_bytes()
    with tempfile.TemporaryDirectory() as folder:
        began, cpu = time.perf_counter(), time.process_time()
        report = import_paths([path], f"{folder}/o.trace", jobs=jobs)
        took = time.perf_counter() - began
    print(
        json.dumps(
            {
                "seconds": took,
                "cpu_seconds": time.process_time() - cpu,
                "bytes": report.bytes,
                "events": report.events,
                "ranks": len(report.ranks),
                "peak_rss_bytes": report.peak_rss_bytes,
                "rss_before_bytes": before,
            }
        )
    )


def measure(path: Path, jobs: int) -> dict[str, float]:
    command = (sys.executable, __file__, "--once", str(path), "--jobs", str(jobs))
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(output)
    print(
        f"{result['ranks']:5} ranks {result['bytes'] / 1e6:9,.0f} MB of JSON "
        f"{result['events']:12,} events  peak {result['peak_rss_bytes'] / 1e6:7,.0f} MB "
        f"(before: {result['rss_before_bytes'] / 1e6:.0f})  {result['seconds']:.1f} s, "
        f"{result['cpu_seconds']:.1f} s of CPU"
    )
    return result


def one_long_rank(folder: Path, gigabytes: float) -> bool:
    path = folder / "long.json"
    with path.open("w") as file:
        file.write(head(0, 1))
        file.writelines(events(int(gigabytes * 1e9)))
        file.write("]}")
    result = measure(path, 1)
    path.unlink()
    ratio = result["peak_rss_bytes"] / result["bytes"]
    kept = ratio <= 2
    print(f"      peak memory / JSON: {ratio:.2f}  {'ok' if kept else 'MISSED'} (bar 2)")
    return kept


def many_ranks(folder: Path, ranks: int, jobs: int) -> bool:
    body = gzip.compress(("".join(events(RANK_BYTES)) + "]}").encode(), 3)
    peaks = []
    for count in (8, ranks):
        job = folder / f"job{count}"
        job.mkdir()
        for rank in range(count):  # a gzip file may consist of several
            start = gzip.compress(head(rank, count).encode())
            (job / f"rank{rank}.json.gz").write_bytes(start + body)
        peaks.append(measure(job, jobs)["peak_rss_bytes"])
    kept = peaks[1] <= 1.5 * peaks[0]
    ratio = peaks[1] / peaks[0]
    print(f"      {ranks} against 8: {ratio:.2f}  {'ok' if kept else 'MISSED'} (bar 1.5)")
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--once", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        once(options.once, options.jobs)
        return
    with tempfile.TemporaryDirectory() as folder:
        good = one_long_rank(Path(folder), options.gigabytes)
        good = many_ranks(Path(folder), options.ranks, options.jobs) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
