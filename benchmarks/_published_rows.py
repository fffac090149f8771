"""Rows of the published step times: what ran, where, and how long a step took."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.fit_file import MachineFit
from foretrace.replay.layout import Layout
from foretrace.replay.model import Model


@dataclass(frozen=True, slots=True)
class Row:
    """One measured step.

    Attributes:
        table: table that it is reported under.
        fit: GPU type and framework, which share one fit.
        label: what tells it from the table's other rows.
        model: the model.
        layout: how it was split, with the framework's documented options.
        cluster: what it ran on.
        seconds: measured time of a step.
        calibration: measured collectives of the machine, where they are published.
        can_fit: whether it may be among the fitted rows.
    """

    table: str
    fit: str
    label: str
    model: Model
    layout: Layout
    cluster: Cluster
    seconds: float
    calibration: MachineFit | None = None
    can_fit: bool = True


def read(path: Path) -> list[dict[str, str]]:
    """Lines of a table; comments at its head are skipped."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def number(line: dict[str, str], key: str, default: int = 1) -> int:
    """A whole number of a line, or the default where it is empty."""
    return int(float(line[key])) if line.get(key) else default
