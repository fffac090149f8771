"""Command ``export``: a trace set as files that other tools read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.cli.terminal import print_json, print_line, print_note

if TYPE_CHECKING:
    from foretrace.traces.store import TraceSet

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
    per rank, as ASTRA-sim reads).
    """
    from foretrace.traces.store import TraceSet

    if to not in _KINDS:
        raise typer.BadParameter(f"{to!r}; expected {', '.join(_KINDS)}", param_hint="'--to'")
    traces = TraceSet.open(trace)
    files, notes = _KINDS[to](traces, out, _chosen(traces, ranks))
    if as_json:
        print_json({"files": files, "notes": notes})
        return
    for note in notes:
        print_note(note)
    sizes = sum(Path(f).stat().st_size for f in files) / 1e6
    print_line(f"{out}: {len(files)} file{'s' if len(files) != 1 else ''}, {sizes:.1f} MB")


def _chosen(traces: TraceSet, text: str | None) -> list[int] | None:
    """Ranks out of ``0,4-7``; each must be in the set."""
    if text is None:
        return None
    chosen: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.strip().isdigit() or (last and not last.strip().isdigit()):
            raise typer.BadParameter(f"{text!r}; expected 0,4-7", param_hint="'--ranks'")
        chosen += range(int(first), int(last or first) + 1)
    for rank in chosen:
        traces.info(rank)
    return chosen


def _tables(kind: str) -> Callable[[TraceSet, str, list[int] | None], Written]:
    def write(traces: TraceSet, out: str, ranks: list[int] | None) -> Written:
        from foretrace.traces.exporters.tables import export_tables

        return export_tables(traces, out, kind, ranks), []

    return write


def _timeline(traces: TraceSet, out: str, ranks: list[int] | None) -> Written:
    from foretrace.traces.exporters.perfetto import write_perfetto
    from foretrace.traces.exporters.timeline import timeline_arrays

    tracks, slices, flows = timeline_arrays(traces, ranks)
    write_perfetto(out, tracks, slices, flows, {"trace": Path(traces.path).name})
    return [out], []


def _pftrace(traces: TraceSet, out: str, ranks: list[int] | None) -> Written:
    from foretrace.traces.exporters.pftrace import write_pftrace
    from foretrace.traces.exporters.timeline import timeline_arrays

    tracks, slices, flows = timeline_arrays(traces, ranks)
    write_pftrace(out, tracks, slices, flows, {"trace": Path(traces.path).name})
    return [out], []


def _chakra(traces: TraceSet, out: str, ranks: list[int] | None) -> Written:
    from foretrace.traces.exporters.chakra import export_chakra

    if ranks is not None:
        raise typer.BadParameter("Chakra graphs need all ranks", param_hint="'--ranks'")
    name = Path(traces.path).stem
    notes = export_chakra(traces, out, name)
    return sorted(str(p) for p in Path(out).glob(f"{name}.*")), notes


_KINDS: dict[str, Callable[[TraceSet, str, list[int] | None], Written]] = {
    "csv": _tables("csv"),
    "parquet": _tables("parquet"),
    "perfetto": _timeline,
    "pftrace": _pftrace,
    "chakra": _chakra,
}
