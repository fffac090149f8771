"""How long the graph and the replay of recorded jobs take, after compilation.

Run: python benchmarks/replay_speed.py [--data DIR]

The traces are read from DIR (default: FORETRACE_DATA, else ../shared/data beside the project).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from foretrace.replay.build import build_from_arrays, read
from foretrace.replay.engine import replay
from foretrace.traces.importers import import_paths
from foretrace.traces.store import TraceSet

JOBS = {
    "1 rank, 216k events": "single-rank/hta-v100-216k.json.gz",
    "8 ranks, A800": "megatron-tp2pp2dp2-a800/kineto",
    "8 ranks, A100": "megatron-tp8-a100/kineto",
}
ROOT = Path(__file__).resolve().parents[1]
RUNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETRACE_DATA"))
    data = Path(parser.parse_args().data or ROOT.parent / "shared" / "data") / "traces"
    if not data.exists():
        print(f"skipped: no traces at {data}; give --data DIR")
        return
    print(f"{'job':22}{'tasks':>9}{'edges':>9}{'read s':>9}{'graph s':>9}{'replay s':>10}")
    with tempfile.TemporaryDirectory() as scratch:
        for name, where in JOBS.items():
            target = Path(scratch) / f"{len(name)}{where.count('e')}.trace"
            import_paths([data / where], target, jobs=1)
            trace = TraceSet.open(target)
            recording = read(trace)
            graph = build_from_arrays(recording).graph
            replay(graph)
            times = (
                seconds(lambda trace=trace: read(trace)),
                seconds(lambda recording=recording: build_from_arrays(recording)),
                seconds(lambda graph=graph: replay(graph)),
            )
            print(f"{name:22}{len(graph):>9,}{len(graph.pred):>9,}", end="")
            print(f"{times[0]:>9.3f}{times[1]:>9.3f}{times[2]:>10.4f}")


def seconds(action: Callable[[], object]) -> float:
    """Median wall time over several runs."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main()
