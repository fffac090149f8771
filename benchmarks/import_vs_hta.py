"""Importing against HolisticTraceAnalysis: one file, both in turn, on the same machine.

Run: python benchmarks/import_vs_hta.py [--data DIR] [--runs 5] [--venv DIR]

HolisticTraceAnalysis is installed into a virtual environment of its own (in DIR, kept there
for the next time, else a temporary one). Every run is a fresh process; the two take turns, so
that both meet the same machine. Measured is what each needs from the .json.gz to something
that can be analysed: HTA's ``TraceAnalysis(...)``, the call that its users make, to DataFrames in
memory (and its parser alone, ``Trace(...).parse_traces()``); foretrace's ``import_paths`` to
Parquet files on disk. Where HTA cannot be installed, the standard json
module with ``pandas.DataFrame`` stands in for it, and the output says so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BAR = 40
HTA_VERSION = "0.5.0"
FILE = "traces/single-rank/hta-v100-216k.json.gz"

HTA = """
import json, logging, resource, sys, time
from hta.trace_analysis import TraceAnalysis
logging.disable()
began, cpu = time.perf_counter(), time.process_time()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
took = time.perf_counter() - began, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": took[0], "cpu_seconds": took[1], "peak_rss_bytes": peak,
                  "events": len(analysis.t.traces[0])}))
"""
PARSER = """
import json, logging, resource, sys, time
from hta.common.trace import Trace
logging.disable()
began, cpu = time.perf_counter(), time.process_time()
trace = Trace(trace_files={0: sys.argv[1]}, trace_dir="")
trace.parse_traces(use_multiprocessing=False)
took = time.perf_counter() - began, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": took[0], "cpu_seconds": took[1], "peak_rss_bytes": peak,
                  "events": len(trace.traces[0])}))
"""
PLAIN = """
import gzip, json, resource, sys, time
import pandas
began, cpu = time.perf_counter(), time.process_time()
with gzip.open(sys.argv[1]) as file:
    frame = pandas.DataFrame(json.load(file)["traceEvents"])
took = time.perf_counter() - began, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": took[0], "cpu_seconds": took[1], "peak_rss_bytes": peak,
                  "events": int((frame["ph"] == "X").sum())}))
"""


Side = tuple[str, str, str]
"""Name, interpreter, script."""


def install(folder: Path) -> list[Side]:
    """The other side, what it is judged by first."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    asked = [str(python), "-c", "import hta, pandas; print(pandas.__version__)"]
    found = subprocess.run(asked, check=False, capture_output=True, text=True)
    if found.returncode:
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            f"HolisticTraceAnalysis=={HTA_VERSION}",
        ]
        subprocess.run(command, check=False, capture_output=True)
        found = subprocess.run(asked, check=False, capture_output=True, text=True)
    if found.returncode:
        return [("json.load + pandas (HTA could not be installed)", sys.executable, PLAIN)]
    name = f"HTA with pandas {found.stdout.strip()}"
    return [(name, str(python), HTA), (f"{name}, its parser alone", str(python), PARSER)]


def once(command: list[str]) -> dict[str, Any]:
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETRACE_DATA"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--venv", type=Path)
    options = parser.parse_args()
    path = Path(options.data or ROOT.parent / "shared" / "data") / FILE
    if not path.is_file():
        print(f"skipped: no file {path}; give --data DIR")
        return
    with tempfile.TemporaryDirectory() as scratch:
        sides = install(options.venv or Path(scratch))
        commands = [[sys.executable, str(ROOT / "benchmarks/import_speed.py"), "--once", str(path)]]
        commands += [[python, "-c", script, str(path)] for _, python, script in sides]
        once(commands[0])  # the first one may compile
        results = [[once(command) for command in commands] for _ in range(options.runs)]
    labels = ["foretrace import", *(name for name, _, _ in sides)]
    print(f"{path.name}, {options.runs} runs each, in turn; median")
    print(f"  {'':44}{'seconds':>9}{'CPU s':>8}{'events':>9}{'events/s':>11}{'peak MB':>9}")
    medians = []
    for label, runs in zip(labels, zip(*results, strict=True), strict=True):
        wall, cpu, peak = (
            statistics.median(r[key] for r in runs)
            for key in ("seconds", "cpu_seconds", "peak_rss_bytes")
        )
        events = runs[0]["events"]
        medians.append((wall, cpu))
        numbers = f"{wall:9.2f}{cpu:8.2f}{events:9,}{events / wall:11,.0f}{peak / 1e6:9.0f}"
        print(f"  {label:44}{numbers}")
    ratios = [run[1]["seconds"] / run[0]["seconds"] for run in results]
    (wall, cpu), (their_wall, their_cpu) = medians[:2]
    print(f"  times as fast: {their_wall / wall:.1f} by wall, {their_cpu / cpu:.1f} by CPU time")
    print(f"  of single pairs: {min(ratios):.1f} to {max(ratios):.1f} by wall")
    kept = their_wall >= BAR * wall
    print(f"  bar: {BAR} times by wall  {'ok' if kept else 'MISSED'}")


if __name__ == "__main__":
    main()
