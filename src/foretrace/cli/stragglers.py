"""``foretrace stragglers``: what slow workers cost a job, from a table of its operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from foretrace.cli.terminal import (
    duration,
    percent,
    print_json,
    print_line,
    print_note,
    print_table,
)

if TYPE_CHECKING:
    from foretrace.replay.stragglers import Blame
    from foretrace.traces.optable.table import OpTable

MOST_ROWS = 8  # rows of the tables of workers and dp ranks
SPECIFIC = 0.8  # a smaller part is named when repairing it saves this share of the best saving
WORTH_A_LOOK = 0.01  # share of the step below which no part is called a straggler


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker.

    Attributes:
        dp: data-parallel rank.
        pp: pipeline stage.
        slowdown: of a job that is ideal but for this worker, against the ideal job.
        saved_ms: what a step gets shorter when only this worker becomes ideal.
    """

    dp: int
    pp: int
    slowdown: float
    saved_ms: float


@dataclass(frozen=True, slots=True)
class DpRow:
    """One data-parallel rank, all stages; fields as in :class:`WorkerRow`."""

    dp: int
    slowdown: float
    saved_ms: float


@dataclass(frozen=True, slots=True)
class StageRow:
    """One pipeline stage, all data-parallel ranks; fields as in :class:`WorkerRow`."""

    stage: int
    slowdown: float
    saved_ms: float


@dataclass(frozen=True, slots=True)
class OperationRow:
    """One operation type on all workers; fields as in :class:`WorkerRow`."""

    operation: str
    slowdown: float
    saved_ms: float


@dataclass(frozen=True, slots=True)
class StragglersView:
    """Everything ``foretrace stragglers`` says; lists are sorted, worst first.

    Attributes:
        slowdown: length of the job without launch gaps against its ideal.
        step_error: mean error of steps replayed with the gaps of other steps; null unknown.
        workers: one row per worker.
        dp_ranks: one row per data-parallel rank.
        stages: one row per pipeline stage.
        operations: one row per operation type.
        seconds: time that all what-ifs took, after loading.
        steps: steps of the table.
        measured_ms: mean step as measured.
        actual_ms: mean step without launch gaps.
        ideal_ms: mean step of the ideal job.
        meetings: waits that no row shows and that were inferred.
        problems: what is odd about the table.
    """

    slowdown: float
    step_error: float | None
    workers: list[WorkerRow]
    dp_ranks: list[DpRow]
    stages: list[StageRow]
    operations: list[OperationRow]
    seconds: float
    steps: int
    measured_ms: float
    actual_ms: float
    ideal_ms: float
    meetings: list[str]
    problems: list[str]


def stragglers_command(
    table: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE.parquet",
            help="Operations of all workers, Parquet or CSV.",
            show_default=False,
        ),
    ],
    meta: Annotated[
        Path | None,
        typer.Option(
            metavar="META.yaml",
            help="The layout (dp_size, pp_size ...); by default meta-*.yaml beside the table.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Say how far slow workers hold a job back, and which ones, from a table of operations."""
    from foretrace.replay.stragglers import find_stragglers
    from foretrace.traces.optable.table import read_table

    operations = read_table(table, meta)
    begin = perf_counter()
    blame = find_stragglers(operations)
    view = make_view(blame, perf_counter() - begin)
    if as_json:
        print_json(view)
        return
    print_view(view, _title(operations, len(blame.step)))
    for problem in view.problems:
        print_note(problem)


def make_view(blame: Blame, seconds: float) -> StragglersView:
    """What the command says, as plain records."""
    held_out = blame.held_out
    return StragglersView(
        slowdown=blame.slowdown,
        step_error=held_out.error if held_out else None,
        workers=[WorkerRow(*c.part, c.slowdown, c.saved_ns / 1e6) for c in blame.workers],
        dp_ranks=[DpRow(c.part, c.slowdown, c.saved_ns / 1e6) for c in blame.dp_ranks],
        stages=[StageRow(c.part, c.slowdown, c.saved_ns / 1e6) for c in blame.stages],
        operations=[OperationRow(c.part, c.slowdown, c.saved_ns / 1e6) for c in blame.operations],
        seconds=seconds,
        steps=len(blame.step),
        measured_ms=float(blame.measured_ns.mean()) / 1e6,
        actual_ms=float(blame.actual_ns.mean()) / 1e6,
        ideal_ms=float(blame.ideal_ns.mean()) / 1e6,
        meetings=list(held_out.meetings) if held_out else [],
        problems=list(blame.problems),
    )


def _title(table: OpTable, steps: int) -> str:
    layout = table.layout
    ranks = f", {layout.ranks} ranks" if layout.ranks > layout.dp * layout.pp else ""
    return (
        f"{Path(table.source).name}: dp {layout.dp} x pp {layout.pp}{ranks}, "
        f"{steps} step{'' if steps == 1 else 's'}, {len(table):,} operations"
    )


def print_view(view: StragglersView, title: str) -> None:
    """Write it for people: the verdict first."""
    lines = {
        "worker": [Line(f"dp {w.dp}, stage {w.pp}", w.slowdown, w.saved_ms) for w in view.workers],
        "dp rank": [Line(f"dp {d.dp}", d.slowdown, d.saved_ms) for d in view.dp_ranks],
        "stage": [Line(f"stage {s.stage}", s.slowdown, s.saved_ms) for s in view.stages],
        "operation": [Line(o.operation, o.slowdown, o.saved_ms) for o in view.operations],
    }
    print_line(title)
    print_line(
        f"step: measured {_ms(view.measured_ms)}, without launch gaps {_ms(view.actual_ms)}, "
        f"ideal {_ms(view.ideal_ms)}: slowdown {view.slowdown:.3f}x"
    )
    print_line(_verdict(lines, view.actual_ms))
    if view.step_error is not None:
        print_line(
            f"replay: {percent(view.step_error)} off the measured step "
            "(every second step, with launch gaps taken from the others)"
        )
    for meeting in view.meetings:
        print_line(f"not in the table: after the last backward, {meeting} wait for each other")
    for what, rows in lines.items():
        print_line()
        _print_lines(what, rows, view.actual_ms)


class Line(NamedTuple):
    """One line of a table: a part of the job and what it is charged with."""

    name: str
    slowdown: float
    saved_ms: float


def _verdict(lines: dict[str, list[Line]], step_ms: float) -> str:
    """The part to look at first: the smallest one that explains most of what can be saved."""
    best = {what: max(rows, key=lambda row: row.saved_ms) for what, rows in lines.items()}
    saving = max(best[what].saved_ms for what in ("worker", "stage", "dp rank"))
    if saving < WORTH_A_LOOK * step_ms:
        operation = best["operation"]
        return (
            "no worker, stage or dp rank is a straggler by itself; "
            f"even {operation.name} would save {_saving(operation, step_ms)}"
        )
    culprit = next(
        best[what]
        for what in ("worker", "stage", "dp rank")
        if best[what].saved_ms >= SPECIFIC * saving
    )
    return (
        f"look at {culprit.name}: alone it slows the ideal job {culprit.slowdown:.3f}x; "
        f"repaired, it saves {_saving(culprit, step_ms)}"
    )


def _saving(line: Line, step_ms: float) -> str:
    return f"{_ms(line.saved_ms)} a step ({percent(line.saved_ms / max(step_ms, 1e-9))})"


def _print_lines(what: str, lines: Sequence[Line], step_ms: float) -> None:
    shown = lines if what == "operation" else lines[:MOST_ROWS]
    print_table(
        (what, "slows the ideal job", "repaired alone saves", "of the step"),
        [
            (
                line.name,
                f"{line.slowdown:.3f}x",
                _ms(line.saved_ms),
                percent(line.saved_ms / max(step_ms, 1e-9)),
            )
            for line in shown
        ],
    )
    if len(shown) < len(lines):
        print_line(f"({len(lines) - len(shown)} more that slow it less)")


def _ms(ms: float) -> str:
    return duration(ms * 1e6)
