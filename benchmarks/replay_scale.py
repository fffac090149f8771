"""How long the replay of a very large recorded job takes, and how much memory.

Run: python benchmarks/replay_scale.py [--ranks 2048] [--data DIR] [--jobs 2]

A real recording of eight GPUs (Megatron, tensor 2, pipeline 2, data 2) is widened along its data
axis (see ``_scaled_job``), to 64 ranks and to so many. The 64 ranks are replayed both as one
graph and reduced, and every collective and step must be equal to the nanosecond. Then the large
job is replayed, by a fresh process, with rank 0 in full: from opening the trace set to the result.
Bars: 60 s and 8 GB for 2,048 ranks. Memory is the sum over all processes, shared pages counted
once; the disk needs some 300 KB a rank, under the folder of temporary files.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from _scaled_job import DATA, PIPELINE, TENSOR, processes, widen

from foretrace.replay.build import build
from foretrace.replay.contract.large import replay_large
from foretrace.replay.engine import replay
from foretrace.replay.graph import TaskKind, Timeline
from foretrace.replay.timeline import step_windows
from foretrace.traces.importers import import_paths
from foretrace.traces.store import TraceSet

SOURCE = "megatron-tp2pp2dp2-a800/kineto"
BASE_RANKS = TENSOR * DATA * PIPELINE
SMALL_RANKS = 64
BAR_RANKS, MOST_SECONDS, MOST_BYTES = 2048, 60, 8e9


class Memory(threading.Thread):
    """Watches the memory of this process and its children."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.cpu_seconds = 0.0

    def run(self) -> None:
        """Look once a second."""
        while True:
            self.peak = max(self.peak, sum(_bytes(p) for p in (os.getpid(), *_children())))
            self.cpu_seconds = time.thread_time()
            time.sleep(1)


def _children() -> list[int]:
    text = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in text.split()]


def _bytes(pid: int) -> int:
    """Resident memory of a process, pages shared with others divided among them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def once(path: str, whole: bool) -> None:
    """What a fresh process does: replay and print what it took."""
    memory = Memory()
    memory.start()
    began = time.perf_counter()
    trace = TraceSet.open(path)
    if whole:
        timeline = replay(build(trace).graph)
        tasks = kept = len(timeline.graph)
    else:
        large = replay_large(trace, expand=(0,))
        timeline, tasks, kept = large.timeline, large.tasks, len(large.timeline.graph)
    took = time.perf_counter() - began
    usage = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(
        json.dumps({
            "ranks": len(trace.ranks),
            "seconds": took,
            "cpu_seconds": sum(u.ru_utime + u.ru_stime for u in usage) - memory.cpu_seconds,
            "bytes": memory.peak,
            "tasks": tasks,
            "kept": kept,
            "step_ms": (step_windows(timeline).dur_ns / 1e6).tolist(),
        })
    )  # fmt: skip


def measure(path: Path, whole: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--once", str(path), *(["--whole"] if whole else [])]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, float] = json.loads(output)
    print(
        f"{result['ranks']:5} ranks {'as one graph' if whole else 'reduced':12} "
        f"{result['tasks']:12,} tasks, {result['kept']:10,} of them solved  "
        f"{result['seconds']:6.1f} s ({result['cpu_seconds']:.1f} s of CPU)  "
        f"{result['bytes'] / 1e9:5.2f} GB  steps {result['step_ms']} ms",
        flush=True,
    )
    return result


def check_equal(path: Path) -> None:
    """Collectives and steps of both replays of one job, to the nanosecond."""
    trace = TraceSet.open(path)
    plain, large = replay(build(trace).graph), replay_large(trace).timeline
    rows = [_collectives(t) for t in (plain, large)]
    steps = [step_windows(t) for t in (plain, large)]
    equal = np.array_equal(*rows) and all(
        np.array_equal(getattr(steps[0], name), getattr(steps[1], name))
        for name in ("step", "start_ns", "end_ns")
    )
    if not equal:
        sys.exit(f"{len(trace.ranks)} ranks: the two replays differ")
    print(
        f"{len(trace.ranks):5} ranks: {rows[0].shape[1]:,} arrivals and executions and "
        f"{len(steps[0].step)} steps are equal to the nanosecond"
    )


def _collectives(timeline: Timeline) -> np.ndarray:
    graph = timeline.graph
    meets = np.isin(graph.kind, (TaskKind.ARRIVE, TaskKind.COMM)) & (graph.collective >= 0)
    task = np.flatnonzero(meets & (graph.rank >= 0))
    columns = (
        graph.rank, graph.event, graph.kind, graph.collective, timeline.start_ns, timeline.end_ns
    )  # fmt: skip
    table = np.stack([c[task].astype(np.int64) for c in columns])
    return table[:, np.lexsort(table[:3])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2048)
    here = Path(__file__).resolve().parents[2] / "shared" / "data"
    data = os.environ.get("FORETRACE_DATA", str(here))
    parser.add_argument("--data", type=Path, default=Path(data))
    parser.add_argument("--jobs", type=int, default=processes(), help="to make the job with")
    parser.add_argument("--once", help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ranks % BASE_RANKS:
        parser.error(f"--ranks {options.ranks}: expected a multiple of {BASE_RANKS}")
    if options.once:
        once(options.once, options.whole)
        return
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base.trace"
        import_paths([options.data / "traces" / SOURCE], base, jobs=1)
        small, large = Path(folder) / "small.trace", Path(folder) / "large.trace"
        widen(base, small, SMALL_RANKS // BASE_RANKS, options.jobs)
        measure(small, whole=True)
        measure(small, whole=False)
        check_equal(small)
        widen(base, large, options.ranks // BASE_RANKS, options.jobs)
        result = measure(large, whole=False)
    if options.ranks < BAR_RANKS:
        return  # the bars are for more ranks
    kept = result["seconds"] <= MOST_SECONDS and result["bytes"] <= MOST_BYTES
    print(f"      {'ok' if kept else 'MISSED'} (bars: {MOST_SECONDS} s, {MOST_BYTES / 1e9:.0f} GB)")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
