"""``foretrace whatif``: the job under each scenario of a file, and what bounds it then."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from foretrace.replay.graph import Timeline
    from foretrace.replay.scenario import Scenario
    from foretrace.replay.whatif import Outcome

MOST_CLASSES = 20  # rows of the table of classes; --json has them all

_SLUG = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class WhatIfRow:
    """The job under one scenario.

    Attributes:
        name: name of the scenario.
        step_ns: mean time of a step; where steps overlap their common time counts once.
        steps_ns: length of each step.
        change: against the replay without a scenario; negative is faster.
        bound_by: kind of work that most of the critical path is.
        bound_share: its share of the critical path.
        bound_rank: rank that most of the critical path runs through.
        bound_rank_share: its share.
        tasks: tasks whose durations it means; all of the job where dependencies change.
        timeline: file that the timeline was written to.
    """

    name: str
    step_ns: int
    steps_ns: list[int]
    change: float
    bound_by: str
    bound_share: float
    bound_rank: int
    bound_rank_share: float
    tasks: int
    timeline: str | None = None


@dataclass(frozen=True, slots=True)
class SensitivityRow:
    """What the job's time hangs on, as recorded.

    Attributes:
        name: class of tasks.
        grows_ns: derivative of the mean step with respect to the class's relative growth.
        saves_ns: the same for shrinking; less where other chains are equally long.
        share: ``grows_ns`` of the step: 1% more of the class is ``share`` percent more step.
    """

    name: str
    grows_ns: int
    saves_ns: int
    share: float


@dataclass(frozen=True, slots=True)
class WhatIfView:
    """Everything ``foretrace whatif`` says.

    Attributes:
        trace: where the trace set lies.
        ranks: ranks that were replayed.
        measured_ns: measured time of a step, as ``step_ns`` of a scenario.
        replayed: the job as it is.
        scenarios: one row per scenario, in the order of the file.
        sensitivity: derivatives as recorded, largest first, where asked for.
    """

    trace: str
    ranks: list[int]
    measured_ns: int
    replayed: WhatIfRow
    scenarios: list[WhatIfRow]
    sensitivity: list[SensitivityRow]


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
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Replay a trace set under the scenarios of a file."""
    from foretrace.cli.terminal import print_json, print_note

    asked = _scenarios(scenarios or (), what_if or (), by)  # before anything is read

    from foretrace.cli.replay import chosen_ranks
    from foretrace.replay.build import build_graph
    from foretrace.replay.engine import replay
    from foretrace.replay.timeline import measured, step_time, step_windows
    from foretrace.replay.whatif import outcomes
    from foretrace.traces.store import TraceSet

    trace_set = TraceSet.open(trace)
    for problem in trace_set.problems:
        print_note(problem)
    chosen = chosen_ranks(trace_set, ranks)
    graph = build_graph(trace_set, chosen)
    base = replay(graph)
    step = step_time(step_windows(base))
    rows = []
    files = _Files(perfetto_dir, base)
    for outcome in _with_progress(outcomes(graph, asked), len(asked)):
        path = files.write(outcome.scenario.name, outcome.timeline)
        rows.append(_row(outcome.scenario.name, outcome.timeline, step, outcome.tasks, path))
    view = WhatIfView(
        trace,
        chosen,
        round(step_time(step_windows(measured(graph)))),
        _row("(as recorded)", base, step),
        rows,
        _sensitivity(base, by) if by else [],
    )
    print_json(view) if as_json else print_whatif(view)
    if perfetto_dir is not None and not as_json:
        print_note(f"{len(rows)} timelines written to {perfetto_dir}")


def print_whatif(view: WhatIfView) -> None:
    """Write it for people."""
    from foretrace.cli.terminal import duration, number_list, percent, print_line, print_table

    rank_word = "rank" if len(view.ranks) == 1 else "ranks"
    print_line(
        f"{view.trace}: {len(view.ranks)} {rank_word} ({number_list(view.ranks)}), "
        f"a step measured as {duration(view.measured_ns)}"
    )
    rows = [view.replayed, *view.scenarios]
    print_table(
        ("scenario", "step", "change", "bound by", "most on"),
        [
            (
                row.name,
                duration(row.step_ns),
                percent(row.change, signed=True) if row is not view.replayed else "",
                f"{row.bound_by} {row.bound_share:.0%}",
                f"rank {row.bound_rank} {row.bound_rank_share:.0%}" if row.bound_rank >= 0 else "",
            )
            for row in rows
        ],
    )
    if view.sensitivity:
        print_line(
            "What the step hangs on: 1% more of it adds 1% of this; 1% less saves 1% of that"
        )
        print_table(
            ("class", "adds", "saves", "of the step"),
            [
                (row.name, duration(row.grows_ns), duration(row.saves_ns), percent(row.share))
                for row in view.sensitivity[:MOST_CLASSES]
            ],
        )


def _sensitivity(base: Timeline, by: str) -> list[SensitivityRow]:
    from foretrace.replay.sensitivity import sensitivity

    found, steps = sensitivity(base, by), max(len(set(base.graph.steps.step.tolist())), 1)
    return [
        SensitivityRow(name, round(grows / steps), round(saves / steps), grows / found.total_ns)
        for name, grows, saves in zip(
            found.names, found.grows_ns.tolist(), found.saves_ns.tolist(), strict=True
        )
    ]


def _scenarios(files: Sequence[Path], texts: Sequence[str], by: str | None) -> list[Scenario]:
    from foretrace.replay.scenario import parse
    from foretrace.replay.scenariofile import read_scenarios
    from foretrace.replay.taskclasses import check_way
    from foretrace.traces.errors import ScenarioError

    found = [scenario for path in files for scenario in read_scenarios(path)]
    found += [parse(text) for text in texts]
    if by is not None:
        check_way(by)
    elif not found:
        raise ScenarioError("nothing to ask: give a file of scenarios with -s, or one with -w")
    return found


def _row(
    name: str, timeline: Timeline, replayed_ns: float, tasks: int = 0, path: Path | None = None
) -> WhatIfRow:
    """One row; ``replayed_ns`` is the step without a scenario."""
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
