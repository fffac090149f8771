"""``foretrace analyze`` and ``foretrace report``: where the step goes, as text or as HTML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pandas as pd

    from foretrace.analysis.findings import Findings
    from foretrace.analysis.run import Run

_TraceArgument = Annotated[str, typer.Argument(metavar="RUN.trace", help="A trace set.")]
_RanksOption = Annotated[
    str | None, typer.Option("--ranks", metavar="RANKS", help="Only these ranks, such as 0-3,7.")
]
_JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]

MOST_ROWS = 32
"""More rows than this are summed up on the terminal; ``--json`` has them all."""

_TITLE_WIDTH = 60


def report_command(
    trace: _TraceArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT.html", help="File to write.")
    ] = Path("report.html"),
    ranks: _RanksOption = None,
    as_json: _JsonOption = False,
) -> None:
    """Write a self-contained HTML report of a trace set."""
    from time import perf_counter

    from foretrace.analysis.report import write_report
    from foretrace.cli.terminal import print_json, print_line

    begin = perf_counter()
    path = write_report(trace, output, _numbers(ranks))
    size = path.stat().st_size
    if as_json:
        print_json({"report": str(path), "bytes": size, "seconds": perf_counter() - begin})
    else:
        print_line(f"{path}: {size / 1e6:.2f} MB, open it in any browser")


def analyze_command(
    trace: _TraceArgument, ranks: _RanksOption = None, as_json: _JsonOption = False
) -> None:
    """Say where each rank's step time goes, and what would shorten the step."""
    from foretrace.analysis.breakdown import breakdown
    from foretrace.analysis.communication import communication
    from foretrace.analysis.findings import find
    from foretrace.analysis.run import load_run
    from foretrace.cli.terminal import print_json, print_note

    run = load_run(trace, _numbers(ranks))
    time, comm = breakdown(run.measured), communication(run.measured)
    found = find(run.graph, run.measured)
    if as_json:
        print_json(analysis_json(time, comm, found))
        return
    for problem in run.trace.problems:
        print_note(problem)
    _print_head(run, found)
    _print_breakdown(time)
    _print_communication(run, comm)
    _print_findings(found)


def analysis_json(time: pd.DataFrame, comm: pd.DataFrame, found: Findings) -> dict[str, Any]:
    """What ``foretrace analyze --json`` writes; scripts rely on these keys."""
    keys = ["kind", "group", "ranks", "count", "bytes", "wait_ns", "exec_ns", "busbw_GBps"]
    return {
        "breakdown": time.to_dict("records"),
        "communication": comm[keys].to_dict("records"),
        "findings": [
            {
                "kind": f.kind,
                "title": f.title,
                "ranks": f.ranks,
                "saving_ns": f.saving_ns,
                "confidence": f.confidence,
                "evidence": f.evidence,
                "action": f.action,
            }
            for f in found.found
        ],
    }


def _numbers(ranks: str | None) -> list[int] | None:
    from foretrace.replay.scenario import parse_numbers

    return None if ranks is None else sorted(parse_numbers(ranks, f"--ranks {ranks}"))


def _print_head(run: Run, found: Findings) -> None:
    from foretrace.cli.terminal import duration, number_list, percent, print_line
    from foretrace.replay.timeline import step_time, step_windows

    measured = step_time(step_windows(run.measured))
    error = found.step_ns / max(measured, 1) - 1
    steps = len(run.assessment.steps)
    print_line(
        f"{run.trace.path}: ranks {number_list([r.rank for r in run.assessment.ranks])}, "
        f"{steps} step{'' if steps == 1 else 's'} of {duration(measured)} "
        f"(replay {percent(error, signed=True)})"
    )


def _print_breakdown(table: pd.DataFrame) -> None:
    from foretrace.cli.terminal import print_line, print_table

    print_line("\nWhere the time goes, ms a step (after idle: its causes)")
    table = table.drop(columns="step").groupby("rank").mean()
    known = ["idle_rank_ns", "idle_host_ns", "idle_stall_ns"]
    table["idle_other_ns"] = table["idle_ns"] - table[known].sum(axis=1)
    columns = {
        "total": "total_ns",
        "compute": "compute_ns",
        "comm": "exposed_communication_ns",
        "hidden": "hidden_communication_ns",
        "copies": "copy_ns",
        "idle": "idle_ns",
        "for rank": "idle_rank_ns",
        "for host": "idle_host_ns",
        "stalled": "idle_stall_ns",
        "other": "idle_other_ns",
    }
    numbers = table[list(columns.values())]
    digits = 2 if numbers["total_ns"].max() < 1e9 else 1 if numbers["total_ns"].max() < 1e10 else 0
    rows = [
        (str(rank), *(_ms(value, digits) for value in row))
        for rank, row in zip(numbers.index, numbers.to_numpy(), strict=True)
    ]
    if len(rows) > MOST_ROWS:
        summary = {"least": numbers.min(), "median": numbers.median(), "most": numbers.max()}
        rows = [(name, *(_ms(value, digits) for value in row)) for name, row in summary.items()]
        print_line(f"({len(numbers)} ranks; --json lists them)")
    print_table(("rank", *columns), rows)


def _print_communication(run: Run, table: pd.DataFrame) -> None:
    from foretrace.analysis.causes.wording import size_text
    from foretrace.analysis.groups import ranks_text
    from foretrace.cli.terminal import print_line, print_table

    if not len(table):
        return
    print_line("Communication, whole record; waiting and execution summed over ranks, ms")
    rows = [
        (
            str(row["kind"]),
            ranks_text(row["ranks"]) if row["group"] >= 0 else "?",
            str(row["count"]),
            size_text(row["bytes"] / row["count"]) if row["bytes"] >= 0 else "?",
            _ms(row["wait_ns"]),
            _ms(row["exec_ns"]),
            f"{row['busbw_GBps']:.1f}" if row["busbw_GBps"] == row["busbw_GBps"] else "?",
        )
        for row in table.head(MOST_ROWS // 2).to_dict("records")
    ]
    print_table(
        ("kind", "ranks", "count", "size of each", "waiting", "execution", "bus GB/s"), rows
    )
    if len(table) > len(rows):
        print_line(f"({len(table) - len(rows)} more; --json lists them)")


def _print_findings(found: Findings) -> None:
    from textwrap import fill

    from foretrace.cli.terminal import duration, percent, print_line, print_table

    if not found.found:
        print_line(
            f"Nothing stands out: none of {found.priced} causes that were replayed saves more "
            f"than {duration(found.noise_ns)} a step."
        )
        return
    print_line("What holds the step back; each saving is a replay without that cause")
    rows = [
        (fill(f.title, _TITLE_WIDTH), duration(f.saving_ns), percent(f.share), f.confidence)
        for f in found.found
    ]
    print_table(("finding", "saves", "of the step", "confidence"), rows)
    best = found.found[0]
    print_line(fill(f"Next: {best.action}", 98))


def _ms(time_ns: float, digits: int = 2) -> str:
    return f"{time_ns / 1e6:.{digits}f}"
