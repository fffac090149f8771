"""How long the program takes to answer: help, import, and a replay of the sample, cold and warm.

Cold means that nothing compiled is cached. Each figure is the median of several runs; the bars
are 0.3 s for help and 10 s for the cold replay.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = (sys.executable, "-m", "foretrace")


def seconds(command: tuple[str, ...], runs: int, cache: str | None = None) -> float:
    """Median wall time of ``command``; with ``cache`` each run compiles into a new folder."""
    times = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ)
            if cache == "cold":
                environment["NUMBA_CACHE_DIR"] = folder
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    rows = [
        ("python -c pass", seconds((sys.executable, "-c", "pass"), 9), None),
        ("import foretrace", seconds((sys.executable, "-c", "import foretrace"), 9), None),
        ("foretrace --help", seconds((*PROGRAM, "--help"), 9), 0.3),
        ("foretrace replay --help", seconds((*PROGRAM, "replay", "--help"), 9), 0.3),
    ]
    sample = min((ROOT / "traces/sample").glob("*.trace"))
    command = (*PROGRAM, "replay", str(sample))
    rows.append(("foretrace replay SAMPLE, cold", seconds(command, 3, "cold"), 10.0))
    rows.append(("foretrace replay SAMPLE, warm", seconds(command, 5), None))
    print(f"{'command':32}{'seconds':>10}{'bar':>8}")
    for name, value, bar in rows:
        print(f"{name:32}{value:10.3f}{'' if bar is None else f'{bar:.1f}':>8}")


if __name__ == "__main__":
    main()
