"""``foretrace whatif``: the job under each scenario of a file, and what bounds it then."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from foretrace.cli.whatif_view import PathRow, SensitivityRow, WhatIfRow
    from foretrace.replay.graph import Timeline
    from foretrace.replay.scenario import Scenario
    from foretrace.replay.whatif import Outcome

_SLUG = re.compile(r"[^A-Za-z0-9._-]+")


def whatif_command(
    trace: Annotated[str, typer.Argument(metavar="RUN.trace", help="A trace set.")],
    *,
    scenarios: Annotated[
        list[Path] | None,
        typer.Option(
            "-s", "--scenarios", metavar="SCENARIOS.toml", help="Scenarios; may be repeated."
        ),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "-w",
            "--what-if",
            metavar="SELECTOR=CHANGE",
            help="One more scenario, such as 'comm=x0.5'; may be repeated.",
        ),
    ] = None,
    transform: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--transform",
            metavar="'NAME: FIELD = VALUE, ...'",
            help="One more scenario, such as 'network: bandwidth = 2.0'; may be repeated.",
        ),
    ] = None,
    path_by: Annotated[
        list[str] | None,
        typer.Option(
            "--critical-path",
            metavar="BY",
            help="Also the critical path by kind, rank, layer or collective; may be repeated.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--sensitivity",
            metavar="BY",
            help="Also what the step hangs on, by kind, rank, layer or collective.",
        ),
    ] = None,
    perfetto_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write each timeline for the Perfetto UI."),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(metavar="RANKS", help="Only these ranks, such as 0-3,7.")
    ] = None,
    interference: Annotated[
        str,
        typer.Option(
            metavar="auto|on|off",
            help="Overlap slows work down; auto: where that fits unseen steps better.",
        ),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Replay a trace set under the scenarios of a file."""
    from foretrace.cli.replay import chosen_ranks, interference_mode, interference_row
    from foretrace.cli.terminal import print_json, print_note
    from foretrace.cli.whatif_view import WhatIfView, print_whatif

    asked = _scenarios(scenarios or (), what_if or (), transform or ())
    _check_ways([*(path_by or ()), *filter(None, [by])], asked)  # before anything is read
    mode = interference_mode(interference)

    from foretrace.replay.build import build_graph
    from foretrace.replay.costs.interference_choice import choose
    from foretrace.replay.engine import replay
    from foretrace.replay.timeline import measured, step_time, step_windows
    from foretrace.replay.whatif import outcomes
    from foretrace.traces.store import TraceSet

    trace_set = TraceSet.open(trace)
    for problem in trace_set.problems:
        print_note(problem)
    chosen = chosen_ranks(trace_set, ranks)
    graph = build_graph(trace_set, chosen)
    choice = choose(trace_set, graph, mode)
    base = choice.job.replay() if choice.job else replay(graph)
    step = step_time(step_windows(base))
    rows = []
    files = _Files(perfetto_dir, base)
    for outcome in _with_progress(outcomes(graph, asked, choice.job), len(asked)):
        path = files.write(outcome.scenario.name, outcome.timeline)
        rows.append(_row(outcome.scenario.name, outcome.timeline, step, outcome.tasks, path))
    view = WhatIfView(
        trace,
        chosen,
        round(step_time(step_windows(measured(graph)))),
        interference_row(choice),
        _row("(as recorded)", base, step),
        rows,
        _sensitivity(base, by) if by else [],
        {way: _path(base, way) for way in path_by or ()},
    )
    print_json(view) if as_json else print_whatif(view)
    if perfetto_dir is not None and not as_json:
        print_note(f"{len(rows)} timelines written to {perfetto_dir}")


def _path(base: Timeline, by: str) -> list[PathRow]:
    from foretrace.cli.whatif_view import PathRow
    from foretrace.replay.pathtable import path_table

    return [
        PathRow(row.name, row.path_ns, row.share, row.slack_ns if row.slack_ns >= 0 else None)
        for row in path_table(base, by)
    ]


def _sensitivity(base: Timeline, by: str) -> list[SensitivityRow]:
    from foretrace.cli.whatif_view import SensitivityRow
    from foretrace.replay.sensitivity import sensitivity

    found, steps = sensitivity(base, by), max(len(set(base.graph.steps.step.tolist())), 1)
    return [
        SensitivityRow(name, round(grows / steps), round(saves / steps), grows / found.total_ns)
        for name, grows, saves in zip(
            found.names, found.grows_ns.tolist(), found.saves_ns.tolist(), strict=True
        )
    ]


def _scenarios(
    files: Sequence[Path], texts: Sequence[str], transforms: Sequence[str]
) -> list[Scenario]:
    from foretrace.replay.scenario import parse
    from foretrace.replay.scenariofile import parse_transform, read_scenarios

    found = [scenario for path in files for scenario in read_scenarios(path)]
    found += [parse(text) for text in texts]
    return found + [parse_transform(text) for text in transforms]


def _check_ways(ways: Sequence[str], asked: Sequence[Scenario]) -> None:
    """Refuse what cannot be answered before anything is read.

    Raises:
        ScenarioError: no such way to sort tasks, or nothing is asked.
    """
    from foretrace.replay.taskclasses import check_way
    from foretrace.traces.errors import ScenarioError

    for way in ways:
        check_way(way)
    if not ways and not asked:
        raise ScenarioError(
            "nothing to ask: give a file of scenarios with -s, or one with -w or -t"
        )


def _row(
    name: str, timeline: Timeline, replayed_ns: float, tasks: int = 0, path: Path | None = None
) -> WhatIfRow:
    """One row; ``replayed_ns`` is the step without a scenario."""
    from foretrace.cli.whatif_view import WhatIfRow
    from foretrace.replay.boundedby import bounded_by
    from foretrace.replay.timeline import step_time, step_windows

    windows, bound = step_windows(timeline), bounded_by(timeline)
    step = step_time(windows)
    return WhatIfRow(
        name=name,
        step_ns=round(step),
        steps_ns=windows.dur_ns.tolist(),
        change=step / max(replayed_ns, 1) - 1,
        bound_by=bound.work,
        bound_share=bound.work_share,
        bound_rank=bound.rank,
        bound_rank_share=bound.rank_share,
        tasks=tasks,
        timeline=None if path is None else str(path),
    )


class _Files:
    """Where timelines go: one file each, beside the replay as recorded."""

    def __init__(self, folder: Path | None, base: Timeline) -> None:
        self.folder, self.base, self.used = folder, base, set[str]()

    def write(self, name: str, timeline: Timeline) -> Path | None:
        """Write one timeline; the path, or None where nobody asked for files."""
        if self.folder is None:
            return None
        from foretrace.replay.perfetto import viewer_arrays
        from foretrace.traces.exporters.perfetto import write_perfetto

        self.folder.mkdir(parents=True, exist_ok=True)
        stem = plain = _SLUG.sub("-", name).strip("-.")[:80] or "scenario"
        number = 2
        while stem in self.used:
            stem, number = f"{plain}-{number}", number + 1
        self.used.add(stem)
        path = self.folder / f"{stem}.json.gz"
        write_perfetto(path, *viewer_arrays([self.base, timeline]), metadata={"scenario": name})
        return path


def _with_progress(found: Iterable[Outcome], count: int) -> Iterator[Outcome]:
    """The same outcomes, with a bar on a terminal."""
    with _bar(count) as advance:
        for outcome in found:
            yield outcome
            advance()


@contextmanager
def _bar(count: int) -> Iterator[Callable[[], None]]:
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("scenarios", total=count)
        yield lambda: progress.advance(task)
