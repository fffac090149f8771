"""Command ``export``: a trace set as files that other tools read."""

from __future__ import annotations

import os
from collections.abc import Callable
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.cli.terminal import number_list, print_json, print_line, print_note
from foretrace.traces.errors import TraceFormatError

if TYPE_CHECKING:
    from foretrace.traces.store import TraceSet

_UNMEASURED = {
    "order": "a start counts the calls, durations are 0",
    "laid out": "tasks are laid out from durations and dependencies",
}
"""What the times of a rank are, by its label ``times``."""

Written = tuple[list[str], list[str]]
"""Files, and what they do not say."""


def export_command(
    trace: Annotated[str, typer.Argument(metavar="RUN.trace", help="Trace set to read.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="File or folder to write.")],
    to: Annotated[str, typer.Option("--to", metavar="KIND", help="What to write; see below.")],
    ranks: Annotated[
        str | None, typer.Option("--ranks", metavar="0,4-7", help="Only these; all by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write a trace set as files that other tools read.

    KIND is csv or parquet (a folder with one file per table), perfetto (Chrome trace JSON,
    .gz compresses), pftrace (Perfetto's protobuf form) or chakra (a folder with one .et graph
    per rank, as ASTRA-sim reads: the tasks of the replay, what each waits for, and durations
    without waiting).
    """
    from foretrace.traces.store import TraceSet

    if to not in _KINDS:
        raise typer.BadParameter(f"{to!r}; expected {', '.join(_KINDS)}", param_hint="'--to'")
    traces = TraceSet.open(trace)
    _check_target(traces, out)
    files, notes = _KINDS[to](traces, out, _chosen(traces, ranks))
    if as_json:
        names = [os.fsencode(f).decode("utf-8", "replace") for f in files]
        print_json({"files": names, "notes": notes})
        return
    for note in notes:
        print_note(note)
    sizes = sum(Path(f).stat().st_size for f in files) / 1e6
    print_line(f"{out}: {len(files)} file{'s' if len(files) != 1 else ''}, {sizes:.1f} MB")


def _check_target(traces: TraceSet, out: str) -> None:
    """Nothing is written into the trace set, nor in the place of a pipe or a device."""
    target = Path(out).resolve()
    if target.is_relative_to(Path(traces.path).resolve()):
        raise TraceFormatError(f"{out}: lies in the trace set; choose another place")
    if target.exists() and not target.is_file() and not target.is_dir():
        raise TraceFormatError(f"{out}: is a pipe or a device; name a file or folder")


def _file(out: str) -> str:
    """The path of a file to write."""
    if Path(out).is_dir():
        raise TraceFormatError(f"{out}: is a folder; name a file")
    return out


def _chosen(traces: TraceSet, text: str | None) -> list[int] | None:
    """Ranks out of ``0,4-7``, ascending; each must be in the set."""
    from foretrace.cli.replay import chosen_ranks

    return None if text is None else chosen_ranks(traces, text)


def _tables(kind: str) -> Callable[[TraceSet, str, list[int] | None], Written]:
    def write(traces: TraceSet, out: str, ranks: list[int] | None) -> Written:
        from foretrace.traces.exporters.tables import export_tables

        return export_tables(traces, out, kind, ranks), []

    return write


def _timeline(traces: TraceSet, out: str, ranks: list[int] | None) -> Written:
    from foretrace.traces.exporters.perfetto import write_timelines
    from foretrace.traces.exporters.timeline import RankTimelines

    write_timelines(_file(out), RankTimelines(traces, ranks), {"trace": Path(traces.path).name})
    return [out], _not_measured(traces, ranks)


def _pftrace(traces: TraceSet, out: str, ranks: list[int] | None) -> Written:
    from foretrace.traces.exporters.pftrace import write_timelines
    from foretrace.traces.exporters.timeline import RankTimelines

    write_timelines(_file(out), RankTimelines(traces, ranks), {"trace": Path(traces.path).name})
    return [out], _not_measured(traces, ranks)


def _not_measured(traces: TraceSet, ranks: list[int] | None) -> list[str]:
    """What to say of a timeline whose times nobody measured."""
    of_times: dict[str, list[int]] = {}
    for rank in traces.ranks if ranks is None else ranks:
        of_times.setdefault(traces.info(rank).labels.get("times", ""), []).append(rank)
    return [
        f"ranks {number_list(of_times[label])}: nobody measured the times; {what}"
        for label, what in _UNMEASURED.items()
        if label in of_times
    ]


def _chakra(traces: TraceSet, out: str, ranks: list[int] | None) -> Written:
    from foretrace.replay.chakra import export_trace

    if ranks is not None:
        raise typer.BadParameter("Chakra graphs need all ranks", param_hint="'--ranks'")
    name = Path(traces.path).stem
    notes = export_trace(traces, out, name)
    empty = [r for r in traces.ranks if not (Path(out) / f"{name}.{r}.et").exists()]
    if empty:
        notes = [*notes, f"no graph of ranks {number_list(empty)}: nothing is recorded of them"]
    return sorted(str(p) for p in Path(out).glob(f"{escape(name)}.*")), notes


_KINDS: dict[str, Callable[[TraceSet, str, list[int] | None], Written]] = {
    "csv": _tables("csv"),
    "parquet": _tables("parquet"),
    "perfetto": _timeline,
    "pftrace": _pftrace,
    "chakra": _chakra,
}
