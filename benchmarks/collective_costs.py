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
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from _collective_rows import CLUSTERS, HARNESS_US, Rows, machines, read, torch_estimates
from rich.console import Console
from rich.table import Table

from foretrace.replay.cluster import load_cluster
from foretrace.replay.costs.collectives.cost import Collectives, collective_costs, take
from foretrace.replay.costs.collectives.fit import FEWEST_ROWS, fit_machine, fit_scope, fitted_costs
from foretrace.replay.costs.collectives.nccl_constants import CANDIDATES, LL, LL128, TREE
from foretrace.replay.costs.collectives.shared import DATASHEET, DEFAULT, SharedConstants
from foretrace.traces.errors import LayoutError

ROOT = Path(__file__).resolve().parents[1]
HALVES = 7
MB = 1 << 20
BEYOND = 64  # GPUs from which the two scale-out files are judged
PUBLISHED_HOPS = ("efa", "efa-new", "efa-old")  # AWS's tuner says 20 us: nothing is fitted
FEWEST_SMALL = 8  # rows below 1 MB over nodes that a machine needs to tell a hop's latency
FEWEST_GROWTH, GROWTH_BYTES = 4, 8192  # rows of a protocol that tell how its hops grow
HOP_PARAMETERS = ("hop_us", "rate", "ll_hop_us", "ll128_hop_us")
GRID = {"tree_share": (1.0, 0.75, 0.5, 0.4)}
_MACHINE_CAP = 1.0  # a machine's median error counts for at most this in the shared fit


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
    console.print(calibrated_table(table, rows, without, 1 if args.quick else HALVES))
    console.print(scale_table(folder, without))
    for machine, own in sorted(shared.alone.items()):
        if own:
            told = ", ".join(f"{name} {value:.1f}" for name, value in own.items())
            console.print(f"{machine} alone: {told}")
    console.print(f"shared constants fitted on all machines: {shared.best()}")
    speed(console)


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


class SharedFit:
    """Shared constants, fitted on some machines.

    Every machine with enough small rows over nodes is fitted alone; a shared constant is the
    median of its machines' values (of one fabric for hops and LL's growth). RCCL chooses by
    tables of its own, so AMD's machines tell nothing here.
    ``tree_share`` then goes by the mean over machines of the median error.
    """

    def __init__(self, rows: list[Rows]) -> None:
        coll = [(r, np.flatnonzero(r.ops.kind < 5)) for r in rows]
        self._rows = [(r, w) for r, w in coll if len(w)]
        self.alone = {name: self._fit_alone(name) for name in {r.machine for r in rows}}
        self._errors = cache(self._error_of)

    def _fit_alone(self, machine: str) -> dict[str, float] | None:
        """What one machine's all-reduces over nodes can tell."""
        parts = []
        for rows, which in self._rows:
            ops = rows.ops
            own = which[(ops.nodes[which] > 1) & (ops.kind[which] == 0)]
            enough = (ops.size_bytes[own] < MB).sum() >= FEWEST_SMALL
            if rows.machine == machine and enough and rows.cluster.gpu.vendor == "nvidia":
                parts.append((rows, own))
        if not parts:
            return None
        rows, which = max(parts, key=lambda p: len(p[1]))
        ops, clean = take(rows.ops, which), (rows.time_us - rows.extra_us)[which]
        fit = fit_scope(ops, clean, rows.cluster, DATASHEET, rows.allowed, HOP_PARAMETERS)
        pick = collective_costs(ops, rows.cluster, DATASHEET, rows.allowed).pick
        fabric = rows.cluster.fabric.name
        told = {f"hop {fabric}": fit.hop_us}
        values = {
            (TREE, LL): (f"LL {fabric}", fit.ll_hop_us),
            (TREE, LL128): ("LL128", fit.ll128_hop_us),
        }
        for pair, (name, value) in values.items():
            ran = (pick == CANDIDATES.index(pair)) & (ops.size_bytes >= GROWTH_BYTES)
            if ran.sum() >= FEWEST_GROWTH:
                told[name] = value
        return told

    def _medians(self, without: str) -> SharedConstants:
        known = [told for m, told in self.alone.items() if told and m != without]

        def median(name: str, absent: float) -> float:
            values = [told[name] for told in known if name in told]
            return round(float(np.median(values)), 2) if values else absent

        fabrics = ["rdma", *sorted({load_cluster(c).fabric.name for c in CLUSTERS.values()})]
        hops, growth = dict(DATASHEET.hop_us), {}
        for fabric in fabrics:
            growth[fabric] = median(f"LL {fabric}", growth.get("rdma", 0.0))
            if fabric not in PUBLISHED_HOPS:
                hops[fabric] = median(f"hop {fabric}", hops["rdma"])
        p2p = dict(DEFAULT.p2p_remote_peer_us)
        if without == "alcf-polaris":
            p2p.pop("cxi")  # fitted on that machine alone
        return replace(
            DATASHEET,
            hop_us=hops,
            p2p_remote_peer_us=p2p,
            ll_hop_us=growth,
            ll128_hop_us=median("LL128", 0.0),
        )

    def _error_of(self, number: int, constants: Frozen) -> float:
        rows, which = self._rows[number]
        shared = constants.value
        costs = collective_costs(take(rows.ops, which), rows.cluster, shared, rows.allowed)
        made = costs.time_us + rows.extra_us[which]
        error = np.abs(made - rows.time_us[which]) / rows.time_us[which]
        return float(min(np.median(error), _MACHINE_CAP))

    def best(self, without: str = "") -> SharedConstants:
        """Constants fitted on all machines but one."""
        shared = self._medians(without)
        used = [n for n, (rows, _) in enumerate(self._rows) if rows.machine != without]
        for name, tries in GRID.items():
            options = [replace(shared, **{name: value}) for value in tries]
            shared = min(options, key=lambda o: np.mean([self._errors(n, Frozen(o)) for n in used]))
        return shared


@dataclass(frozen=True)
class Frozen:
    """Constants as a key: equal where they print alike."""

    value: SharedConstants

    def __hash__(self) -> int:
        return hash(repr(self.value))


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
    error = ((table[column] - table["time_us"]).abs() / table["time_us"]).dropna()
    if not len(error):
        return "-"
    return f"{error.median():.3f} / {error.quantile(0.9):.2f}"


def calibrated_table(
    table: pd.DataFrame, rows: list[Rows], without: dict[str, SharedConstants], halves: int
) -> Table:
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
    every = pd.concat(judged)
    out = Table(title=f"Calibrated on half of a machine's rows, judged on the other ({halves} x)")
    for head in ("rows", "n", "same rows, machine left out", "calibrated"):
        out.add_column(head, justify="left" if head == "rows" else "right")
    for name, chosen in bands(every).items():
        own = every[chosen]
        out.add_row(name, str(len(own)), _pair(own, "left_out"), _pair(own, "calibrated"))
    return out


def scale_table(folder: Path, without: dict[str, SharedConstants]) -> Table:
    """Fitted on at most 32 GPUs, judged on 64 and more."""
    out = Table(title="Calibrated on <= 32 GPUs, judged on 64 and more")
    for head in ("file", "rows", "n", "mean", "median", "p90", "one line a scale, mean"):
        out.add_column(head, justify="left" if head in ("file", "rows") else "right")
    sets = (
        ("nccl_echo_a100.csv", "azure-nd-a100-v4", HARNESS_US),
        ("nccl_alps_gh200.csv", "cscs-alps-gh200", 0.0),
    )
    notes = []
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
        large = ops.size_bytes[many] >= 64 * MB
        for words, own in (("all", np.ones(len(many), bool)), ("64 MB and more", large)):
            error = np.abs(made - clean[many])[own] / clean[many][own]
            other = np.abs(line - clean[many])[own] / clean[many][own]
            cells = (error.mean(), np.median(error), np.quantile(error, 0.9), other.mean())
            out.add_row(name, words, str(len(error)), *(f"{c:.3f}" for c in cells))
        notes += [f"{name}: {w}" for w in fit.warnings]
    out.caption = "\n".join(notes)
    return out


def _one_line(ops: Collectives, clean: np.ndarray, few: np.ndarray, many: np.ndarray) -> np.ndarray:
    """What a single latency + bytes / rate line through the largest fitted scale gives."""
    largest = few[ops.ranks[few] == ops.ranks[few].max()]
    size, took = ops.size_bytes[largest], clean[largest]
    weight = 1 / took  # relative errors
    left = np.stack([np.ones_like(size), size], axis=1) * weight[:, None]
    (latency, slope), *_ = np.linalg.lstsq(left, took * weight, rcond=None)
    return latency + slope * ops.size_bytes[many]


def speed(console: Console) -> None:
    cluster, count = load_cluster("h100-8x400g"), 1_000_000
    rng = np.random.default_rng(0)
    nodes = 2 ** rng.integers(0, 8, count)
    size = 2.0 ** rng.uniform(3, 34, count)
    ops = Collectives.of(rng.integers(0, 3, count), size, 8 * nodes, nodes)
    collective_costs(ops, cluster)
    took = []
    for _ in range(7):
        begin = time.perf_counter()
        collective_costs(ops, cluster)
        took.append(time.perf_counter() - begin)
    console.print(
        f"one million collective costs: best {min(took):.3f} s, median {np.median(took):.3f} s "
        f"of {len(took)} (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)"
    )


if __name__ == "__main__":
    main()
