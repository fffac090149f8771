"""The report's tables, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace.analysis.activity import Activity
from foretrace.analysis.breakdown import COLUMNS, StepPieces, communication_breakdown, waits
from foretrace.analysis.communication import communication
from foretrace.analysis.criticalpath import critical_path_table
from foretrace.analysis.figures import LABELS
from foretrace.analysis.groups import families, ranks_text
from foretrace.analysis.kernels import kernels
from foretrace.analysis.run import Run

if TYPE_CHECKING:
    import pandas as pd

TOP_KERNELS = 20
TOP_WAITS = 15
MOST_ROWS = 1_500
"""With more rows than this the per-rank table keeps the slowest step only."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table for the page.

    Attributes:
        caption: what it shows.
        heads: column titles.
        kinds: how each column is written: "text", "name", "ms", "percent", "signed", "count",
            "bytes", "rate".
        rows: values.
    """

    caption: str
    heads: tuple[str, ...]
    kinds: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def tables(run: Run, cut: StepPieces, table: pd.DataFrame, slowest: int) -> dict[str, Table]:
    """All tables of the page by name."""
    return {
        "ranks": _rank_table(table, slowest),
        "communication": _communication_table(run, cut),
        "waits": _wait_table(cut),
        "kernels": _kernel_table(run),
        "path": _path_table(run),
        "accuracy": _accuracy_table(run),
    }


def _rank_table(table: pd.DataFrame, slowest: int) -> Table:
    caption = "What each rank's devices do in each step. The columns after total add up to it, "
    caption += "except hidden communication, which runs behind compute."
    if len(table) > MOST_ROWS:
        table = table[table["step"] == slowest]
        caption += f" Only the slowest step ({slowest}) is listed."
    used = [c for a, c in COLUMNS.items() if a >= Activity.IDLE_RANK and table[c].any()]
    columns = ["compute_ns", "exposed_communication_ns", "copy_ns", *used]
    columns = [*columns, "hidden_communication_ns"]
    names = {c: LABELS[a.name.lower()] for a, c in COLUMNS.items()}
    names["hidden_communication_ns"] = "hidden communication"
    heads = ("rank", "step", "total", *(names[c] for c in columns))
    rows = list(table[["rank", "step", "total_ns", *columns]].itertuples(index=False, name=None))
    kinds = ("count", "count", *("ms",) * (len(columns) + 1))
    return Table(caption, heads, kinds, rows)


def _communication_table(run: Run, cut: StepPieces) -> Table:
    """Per kind and family of groups; single groups would flood the page."""
    names = [*families(run.graph.groups), "group unknown"]
    table = communication(run.measured)
    split = communication_breakdown(cut)
    for frame in (table, split):
        frame["family"] = [names[g] for g in frame["group"]]
    keys = ["kind", "family"]
    table["sized"] = table["bytes"].clip(lower=0)
    table["seconds"] = table["sized"] / table["busbw_GBps"]
    sums = table.groupby(keys)[["count", "sized", "wait_ns", "exec_ns", "seconds"]].sum()
    groups = table.groupby(keys)["group"].nunique()
    exposed = split.groupby(keys)[["exposed_ns", "hidden_ns"]].sum()
    both = sums.join(exposed).fillna(0).sort_values("exec_ns", ascending=False)
    both["groups"] = groups
    rows = [_communication_row(row) for row in both.reset_index().to_dict("records")]
    return Table(
        "Communication over the whole record. Waiting (for the last rank) and execution are "
        "summed over ranks; bus bandwidth as in nccl-tests, from the last arrival on.",
        (
            "kind", "groups of", "groups", "operations", "size of each", "waiting", "execution",
            "exposed", "bus GB/s",
        ),
        ("text", "text", "count", "count", "bytes", "ms", "ms", "percent", "rate"),
        rows,
    )  # fmt: skip


def _communication_row(row: dict[Any, Any]) -> tuple[Any, ...]:
    apart = row["exposed_ns"] + row["hidden_ns"]
    return (
        row["kind"],
        row["family"],
        int(row["groups"]),
        int(row["count"]),
        row["sized"] / row["count"] if row["sized"] > 0 else None,
        row["wait_ns"],
        row["exec_ns"],
        row["exposed_ns"] / max(apart, 1),
        row["sized"] / row["seconds"] if row["seconds"] > 0 else None,
    )


def _wait_table(cut: StepPieces) -> Table:
    table = waits(cut)
    steps = max(len(cut.windows), 1)
    pairs = table.groupby(["rank", "waits_for", "kind"], as_index=False)[["idle_ns"]].sum()
    pairs = pairs.sort_values("idle_ns", ascending=False).head(TOP_WAITS)
    rows = [
        (rank, late, kind or "not in a collective", idle / steps)
        for rank, late, kind, idle in pairs.itertuples(index=False, name=None)
    ]
    return Table(
        "Who waits for whom, per step: the rank that came last, and in what.",
        ("rank", "waits for rank", "in", "idle"),
        ("count", "count", "text", "ms"),
        rows,
    )


def _kernel_table(run: Run) -> Table:
    table = kernels(run.measured)
    columns = ["name", "class", "ranks", "count", "total_ns", "share", "mean_ns", "max_ns"]
    more = max(len(table) - TOP_KERNELS, 0)
    caption = "Device work with the longest total over all ranks, waiting excluded."
    if more:
        rest = float(table["share"][TOP_KERNELS:].sum())
        caption += f" {more} more kinds take {rest:.0%} of the total."
    return Table(
        caption,
        ("name", "class", "ranks", "count", "total", "share", "mean", "longest"),
        ("name", "text", "count", "count", "ms", "percent", "ms", "ms"),
        list(table.head(TOP_KERNELS)[columns].itertuples(index=False, name=None)),
    )


def _path_table(run: Run) -> Table:
    table = critical_path_table(run.replayed)
    columns = [c for c in table.columns if c.endswith("_ns")]
    rows: list[tuple[Any, ...]] = []
    for step, part in table.groupby("step") if len(table) else ():
        through = sorted(int(r) for r in part["rank"] if r >= 0)
        rows.append((step, ranks_text(through), *part[columns].sum().tolist()))
    return Table(
        "The critical path of each replayed step: what its length is made of.",
        ("step", "through ranks", "total", *(c.removesuffix("_ns") for c in columns[1:])),
        ("count", "text", *("ms",) * len(columns)),
        rows,
    )


def _accuracy_table(run: Run) -> Table:
    rows = [
        (
            s.step, s.measured_ns, s.replayed_ns, s.error, s.null_error, s.unexplained,
            s.unexplained_early, s.copied_host,
        )
        for s in run.assessment.steps
    ]  # fmt: skip
    return Table(
        "Measured against replayed. The null replay knows nothing of waiting between ranks: "
        "where it is as good, the error alone proves nothing. Unexplained is time on the "
        "critical path that the model does not account for. Where steps overlap, the mean at the "
        "top counts their common time once.",
        (
            "step", "measured", "replayed", "error", "null replay", "unexplained late",
            "unexplained early", "host copied",
        ),
        ("count", "ms", "ms", "signed", "signed", "percent", "percent", "percent"),
        rows,
    )  # fmt: skip


def sensitivity_table(table: pd.DataFrame) -> Table:
    """What speeding up each kind of work saves."""
    columns = ["what", "path_ns", "path_share", "saving_ns", "saving_share"]
    kept = table[np.abs(table["saving_share"]) >= 0.001]
    return Table(
        "How much shorter the step gets, by replay, if one kind of work took half as long.",
        ("what", "on the critical path", "of the step", "saves", "of the step"),
        ("name", "ms", "percent", "ms", "percent"),
        list(kept[columns].itertuples(index=False, name=None)),
    )
