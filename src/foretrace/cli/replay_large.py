"""What ``foretrace replay`` says of a recording that is too large to be replayed in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.cli.replay_view import NO_ANCHORS
from foretrace.cli.terminal import (
    duration,
    number_list,
    percent,
    print_json,
    print_line,
    print_note,
    print_table,
)
from foretrace.traces.errors import ScenarioError

if TYPE_CHECKING:
    from foretrace.replay.contract.assess import LargeAssessment
    from foretrace.replay.contract.large import LargeReplay
    from foretrace.traces.store import TraceSet

MOST_RANKS = 16  # rows of the table of ranks

LEFT_OUT = (
    "unexplained time",
    "critical path",
    "starts of all device tasks (of single ranks: --expand RANKS)",
    "what-ifs and interference (of up to 64 ranks: --ranks RANKS)",
)
"""What the reduced form of a large recording cannot tell."""


@dataclass(frozen=True, slots=True)
class LargeStepRow:
    """One job step; see ``replay_view.StepRow``."""

    step: int
    measured_ns: int
    replayed_ns: int
    error: float
    null_error: float


@dataclass(frozen=True, slots=True)
class LargeRankRow:
    """One rank; see ``replay_view.RankRow``. ``start_error_ns`` is -1 unless it was expanded."""

    rank: int
    waiting_ns: int
    replayed_waiting_ns: int
    stall_ns: int
    start_error_ns: int


@dataclass(frozen=True, slots=True)
class LargeView:
    """Everything the command says.

    Attributes:
        trace: where the trace set lies.
        reduced: true: the replay knows of each rank what other ranks can notice.
        ranks: ranks that were replayed.
        missing_ranks: ranks of the job that were not recorded.
        tasks: tasks of the whole job graph.
        edges: dependencies of the whole job graph.
        kept_tasks: tasks that were left in the replay.
        unmatched: communication operations without a counterpart.
        stood_in: operations in which others stand in for members that were not recorded.
        residual_ns: median distance of a collective's ends from their common end; -1 unknown.
        anchors: collectives that the clocks were worked out from.
        steps: one row per step.
        arrival_error_ns: median distance of replayed arrivals at collectives from the measured.
        per_rank: one row per rank.
        left_out: what cannot be told.
    """

    trace: str
    reduced: bool
    ranks: Sequence[int]
    missing_ranks: Sequence[int]
    tasks: int
    edges: int
    kept_tasks: int
    unmatched: int
    stood_in: int
    residual_ns: int
    anchors: int
    steps: Sequence[LargeStepRow]
    arrival_error_ns: int
    per_rank: Sequence[LargeRankRow]
    left_out: Sequence[str]


def expanded_ranks(trace_set: TraceSet, expand: str | None) -> list[int]:
    """The ranks that are wanted in full, none by default.

    Raises:
        IncompleteTraceError: the set holds no such rank.
    """
    from foretrace.cli.replay import chosen_ranks

    return [] if expand is None else chosen_ranks(trace_set, expand)


def refuse_large(what_if: Sequence[str] | None, interference: str) -> None:
    """Refuse what the reduced form of a large recording cannot answer.

    Raises:
        ScenarioError: it was asked for.
    """
    if what_if or interference == "on":
        option = "--what-if" if what_if else "--interference on"
        raise ScenarioError(
            f"{option}: this recording is too large for it; choose up to 64 ranks with --ranks"
        )


def say_large(
    trace_set: TraceSet,
    ranks: Sequence[int],
    expand: Sequence[int],
    perfetto: Path | None,
    as_json: bool,
) -> None:
    """Replay a large recording and say how well it fits.

    Raises:
        ScenarioError: timelines were asked for, but no ranks to show in them.
    """
    if perfetto is not None and not expand:
        raise ScenarioError(
            f"--perfetto: timelines of {len(ranks)} ranks are too large to write; "
            "say which ranks with --expand, such as --expand 0-7"
        )
    from foretrace.replay.contract.assess import assess_large
    from foretrace.replay.contract.large import replay_large

    large = replay_large(trace_set, ranks, expand)
    view = large_view(trace_set, large, assess_large(large))
    if perfetto is not None and large.expanded is not None:
        from foretrace.replay.perfetto import viewer_arrays
        from foretrace.replay.timeline import measured
        from foretrace.traces.exporters.perfetto import write_perfetto

        timelines = [measured(large.expanded.graph), large.expanded]
        name = Path(trace_set.path).name
        write_perfetto(perfetto, *viewer_arrays(timelines), metadata={"trace": name})
    print_json(view) if as_json else print_large(view)
    if perfetto is not None and not as_json:
        print_note(f"timelines written to {perfetto}")


def large_view(trace_set: TraceSet, large: LargeReplay, fit: LargeAssessment) -> LargeView:
    """The replay as plain records."""
    measured, lengths = fit.measured.dur_ns.tolist(), fit.replayed.dur_ns.tolist()
    waiting, found = fit.waiting_ns.tolist(), fit.replayed_waiting_ns.tolist()
    per_rank = zip(large.ranks, waiting, found, large.stall_ns.tolist(), strict=True)
    steps = zip(
        fit.measured.step.tolist(), measured, lengths, large.null.dur_ns.tolist(), strict=True
    )
    return LargeView(
        trace=trace_set.path,
        reduced=True,
        ranks=large.ranks,
        missing_ranks=trace_set.missing_ranks,
        tasks=large.tasks,
        edges=large.edges,
        kept_tasks=len(large.timeline.graph),
        unmatched=sum(large.unmatched.values()),
        stood_in=sum(large.stood_in.values()),
        residual_ns=large.alignment.residual_ns,
        anchors=large.alignment.anchors,
        steps=[
            LargeStepRow(step, real, length, length / max(real, 1) - 1, null / max(real, 1) - 1)
            for step, real, length, null in steps
        ],
        arrival_error_ns=fit.arrival_error_ns,
        per_rank=[
            LargeRankRow(rank, waited, replayed, stall, fit.rank_error_ns.get(rank, -1))
            for rank, waited, replayed, stall in per_rank
        ],
        left_out=LEFT_OUT,
    )


def print_large(view: LargeView) -> None:
    """Write it for people."""
    print_line(
        f"{view.trace}: {len(view.ranks):,} ranks ({number_list(list(view.ranks))}), "
        f"{len(view.steps)} steps, {view.tasks:,} tasks, {view.edges:,} dependencies"
    )
    if view.missing_ranks:
        print_line(
            f"not recorded: {len(view.missing_ranks)} ranks "
            f"({number_list(list(view.missing_ranks))}); waiting for them stays inside durations"
        )
    print_line(
        f"too large for one piece: each rank is reduced to what other ranks can notice, "
        f"{view.kept_tasks:,} tasks in all; steps and collectives are exact all the same"
    )
    print_line(
        f"clocks: aligned on the ends of {view.anchors:,} collectives, "
        f"which agree within {duration(view.residual_ns)} (median)"
        if view.residual_ns >= 0
        else "clocks: kept as recorded; " + NO_ANCHORS
    )
    print_line()
    print_table(
        ("step", "measured", "replayed", "error", "null replay"),
        [
            (
                str(row.step) if row.step >= 0 else "all",
                duration(row.measured_ns),
                duration(row.replayed_ns),
                percent(row.error, signed=True),
                percent(row.null_error, signed=True),
            )
            for row in view.steps
        ],
    )
    text = f"ranks arrive at collectives {duration(view.arrival_error_ns)} off (median)"
    if view.unmatched:
        text += f"; {view.unmatched:,} communication operations have no counterpart"
    print_line(text)
    print_line()
    _print_ranks(view.per_rank)
    print_line("not told of a large recording: " + "; ".join(view.left_out))


def _print_ranks(ranks: Sequence[LargeRankRow]) -> None:
    """Expanded ranks, then those that were held up most."""
    order = sorted(ranks, key=lambda row: (row.start_error_ns < 0, -row.stall_ns, row.rank))
    shown = order[: max(MOST_RANKS, sum(row.start_error_ns >= 0 for row in ranks))]
    print_table(
        ("rank", "host stall", "waits measured", "replayed", "starts off by"),
        [
            (
                str(row.rank),
                duration(row.stall_ns),
                duration(row.waiting_ns),
                duration(row.replayed_waiting_ns),
                duration(row.start_error_ns) if row.start_error_ns >= 0 else "",
            )
            for row in shown
        ],
    )
    if len(shown) < len(ranks):
        print_line(f"({len(ranks) - len(shown):,} ranks with less host stall are left out)")
