"""Commands that make trace sets: ``import`` and ``redact``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrace.cli.terminal import print_json, print_line, print_note, print_table

_NUMBER = re.compile(r"\d+")

if TYPE_CHECKING:
    from foretrace.traces.importers.report import FileReport, ImportReport


def import_command(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Files, folders, globs or tar archives, or URLs."),
    ],
    out: Annotated[
        str, typer.Option("--output", "-o", metavar="NAME.trace", help="Trace set to write.")
    ],
    *,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes; one per CPU by default.")
    ] = None,
    executor: Annotated[
        str,
        typer.Option("--executor", metavar="dask://HOST:PORT", help="Let a dask cluster do it."),
    ] = "",
    classes: Annotated[
        str,
        typer.Option(
            "--classes",
            metavar="FILE.toml",
            envvar="FORETRACE_CLASSES",
            help="Your own rules which kernels communicate; asked before the built-in ones.",
        ),
    ] = "",
    python: Annotated[
        bool, typer.Option("--python", help="Keep the frames of Python functions.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Turn profiler traces into one trace set; an older one of that name is replaced."""
    from foretrace.traces.classify import CLASSES_VARIABLE, table
    from foretrace.traces.importers.job import import_paths

    if classes:
        table(classes)  # a fault in it is better told now
        os.environ[CLASSES_VARIABLE] = os.path.abspath(classes)  # noqa: PTH100
    with _progress(show=not as_json and sys.stderr.isatty()) as watch:
        report = import_paths(paths, out, jobs=jobs, executor=executor, python=python, watch=watch)
    if as_json:
        print_json(_as_json(report))
    else:
        _show(report)


def redact_command(
    source: Annotated[str, typer.Argument(metavar="NAME.trace", help="Trace set to copy.")],
    out: Annotated[
        str, typer.Option("--output", "-o", metavar="OTHER.trace", help="The copy to write.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Copy a trace set without names of hosts, users and files; it replays the same."""
    from foretrace.traces.redact import redact

    report = redact(source, out)
    if as_json:
        print_json(report)
        return
    counts = ", ".join(f"{n} {kind}{'s' if n != 1 else ''}" for kind, n in report.replaced.items())
    print_line(f"{out}: {len(report.ranks)} ranks; replaced {counts}")
    print_line(f"removed {report.removed_labels} labels, all sources and examples")


def _as_json(report: ImportReport) -> dict[str, Any]:
    return {
        "ranks": report.ranks,
        "events": report.events,
        "bytes": report.bytes,
        "seconds": report.seconds,
        "peak_rss_bytes": report.peak_rss_bytes,
        "dropped": [
            {"rank": f.rank, "reason": d.reason, "count": d.count, "example": d.example}
            for f in report.files
            for d in f.dropped
        ],
    }


def _show(report: ImportReport) -> None:
    print_table(
        ("file", "rank", "rank from", "events", "MB"),
        [
            (_short(f.source), str(f.rank), f.rank_from, f"{f.events:,}", f"{f.bytes / 1e6:.1f}")
            for f in report.files
        ],
    )
    for line in _losses(report.files):
        print_note(line)
    for note in report.notes:
        print_note(note)
    speed = report.bytes / report.seconds / 1e6
    print_line(
        f"{report.path}: {len(report.files)} ranks, {report.events:,} events from "
        f"{report.bytes / 1e6:.1f} MB in {report.seconds:.2f} s ({speed:.0f} MB/s)"
    )


def _losses(files: list[FileReport]) -> Iterator[str]:
    """One line per reason over all files; ``rank0.json`` and ``rank1.json`` in it are the same."""
    by_reason: dict[str, list[tuple[int, int, str]]] = {}
    forms: dict[str, set[str]] = {}
    for file in files:
        for loss in file.dropped:
            form = _NUMBER.sub("*", loss.reason)
            forms.setdefault(form, set()).add(loss.reason)
            by_reason.setdefault(form, []).append((file.rank, loss.count, loss.example))
    for form, losses in by_reason.items():
        reason = form if len(forms[form]) > 1 else next(iter(forms[form]))
        ranks = f"{len(losses)} ranks" if len(losses) > 1 else f"rank {losses[0][0]}"
        example = next((e for _, _, e in losses if e), "")
        shown = f", e.g. {example}" if example else ""
        yield f"not kept as it stood: {sum(c for _, c, _ in losses):,} x {reason} ({ranks}){shown}"


def _short(name: str, most: int = 60) -> str:
    """The end of a name; of several sources of one rank, the end of each."""
    parts = name.split(" + ")
    each = max(most // len(parts) - 2 * (len(parts) > 1), 12)
    return " + ".join(p if len(p) <= each else "..." + p[3 - each :] for p in parts)


@contextmanager
def _progress(show: bool) -> Iterator[Callable[[int, int, int], None] | None]:
    """A bar with speed and time left on standard error; nothing where nobody looks."""
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("importing"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("import", total=None, speed="")

        def watch(stored: int, total: int, plain: int) -> None:
            elapsed = bar.tasks[0].elapsed or 1e-9
            speed = f"{plain / elapsed / 1e6:.0f} MB/s"
            bar.update(task, completed=stored, total=total, speed=speed)

        yield watch
