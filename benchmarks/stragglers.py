"""Straggler what-ifs of the published operation tables beside what their own analyzer says.

Run: python benchmarks/stragglers.py [--data DIR] [--runs 5]

The tables, and the results that were published with them (``result-*.json``), are read from DIR
(default: FORETRACE_DATA, else ../shared/data beside the project). Times are those of whole
processes, best and median of several runs; processor time says what they take on a machine that
does nothing else, where its other work lets it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from foretrace.replay.stragglers import Blame, Charge, find_stragglers
from foretrace.traces.optable.table import read_table

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("AR", "ST")
WITHIN = 0.01  # attribution, and the gap from which an order is judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETRACE_DATA"))
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    folder = Path(options.data or ROOT.parent / "shared" / "data") / "traces/megatron-straggler"
    if not folder.is_dir():
        print(f"skipped: no tables at {folder}; give --data DIR")
        return
    console = Console(width=110)
    for name in NAMES:
        path = folder / f"trace-{name}.parquet"
        published = json.loads((folder / f"result-{name}.json").read_text())
        blame = find_stragglers(read_table(path))
        console.print(steps_table(name, blame, published))
        console.print(attribution_table(name, blame, published))
        console.print(times_table(name, path, options.runs))


def steps_table(name: str, blame: Blame, published: dict[str, Any]) -> Table:
    """Lengths of steps: ours, theirs, and how far they are apart."""
    table = Table(title=f"{name}: steps")
    for column in ("", "foretrace", "published", "distance", "bar"):
        table.add_column(column, justify="left" if not column else "right")
    nodelay = of_steps(published["step_t_nodelay"], blame.step)
    ideal = of_steps(published["step_t_noblk"], blame.step)
    base = of_steps(published["step_t_base"], blame.step)
    for what, ours, theirs, bar in (
        ("without launch gaps, worst step", blame.actual_ns / 1e9, nodelay, "0.1%"),
        ("ideal, worst step", blame.ideal_ns / 1e9, ideal, ""),
    ):
        off = np.abs(ours / theirs - 1)
        worst = int(off.argmax())
        cells = (f"{ours[worst]:.4f} s", f"{theirs[worst]:.4f} s", f"{off[worst]:.4%}")
        table.add_row(what, *cells, bar)
    held_out = blame.held_out
    assert held_out is not None  # noqa: S101 - the published tables have many steps
    theirs = np.abs(nodelay - base).mean() / base.mean()
    cells = (f"{held_out.error:.3%}", f"{theirs:.3%}", "")
    table.add_row("distance from the measured step, held-out steps", *cells, f"< {theirs:.2%}")
    slowdown = published["blocking_slowdown"]
    off = abs(blame.slowdown / slowdown - 1)
    table.add_row("slowdown", f"{blame.slowdown:.4f}", f"{slowdown:.4f}", f"{off:.3%}", "1%")
    return table


def attribution_table(name: str, blame: Blame, published: dict[str, Any]) -> Table:
    """Slowdown of each part: ours and theirs."""
    table = Table(title=f"{name}: attribution (bar: within 1%, order where theirs differ by 1%)")
    for column in ("part", "foretrace", "published", "distance", "order"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for what, charges, key in (
        ("dp rank", blame.dp_ranks, "dp_rank"),
        ("stage", blame.stages, "stage"),
        ("", blame.operations, "optype"),
    ):
        theirs = published[f"blocking_decompose_by_{key}"]
        order = "agrees" if same_order(charges, theirs) else "DIFFERS"
        for charge in charges:
            want = theirs[str(charge.part)]
            cells = (
                f"{charge.slowdown:.4f}",
                f"{want:.4f}",
                f"{abs(charge.slowdown / want - 1):.3%}",
            )
            table.add_row(f"{what} {charge.part}".strip(), *cells, order)
            order = ""
        table.add_section()
    return table


def times_table(name: str, path: Path, runs: int) -> Table:
    """Wall time of whole processes, and what they say of the what-ifs alone."""
    whole, inside, used = [], [], []
    program = str(Path(sys.executable).with_name("foretrace"))
    command = [program, "stragglers", str(path), "--json"]
    for _ in range(runs + 1):  # the first one warms the file cache
        begin, before = time.perf_counter(), processor_time()
        done = subprocess.run(command, capture_output=True, check=True)
        whole.append(time.perf_counter() - begin)
        used.append(processor_time() - before)
        inside.append(json.loads(done.stdout)["seconds"])
    table = Table(
        title=f"{name}: time, {runs} runs, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    for column in ("", "best", "median", "bar (AR)"):
        table.add_column(column, justify="left" if not column else "right")
    for what, values, bar in (
        ("all what-ifs, after loading", inside[1:], "0.7 s"),
        ("whole process", whole[1:], "1.5 s"),
        ("its processor time", used[1:], ""),
    ):
        table.add_row(what, f"{min(values):.2f} s", f"{median(values):.2f} s", bar)
    return table


def processor_time() -> float:
    """Seconds of processor time of all processes that were started from here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def of_steps(values: dict[str, float], steps: np.ndarray) -> np.ndarray:
    return np.array([values[str(step)] for step in steps])


def same_order(charges: tuple[Charge[Any], ...], theirs: dict[str, float]) -> bool:
    """Whether parts that clearly differ in the published result stand in the same order."""
    place = {str(charge.part): i for i, charge in enumerate(charges)}
    return all(
        place[worse] < place[better]
        for worse in theirs
        for better in theirs
        if theirs[worse] > (1 + WITHIN) * theirs[better]
    )


if __name__ == "__main__":
    main()
