"""The model against public measurements: guards of what the benchmark reports."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from foretrace.replay.cluster import Cluster, load_cluster
from foretrace.replay.costs.collectives.cost import Collectives, collective_costs, take
from foretrace.replay.costs.collectives.fit import fit_machine, fitted_costs
from foretrace.replay.costs.collectives.shapes import kind_code
from foretrace.replay.costs.collectives.shared import DATASHEET


def rows(path: Path, machine: str) -> tuple[Collectives, np.ndarray]:
    if not path.exists():
        pytest.skip(f"no measurements at {path}")
    with path.open() as lines:
        table = [r for r in csv.DictReader(lines) if r["machine"] == machine]
    kinds = [kind_code(r["collective"]) for r in table]
    size, gpus, nodes, time = (
        np.array([float(r[k]) for r in table]) for k in ("size_bytes", "gpus", "nodes", "time_us")
    )
    return Collectives.of(kinds, size, gpus, nodes), time


def error(cluster: Cluster, ops: Collectives, time: np.ndarray) -> np.ndarray:
    made = collective_costs(ops, cluster, DATASHEET).time_us
    return np.abs(made - time) / time


@pytest.mark.parametrize(
    ("machine", "cluster", "bound"),
    [
        ("dgxc-h100", "h100-8x400g", 0.08),
        ("stas-h200x8", "h200-8x400g", 0.05),
        ("xxrjun-h100", "h100-8x400g", 0.07),
    ],
)
def test_datasheet_alone(shared_data: Path, machine: str, cluster: str, bound: float) -> None:
    ops, time = rows(shared_data / "validation/nccl_measurements.csv", machine)
    own = np.flatnonzero(ops.kind < 5)
    assert np.median(error(load_cluster(cluster), take(ops, own), time[own])) < bound


def test_half_of_a_machine_predicts_the_other(shared_data: Path) -> None:
    ops, time = rows(shared_data / "validation/nccl_measurements.csv", "azure-nd-a100-v4")
    cluster, fitted = load_cluster("azure-nd-a100-v4"), np.arange(len(time)) % 2 == 0
    several = ops.nodes > 1  # its one-node rows are of a harness of one process
    train, test = np.flatnonzero(fitted & several), np.flatnonzero(~fitted & several)
    fit = fit_machine(take(ops, train), time[train], cluster)
    off = np.abs(fitted_costs(take(ops, test), cluster, fit).time_us / time[test] - 1)
    assert np.median(off) < 0.08
