"""Predicted against published step times, one fit for each GPU type and framework.

Run: python benchmarks/published_steps.py [--data DIR] [--table NAME ...] [--rows]

Reads DIR/validation/*.csv (default: FORETRACE_DATA, else ../shared/data beside the project). A
seeded tenth of a table's rows at most is fitted (`_published_fit`), all others are reported. Beside
each table stands the null: one constant MFU for each GPU type and framework, of the same fitted
rows, with the bubble of 1F1B.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _published_fit import FACTORS, centre_of, fit_rows, seconds, split
from _published_megatron import core_h100, dgxc, folding, mlperf, sc21, vtrain
from _published_null import ideal_seconds, null_share
from _published_order import methods_table, rank_correlation, splits_table
from _published_ratios import bridge, lumos
from _published_rows import Row
from _published_sharded import foundry, torchtitan, ultrascale
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from foretrace.replay.extrapolate.times import Efficiency
from foretrace.traces.errors import ForetraceError

ROOT = Path(__file__).resolve().parents[1]
F64 = NDArray[np.float64]
READERS: tuple[Callable[[Path], list[Row]], ...] = (
    vtrain, sc21, ultrascale, dgxc, foundry, folding, torchtitan, core_h100, mlperf, bridge, lumos,
)  # fmt: skip
BARS = {
    "vtrain multi-node": 0.10,
    "vtrain single-node": 0.10,
    "ultrascale_playbook": 0.15,
    "dgxc BF16": 0.06,
    "llmfoundry_mpt": 0.05,
    "moe_parallel_folding": 0.12,
    "megatron_sc21_a100": 0.12,
    "torchtitan": 0.10,
    "megatron_core_h100": 0.10,
    "mlperf_llm": 0.10,
}
"""Mean absolute error that a table is held to; the others are reported without one."""
RATIOS = ("lumos_fig7",)
"""Tables that do not say what ran, so only ratios between their rows mean something."""


@dataclass(frozen=True, slots=True)
class Result:
    """Reported rows of a table: predicted over measured, less one; shape ``(rows,)`` each.

    Attributes:
        name: the table.
        rows: reported rows that a prediction was made for.
        fitted: number of the table's rows that were fitted.
        error: of the prediction.
        null: of the null.
        refused: labels of rows whose layout was refused, with the reason.
    """

    name: str
    rows: list[Row]
    fitted: int
    error: F64
    null: F64
    refused: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETRACE_DATA"))
    parser.add_argument("--table", nargs="*", help="beginnings of names of tables to report")
    parser.add_argument("--rows", action="store_true", help="every row, not only the worst")
    args = parser.parse_args()
    folder = Path(args.data or ROOT.parent / "shared" / "data") / "validation"
    if not folder.exists():
        print(f"skipped: no tables at {folder}; give --data DIR")
        return
    console = Console(width=150)
    wanted = tuple(args.table or ("",))
    every = distinct([row for reader in READERS for row in reader(folder)])
    fitted, reported = split(every)
    reported = [row for row in reported if row.table.startswith(wanted)]
    fits = fits_of(fitted, {row.fit for row in reported}, console)
    results = [
        evaluate(name, [row for row in reported if row.table == name], fitted, fits)
        for name in dict.fromkeys(row.table for row in reported)
    ]
    console.print(summary(results))
    for result in results:
        console.print(worst(result, len(result.rows) if args.rows else 6))
        for reason in result.refused:
            console.print(f"refused: {reason}")
    by_name = {result.name: result for result in results}
    if "ultrascale_playbook" in by_name:
        found = by_name["ultrascale_playbook"]
        console.print(f"rank correlation of ultrascale_playbook: {rank_correlation(found):.3f}")
    if "moe_parallel_folding" in by_name:
        console.print(methods_table(by_name["moe_parallel_folding"]))
    if "megatron_sc21_a100" in by_name:
        console.print(splits_table(folder, fits))


def distinct(rows: Sequence[Row]) -> list[Row]:
    """Rows without repeats: one measurement stands in several releases of a table."""
    seen: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = (row.table, row.model.name, row.layout, row.cluster.gpu.name, row.seconds)
        seen.setdefault((*key, row.label if row.table == "torchtitan" else ""), row)
    return list(seen.values())


def fits_of(
    fitted: Sequence[Row], wanted: set[str], console: Console
) -> dict[str, tuple[Efficiency, float]]:
    """Efficiency and null of each GPU type and framework.

    Where no row may be fitted, they are those of the GPU's generation under the same framework,
    else the centres.
    """
    result = {}
    for name in sorted(wanted):
        rows = [row for row in fitted if row.fit == name]
        like = rows or [row for row in fitted if row.fit == name.replace("H200", "H100")]
        fit = fit_rows(like, centre_of(name))
        result[name] = fit, null_share(like) if like else 0.4
        values = ", ".join(f"{key} {getattr(fit, key):.3g}" for key in FACTORS)
        console.print(f"{name}: {len(rows)} rows fitted; {values}; null MFU {result[name][1]:.1%}")
    return result


def evaluate(
    name: str, rows: Sequence[Row], fitted: Sequence[Row],
    fits: dict[str, tuple[Efficiency, float]],
) -> Result:  # fmt: skip
    """Errors of a table's reported rows.

    The null is of the table's own fitted rows of the GPU type and framework where there are any,
    else of all of them.
    """
    kept, error, null, refused = [], [], [], []
    shares = {}
    for kind in dict.fromkeys(row.fit for row in rows):
        own = [row for row in fitted if row.table == name and row.fit == kind]
        shares[kind] = null_share(own) if own else fits[kind][1]
    for row in rows:
        fit, share = fits[row.fit][0], shares[row.fit]
        try:
            error.append(seconds(row, fit) / row.seconds - 1)
        except ForetraceError as reason:
            refused.append(f"{row.label}: {reason}")
            continue
        kept.append(row)
        null.append(ideal_seconds(row) / share / row.seconds - 1)
    count = sum(row.table == name for row in fitted)
    errors = np.array([error, null])
    if name in RATIOS:  # of each row to the first
        errors = (1 + errors[:, 1:]) / (1 + errors[:, :1]) - 1
        kept = kept[1:]
    return Result(name, kept, count, errors[0], errors[1], refused)


def summary(results: Sequence[Result]) -> Table:
    """One line a table."""
    table = Table("table", "fitted", "reported", "mean |error|", "median", "90th", "mean",
                  "null mean |error|", "bar", "held")  # fmt: skip
    for r in results:
        size = np.abs(r.error)
        bar = BARS.get(r.name)
        table.add_row(
            r.name, str(r.fitted), str(len(r.rows)), f"{size.mean():.1%}", f"{np.median(size):.1%}",
            f"{np.percentile(size, 90):.1%}", f"{r.error.mean():+.1%}",
            f"{np.abs(r.null).mean():.1%}", f"{bar:.0%}" if bar else "-",
            "-" if bar is None else "yes" if size.mean() <= bar else "no",
        )  # fmt: skip
    return table


def worst(result: Result, count: int) -> Table:
    """Rows that are furthest off."""
    table = Table(f"{result.name}: furthest off", "measured s", "error", "null")
    for k in np.argsort(-np.abs(result.error))[:count]:
        row = result.rows[k]
        table.add_row(row.label, f"{row.seconds:.3f}", f"{result.error[k]:+.1%}",
                      f"{result.null[k]:+.1%}")  # fmt: skip
    return table


if __name__ == "__main__":
    main()
