"""``foretrace replay``: how well a replay fits the measured run, and what changes would save."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from foretrace.traces.errors import IncompleteTraceError

if TYPE_CHECKING:
    from foretrace.cli.replay_view import (
        InterferenceRow,
        RankRow,
        ReplayView,
        ScenarioRow,
        StepRow,
    )
    from foretrace.replay.accuracy import Assessment, RankAccuracy, StepAccuracy
    from foretrace.replay.costs.interference_choice import Choice, Mode
    from foretrace.replay.whatif import Outcome
    from foretrace.traces.store import TraceSet


def replay_command(  # noqa: PLR0917 -- its options are the user's
    trace: Annotated[str, typer.Argument(metavar="RUN.trace", help="A trace set.")],
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "-w",
            "--what-if",
            metavar="SELECTOR=CHANGE",
            help="A scenario, such as 'comm=x0.5'; may be repeated.",
        ),
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.json.gz",
            help="Write all timelines for the Perfetto UI, side by side.",
        ),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(metavar="RANKS", help="Only these ranks, such as 0-3,7.")
    ] = None,
    expand: Annotated[
        str | None,
        typer.Option(metavar="RANKS", help="Of a large recording, these ranks in full."),
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
    """Replay a trace set, say how well it fits the measured run, and answer what-ifs."""
    from foretrace.cli.replay_large import expanded_ranks, refuse_large, say_large
    from foretrace.cli.replay_view import print_view
    from foretrace.cli.terminal import print_json, print_note
    from foretrace.replay.scenario import parse

    scenarios = [parse(text) for text in what_if or ()]  # before anything is read
    mode = interference_mode(interference)

    from foretrace.replay.accuracy import assess
    from foretrace.replay.build import build
    from foretrace.replay.contract.assess import is_large
    from foretrace.replay.costs.interference_choice import choose
    from foretrace.replay.whatif import evaluate
    from foretrace.traces.store import TraceSet

    trace_set = TraceSet.open(trace)
    for problem in trace_set.problems:
        print_note(problem)
    chosen, wanted = chosen_ranks(trace_set, ranks), expanded_ranks(trace_set, expand)
    if is_large(trace_set, chosen):
        refuse_large(what_if, interference)
        say_large(trace_set, chosen, wanted, perfetto, as_json)
        return
    assessment = assess(build(trace_set, chosen))
    graph = assessment.build.graph
    choice = choose(trace_set, graph, mode)
    outcomes = evaluate(graph, scenarios, choice.job)
    view = make_view(trace_set, assessment, choice, outcomes)
    if perfetto is not None:
        _write_timelines(perfetto, view, assessment, outcomes)
    print_json(view) if as_json else print_view(view)
    if perfetto is not None and not as_json:
        print_note(f"timelines written to {perfetto}")


def make_view(
    trace_set: TraceSet, assessment: Assessment, choice: Choice, outcomes: Sequence[Outcome]
) -> ReplayView:
    """What the command says, as plain records."""
    from foretrace.cli.replay_view import AlignmentRow, ReplayView
    from foretrace.replay.absent import absent_waits

    graph = assessment.build.graph
    alignment = assessment.build.alignment
    ranks = [row.rank for row in assessment.ranks]
    measured_ns = sum(step.measured_ns for step in assessment.steps)
    interference = interference_row(choice)
    replayed = interference.steps_ns or [step.replayed_ns for step in assessment.steps]
    return ReplayView(
        trace=trace_set.path,
        ranks=ranks,
        missing_ranks=trace_set.missing_ranks,
        tasks=len(graph),
        edges=len(graph.pred),
        unmatched=sum(assessment.build.unmatched.values()),
        stood_in=sum(assessment.build.stood_in.values()),
        absent_wait_ns=int(absent_waits(graph)[1].sum()),
        steps=[_step_row(step) for step in assessment.steps],
        alignment=AlignmentRow(alignment.residual_ns, alignment.anchors),
        start_error_ns=assessment.start_error_ns,
        span_ns=assessment.span_ns,
        times=_times(trace_set, ranks),
        per_rank=[_rank_row(row, measured_ns) for row in assessment.ranks],
        interference=interference,
        scenarios=[_scenario_row(outcome, replayed) for outcome in outcomes],
    )


def interference_mode(text: str) -> Mode:
    """The mode that was asked for.

    Raises:
        ScenarioError: there is no such mode.
    """
    from typing import get_args

    from foretrace.replay.costs.interference_choice import Mode
    from foretrace.traces.errors import ScenarioError

    for mode in get_args(Mode):
        if text == mode:
            return cast("Mode", mode)
    raise ScenarioError(f"--interference is auto, on or off, not {text!r}")


def interference_row(choice: Choice) -> InterferenceRow:
    """Which replay was used and why, and the steps as recorded under it."""
    from foretrace.cli.replay_view import InterferenceRow
    from foretrace.replay.timeline import step_windows

    steps = step_windows(choice.job.replay()).dur_ns.tolist() if choice.job else []
    held = choice.held
    return InterferenceRow(
        choice.used,
        choice.reason,
        steps,
        list(held.step_error) if held else None,
        list(held.kernel_error) if held else None,
    )


def chosen_ranks(trace_set: TraceSet, ranks: str | None) -> list[int]:
    """The ranks asked for, all by default."""
    from foretrace.cli.terminal import number_list
    from foretrace.replay.scenario import parse_numbers

    if ranks is None:
        return trace_set.ranks
    wanted = parse_numbers(ranks, f"--ranks {ranks}")
    absent = sorted(wanted - set(trace_set.ranks))
    if absent:
        raise IncompleteTraceError(
            f"{trace_set.path}: holds no rank {number_list(absent)}; "
            f"it holds {number_list(trace_set.ranks)}"
        )
    return sorted(wanted)


def _times(trace_set: TraceSet, ranks: Sequence[int]) -> str:
    """How the starts of tasks came about: measured, or laid out by an importer."""
    from foretrace.cli.replay_view import MEASURED

    return next(
        (found for rank in ranks if (found := trace_set.info(rank).labels.get("times"))), MEASURED
    )


def _step_row(step: StepAccuracy) -> StepRow:
    from foretrace.cli.replay_view import StepRow

    whole = max(sum(step.path_ns.values()), 1)
    return StepRow(
        step=step.step,
        measured_ns=step.measured_ns,
        replayed_ns=step.replayed_ns,
        error=step.error,
        null_error=step.null_error,
        unexplained=step.unexplained,
        unexplained_early=step.unexplained_early,
        critical_path={word: ns / whole for word, ns in step.path_ns.items()},
        copied_host=step.copied_host,
    )


def _rank_row(row: RankAccuracy, measured_ns: int) -> RankRow:
    from foretrace.cli.replay_view import RankRow

    return RankRow(
        rank=row.rank,
        start_error_ns=row.start_error_ns,
        start_error_p95_ns=row.start_error_p95_ns,
        waiting_ns=row.waiting_ns,
        replayed_waiting_ns=row.replayed_waiting_ns,
        stall_ns=row.stall_ns,
        stall=row.stall_ns / max(measured_ns, 1),
    )


def _scenario_row(outcome: Outcome, replayed_ns: Sequence[int]) -> ScenarioRow:
    from foretrace.cli.replay_view import ScenarioRow

    steps = outcome.step_ns.tolist()
    return ScenarioRow(
        name=outcome.scenario.name,
        step_ns=round(sum(steps) / max(len(steps), 1)),
        steps_ns=steps,
        change=sum(steps) / max(sum(replayed_ns), 1) - 1,
        tasks=outcome.tasks,
        before_ns=outcome.before_ns,
        after_ns=outcome.after_ns,
    )


def _write_timelines(
    path: Path, view: ReplayView, assessment: Assessment, outcomes: Sequence[Outcome]
) -> None:
    from dataclasses import replace

    from foretrace.replay.perfetto import viewer_arrays
    from foretrace.replay.timeline import measured
    from foretrace.traces.exporters.perfetto import write_perfetto

    timelines = [
        replace(measured(assessment.build.graph), label=view.times),
        assessment.timeline,
        *(outcome.timeline for outcome in outcomes),
    ]
    write_perfetto(path, *viewer_arrays(timelines), metadata={"trace": Path(view.trace).name})
