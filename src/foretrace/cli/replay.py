"""``foretrace replay``: how well a replay fits the measured run, and what changes would save."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.traces.errors import IncompleteTraceError

if TYPE_CHECKING:
    from foretrace.cli.replay_view import RankRow, ReplayView, ScenarioRow, StepRow
    from foretrace.replay.accuracy import Assessment, RankAccuracy, StepAccuracy
    from foretrace.replay.whatif import Outcome
    from foretrace.traces.store import TraceSet


def replay_command(
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
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Replay a trace set, say how well it fits the measured run, and answer what-ifs."""
    from foretrace.cli.replay_view import print_view
    from foretrace.cli.terminal import print_json, print_note
    from foretrace.replay.scenario import parse

    scenarios = [parse(text) for text in what_if or ()]  # before anything is read

    from foretrace.replay.accuracy import assess
    from foretrace.replay.build import build
    from foretrace.replay.whatif import evaluate
    from foretrace.traces.store import TraceSet

    trace_set = TraceSet.open(trace)
    for problem in trace_set.problems:
        print_note(problem)
    assessment = assess(build(trace_set, chosen_ranks(trace_set, ranks)))
    outcomes = evaluate(assessment.build.graph, scenarios)
    if perfetto is not None:
        _write_timelines(perfetto, trace, assessment, outcomes)
    view = make_view(trace, trace_set.missing_ranks, assessment, outcomes)
    print_json(view) if as_json else print_view(view)
    if perfetto is not None and not as_json:
        print_note(f"timelines written to {perfetto}")


def make_view(
    trace: str, missing: list[int], assessment: Assessment, outcomes: Sequence[Outcome]
) -> ReplayView:
    """What the command says, as plain records."""
    from foretrace.cli.replay_view import AlignmentRow, ReplayView

    graph = assessment.build.graph
    alignment = assessment.build.alignment
    ranks = [row.rank for row in assessment.ranks]
    measured_ns = sum(step.measured_ns for step in assessment.steps)
    replayed = [step.replayed_ns for step in assessment.steps]
    return ReplayView(
        trace=trace,
        ranks=ranks,
        missing_ranks=missing,
        tasks=len(graph),
        edges=len(graph.pred),
        unmatched=sum(assessment.build.unmatched.values()),
        steps=[_step_row(step) for step in assessment.steps],
        alignment=AlignmentRow(alignment.residual_ns, alignment.anchors),
        start_error_ns=assessment.start_error_ns,
        span_ns=assessment.span_ns,
        per_rank=[_rank_row(row, measured_ns) for row in assessment.ranks],
        scenarios=[_scenario_row(outcome, replayed) for outcome in outcomes],
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
    path: Path, trace: str, assessment: Assessment, outcomes: Sequence[Outcome]
) -> None:
    from foretrace.replay.perfetto import viewer_arrays
    from foretrace.replay.timeline import measured
    from foretrace.traces.exporters.perfetto import write_perfetto

    timelines = [
        measured(assessment.build.graph),
        assessment.timeline,
        *(outcome.timeline for outcome in outcomes),
    ]
    write_perfetto(path, *viewer_arrays(timelines), metadata={"trace": Path(trace).name})
