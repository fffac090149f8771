"""Orders that a prediction has to get right: of layouts, of methods, of splits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _published_fit import seconds
from _published_megatron import sc21_row
from _published_rows import number, read
from rich.table import Table
from scipy.stats import spearmanr

from foretrace.replay.extrapolate.times import Efficiency
from foretrace.traces.errors import LayoutError


def rank_correlation(result: Any) -> float:
    """Spearman's, between measured and predicted tokens per second and GPU over all rows."""
    rate = np.array([row.layout.global_batch / row.layout.gpus / row.seconds
                     for row in result.rows])  # fmt: skip
    size = np.array([row.model.layers * row.model.hidden**2 for row in result.rows], float)
    measured = rate * size
    return float(spearmanr(measured, measured / (1 + result.error)).statistic)


def methods_table(result: Any) -> Table:
    """Strategies of the same model, GPUs and batch, fastest first, measured and predicted."""
    table = Table("model, GPUs, batch", "measured order", "predicted order", "same")
    groups: dict[tuple[object, ...], list[int]] = {}
    for k, row in enumerate(result.rows):
        key = (row.model.name, row.layout.gpus, row.layout.global_batch, row.layout.seq)
        groups.setdefault(key, []).append(k)
    for key, members in groups.items():
        if len(members) < 2:
            continue
        measured = sorted(members, key=lambda k: result.rows[k].seconds)
        predicted = sorted(members, key=lambda k: result.rows[k].seconds * (1 + result.error[k]))
        said = [" < ".join(_strategy(result.rows[k].label) for k in order)
                for order in (measured, predicted)]  # fmt: skip
        table.add_row(" ".join(map(str, key)), *said, "yes" if said[0] == said[1] else "no")
    return table


def _strategy(label: str) -> str:
    return label.split()[2]


def splits_table(folder: Path, fits: Mapping[str, tuple[Efficiency, float]]) -> Table:
    """Best and worst tensor times pipeline split of each row that only gives their product."""
    table = Table("megatron_sc21_a100", "measured s", "split of the paper's rule", "best", "worst")
    for line in read(folder / "megatron_sc21_a100.csv"):
        ways = number(line, "model_parallel")
        found = []
        for tp in (t for t in (1, 2, 4, 8, 16) if ways % t == 0):
            row = sc21_row(line, tp, ways // tp)
            try:
                found.append((seconds(row, fits[row.fit][0]), f"tp{tp} pp{ways // tp}", tp))
            except LayoutError:
                continue
        rule = next(f for f in found if f[2] == min(8, ways))
        said = [f"{name} {time / row.seconds - 1:+.1%}" for time, name, _ in
                (rule, min(found), max(found))]  # fmt: skip
        table.add_row(line["model"], f"{row.seconds:.2f}", *said)
    return table
