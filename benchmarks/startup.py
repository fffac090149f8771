"""How long the program takes to answer: help, import, and a replay of the sample, cold and warm.

Cold means that nothing compiled is cached. Each figure is the median of several runs; the bars
are 0.3 s for help and 10 s for the cold replay.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = (sys.executable, "-m", "foretrace")


def cost(
    command: tuple[str, ...], runs: int, bar: float | None = None, cold: bool = False
) -> tuple[str, float, float, float | None]:
    """Name, median wall seconds, median CPU seconds and bar of ``command``."""
    wall, cpu = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ) | ({"NUMBA_CACHE_DIR": folder} if cold else {})
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            wall.append(time.perf_counter() - began)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    words = " ".join(command[1:]).replace("-m foretrace", "foretrace").replace(f"{ROOT}/", "")
    name = words + (", nothing compiled" if cold else "")
    return name, statistics.median(wall), statistics.median(cpu), bar


def main() -> None:
    sample = str(min((ROOT / "traces/sample").glob("*.trace")))
    rows = [
        cost((sys.executable, "-c", "pass"), 9),
        cost((sys.executable, "-c", "import foretrace"), 9),
        cost((*PROGRAM, "--help"), 9, 0.3),
        cost((*PROGRAM, "replay", "--help"), 9),
        cost((*PROGRAM, "replay", sample), 5),
        cost((*PROGRAM, "replay", sample), 3, 10.0, cold=True),
    ]
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'command':70}{'wall s':>8}{'CPU s':>8}{'bar s':>8}")
    for name, wall, cpu, bar in rows:
        print(f"{name:70}{wall:8.2f}{cpu:8.2f}{'' if bar is None else f'{bar:.1f}':>8}")


if __name__ == "__main__":
    main()
