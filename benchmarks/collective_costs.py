"""Errors of the collective cost model on public measurements, and its speed.

Run: python benchmarks/collective_costs.py [--data DIR] [--quick]

Reads DIR/validation/nccl_*.csv (default: FORETRACE_DATA, else ../shared/data beside the project).
Which rows are fitted and which judged is in this file: a machine's own rows are never used for the
uncalibrated columns ("left out": every shared constant is fitted on the other machines), and in
the calibrated columns a row is either in the fitted half or in the judged one.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
from _collective_rows import CLUSTERS, HARNESS_US, Rows, machines, read, torch_estimates
from _collective_shared import SharedFit
from rich.console import Console
from rich.table import Table

from foretrace.replay.cluster import load_cluster
from foretrace.replay.costs.collectives.cost import Collectives, collective_costs, take
from foretrace.replay.costs.collectives.fit import FEWEST_ROWS, fit_machine, fitted_costs
from foretrace.replay.costs.collectives.shared import DATASHEET, DEFAULT, SharedConstants
from foretrace.traces.errors import LayoutError

ROOT = Path(__file__).resolve().parents[1]
HALVES = 7
MB = 1 << 20
BEYOND = 64  # GPUs from which the two scale-out files are judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETRACE_DATA"))
    parser.add_argument("--quick", action="store_true", help="one half instead of seven")
    args = parser.parse_args()
    folder = Path(args.data or ROOT.parent / "shared" / "data") / "validation"
    if not (folder / "nccl_measurements.csv").exists():
        print(f"skipped: no measurements at {folder}; give --data DIR")
        return
    console = Console(width=150)
    table = read(folder / "nccl_measurements.csv")
    rows = list(machines(table))
    shared = SharedFit(rows)
    without = {machine: shared.best(without=machine) for machine in {r.machine for r in rows}}
    table = uncalibrated(table, rows, without)
    console.print(errors_table(table), machines_table(table))
    halves = calibrated(table, rows, without, 1 if args.quick else HALVES)
    console.print(calibrated_table(halves))
    larger, notes = beyond_fitted(folder, without)
    console.print(scale_table(larger))
    for note in notes:
        console.print(note)
    for machine, own in sorted(shared.alone.items()):
        if own:
            told = ", ".join(f"{name} {value:.1f}" for name, value in own.items())
            console.print(f"{machine} alone: {told}")
    console.print(f"shared constants fitted on all machines: {shared.best()}")
    console.print(goals_table(table, halves, larger, speed(console)))


def uncalibrated(
    table: pd.DataFrame, rows: list[Rows], without: dict[str, SharedConstants]
) -> pd.DataFrame:
    """Predictions that saw no row of the machine they are judged on, and two to compare."""
    for name in ("torch", "datasheet", "left_out", "default"):
        table[name] = np.nan
    for own in rows:
        for name, constants in (
            ("datasheet", DATASHEET),
            ("left_out", without[own.machine]),
            ("default", DEFAULT),
        ):
            costs = collective_costs(own.ops, own.cluster, constants, own.allowed)
            table.loc[own.index, name] = costs.time_us + own.extra_us
        table.loc[own.index, "torch"] = torch_estimates(own) + own.extra_us
    return table


def bands(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Sets of rows that the tables report."""
    coll, size, one = ~table["p2p"], table["size_bytes"], table["nodes"] == 1
    return {
        "collectives, all": coll,
        "one node, one process a GPU": coll & one & ~table["one_process"],
        "one node, all": coll & one,
        "several nodes, IB/RoCE": coll & ~one & table["machine"].map(_is_rdma),
        "several nodes, other": coll & ~one & ~table["machine"].map(_is_rdma),
        "below 64 KB": coll & (size < 65536),
        "64 KB-1 MB": coll & (size >= 65536) & (size < MB),
        "1-64 MB": coll & (size >= MB) & (size < 64 * MB),
        "64 MB and more": coll & (size >= 64 * MB),
        "all-to-all": table["collective"] == "alltoall",
        "send/recv": table["collective"] == "sendrecv",
    }


def _is_rdma(machine: str) -> bool:
    return load_cluster(CLUSTERS[machine]).fabric.name == "rdma"


def errors_table(table: pd.DataFrame) -> Table:
    columns = ("torch", "datasheet", "left_out", "default")
    out = Table(title="Uncalibrated: |predicted - measured| / measured, median / 90th percentile")
    heads = ("PyTorch 2.13", "NCCL constants only", "machine left out", "default (in sample)")
    for head in ("rows", "n", *heads):
        out.add_column(head, justify="left" if head == "rows" else "right")
    for name, chosen in bands(table).items():
        cells = [_pair(table[chosen], column) for column in columns]
        out.add_row(name, str(int(chosen.sum())), *cells)
    return out


def machines_table(table: pd.DataFrame) -> Table:
    out = Table(title="The same by machine (collectives; all-to-all and send/recv apart)")
    for head in ("machine", "nodes", "kind", "n", "PyTorch", "NCCL only", "left out", "default"):
        out.add_column(head, justify="right" if head not in ("machine", "kind") else "left")
    for (machine, several, p2p), own in table.groupby(["machine", table["nodes"] > 1, "p2p"]):
        cells = [_pair(own, c) for c in ("torch", "datasheet", "left_out", "default")]
        where, kind = ("several" if several else "one"), ("p2p" if p2p else "coll")
        out.add_row(str(machine), where, kind, str(len(own)), *cells)
    return out


def _pair(table: pd.DataFrame, column: str) -> str:
    error = _errors(table, column)
    return f"{error.median():.3f} / {error.quantile(0.9):.2f}" if len(error) else "-"


def _errors(table: pd.DataFrame, column: str) -> pd.Series:
    return ((table[column] - table["time_us"]).abs() / table["time_us"]).dropna()


def calibrated(
    table: pd.DataFrame, rows: list[Rows], without: dict[str, SharedConstants], halves: int
) -> pd.DataFrame:
    """A random half of each machine's rows is fitted, the other half judged.

    The fit starts from constants that saw no row of the machine.
    """
    judged = []
    for seed in range(halves):
        rng = np.random.default_rng(seed)
        for own in rows:
            fitted = rng.random(len(own.time_us)) < 0.5
            test, clean = np.flatnonzero(~fitted), own.time_us - own.extra_us
            if fitted.sum() < FEWEST_ROWS or not len(test):
                continue
            try:
                train = take(own.ops, np.flatnonzero(fitted))
                shared = without[own.machine]
                fit = fit_machine(train, clean[fitted], own.cluster, shared, own.allowed)
            except LayoutError:
                continue
            made = fitted_costs(take(own.ops, test), own.cluster, fit, shared, own.allowed)
            part = table.loc[own.index[test]].copy()
            part["calibrated"] = made.time_us + own.extra_us[test]
            judged.append(part)
    return pd.concat(judged)


def calibrated_table(every: pd.DataFrame) -> Table:
    out = Table(title="Calibrated on half of a machine's rows, judged on the other")
    for head in ("rows", "n", "same rows, machine left out", "calibrated"):
        out.add_column(head, justify="left" if head == "rows" else "right")
    for name, chosen in bands(every).items():
        own = every[chosen]
        out.add_row(name, str(len(own)), _pair(own, "left_out"), _pair(own, "calibrated"))
    return out


def beyond_fitted(
    folder: Path, without: dict[str, SharedConstants]
) -> tuple[pd.DataFrame, list[str]]:
    """Errors on 64 GPUs and more of fits to at most 32, and the fits' warnings."""
    sets = (
        ("nccl_echo_a100.csv", "azure-nd-a100-v4", HARNESS_US),
        ("nccl_alps_gh200.csv", "cscs-alps-gh200", 0.0),
    )
    parts, notes = [], []
    for name, machine, harness_us in sets:
        if not (folder / name).exists():
            continue
        data = pd.read_csv(folder / name, comment="#")
        data = data[data["n_gpus"] > 1]
        cluster, shared = load_cluster(CLUSTERS[machine]), without[machine]
        ops = Collectives.of(0, data["size_bytes"], data["n_gpus"], data["nodes"])
        alone = np.where(data["nodes"] == 1, harness_us * (data["n_gpus"] - 1), 0.0)
        clean = data["time_us"].to_numpy(dtype=float) - alone
        few = np.flatnonzero(data["n_gpus"] <= 32)
        many = np.flatnonzero(data["n_gpus"] >= BEYOND)
        fit = fit_machine(take(ops, few), clean[few], cluster, shared)
        made = fitted_costs(take(ops, many), cluster, fit, shared).time_us
        line = _one_line(ops, clean, few, many)
        own = data.iloc[many][["size_bytes", "n_gpus"]].assign(
            file=name,
            error=np.abs(made - clean[many]) / clean[many],
            line=np.abs(line - clean[many]) / clean[many],
        )
        parts.append(own)
        notes += [f"{name}: {w}" for w in fit.warnings]
    return pd.concat(parts), notes


def scale_table(larger: pd.DataFrame) -> Table:
    out = Table(title="Calibrated on <= 32 GPUs, judged on 64 and more")
    for head in ("file", "rows", "n", "mean", "median", "p90", "one line a scale, mean"):
        out.add_column(head, justify="left" if head in ("file", "rows") else "right")
    for name, every in larger.groupby("file", sort=False):
        large = every[every["size_bytes"] >= 64 * MB]
        for words, own in (("all", every), ("64 MB and more", large)):
            error = own["error"]
            cells = (error.mean(), error.median(), error.quantile(0.9), own["line"].mean())
            out.add_row(str(name), words, str(len(own)), *(f"{c:.3f}" for c in cells))
    return out


def goals_table(
    table: pd.DataFrame, halves: pd.DataFrame, larger: pd.DataFrame, seconds: float
) -> Table:
    """What the model is asked to reach, beside what it reaches."""
    chosen, again = bands(table), bands(halves)
    coll = chosen["collectives, all"]

    def median(rows: pd.Series, column: str) -> float:
        return float(_errors(table[rows], column).median())

    fitted = _errors(halves[again["collectives, all"]], "calibrated")
    mean = larger.groupby("file")["error"].mean()
    large = larger[larger["size_bytes"] >= 64 * MB].groupby("file")["error"].mean()
    rows = [
        ("datasheet: collectives, median", median(coll, "datasheet"), 0.17),
        ("datasheet: one node", median(chosen["one node, all"], "datasheet"), 0.07),
        ("datasheet: 64 MB and more", median(chosen["64 MB and more"], "datasheet"), 0.07),
        ("datasheet: all-to-all", median(chosen["all-to-all"], "datasheet"), 0.15),
        ("machine left out: all-to-all", median(chosen["all-to-all"], "left_out"), 0.15),
        ("datasheet: send/recv", median(chosen["send/recv"], "datasheet"), 0.05),
        ("datasheet over PyTorch", median(coll, "datasheet") / median(coll, "torch"), 0.5),
        ("machine left out: collectives", median(coll, "left_out"), 0.14),
        ("calibrated half: median", float(fitted.median()), 0.07),
        ("calibrated half: 90th percentile", float(fitted.quantile(0.9)), 0.40),
        ("Azure A100 from 64 GPUs: mean", mean.get("nccl_echo_a100.csv", np.nan), 0.10),
        ("Alps from 64 GPUs, 64 MB: mean", large.get("nccl_alps_gh200.csv", np.nan), 0.15),
        ("Alps from 64 GPUs: mean", mean.get("nccl_alps_gh200.csv", np.nan), 0.35),
        ("a million costs: seconds", seconds, 0.3),
    ]
    out = Table(title="Goals")
    for head in ("what", "reached", "goal", ""):
        out.add_column(head, justify="left" if head == "what" else "right")
    for what, reached, goal in rows:
        out.add_row(what, f"{reached:.3f}", f"{goal:.2f}", "" if reached <= goal else "missed")
    return out


def _one_line(ops: Collectives, clean: np.ndarray, few: np.ndarray, many: np.ndarray) -> np.ndarray:
    """What a single latency + bytes / rate line through the largest fitted scale gives."""
    largest = few[ops.ranks[few] == ops.ranks[few].max()]
    size, took = ops.size_bytes[largest], clean[largest]
    weight = 1 / took  # relative errors
    left = np.stack([np.ones_like(size), size], axis=1) * weight[:, None]
    (latency, slope), *_ = np.linalg.lstsq(left, took * weight, rcond=None)
    return latency + slope * ops.size_bytes[many]


def speed(console: Console) -> float:
    """Best wall time of pricing a million collectives, seconds."""
    cluster, count = load_cluster("h100-8x400g"), 1_000_000
    rng = np.random.default_rng(0)
    nodes = 2 ** rng.integers(0, 8, count)
    size = 2.0 ** rng.uniform(3, 34, count)
    ops = Collectives.of(rng.integers(0, 3, count), size, 8 * nodes, nodes)
    collective_costs(ops, cluster)
    took, busy = [], []
    for _ in range(9):
        begin, own = time.perf_counter(), time.process_time()
        collective_costs(ops, cluster)
        took.append(time.perf_counter() - begin)
        busy.append(time.process_time() - own)
    console.print(
        f"one million collective costs: best {min(took):.3f} s, median {np.median(took):.3f} s of "
        f"{len(took)}; processor time {min(busy):.3f} s (load {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores)"
    )
    return min(took)


if __name__ == "__main__":
    main()
