"""What ``foretrace replay`` says, as plain records: written as JSON as they are, or as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretrace.cli.terminal import duration, number_list, percent, print_line, print_table

OVERLAP = 1.01
"""Steps that add up to more than this many times what they take together overlap."""

MEASURED = "measured"
"""Times that somebody recorded, unlike those that an import laid out."""

MOST_RANKS = 16  # rows of the table of ranks
COPIED_WARNING = 0.5  # share of the critical path above which an error says little
SKEW_WORTH_A_LINE = 0.01  # share of the critical path from which it is named as an input
NO_ANCHORS = "the ranks share one, or no collectives that end together connect them"


@dataclass(frozen=True, slots=True)
class StepRow:
    """One job step.

    Attributes:
        step: step number.
        measured_ns: measured length; the laid-out one where ``ReplayView.times`` is "laid out".
        replayed_ns: replayed length.
        error: (replayed - measured) / measured.
        null_error: the same for a replay without any rendezvous and with all waits frozen.
        unexplained: share of the step, on the critical path, that tasks started later than
            anything modelled explains.
        unexplained_early: the same for starts earlier than the model allows.
        critical_path: share of the replayed step by what the critical path spends it on.
        copied_host: share of the critical path that is host time copied from the trace.
    """

    step: int
    measured_ns: int
    replayed_ns: int
    error: float
    null_error: float
    unexplained: float
    unexplained_early: float
    critical_path: dict[str, float]
    copied_host: float


@dataclass(frozen=True, slots=True)
class AlignmentRow:
    """How well the ranks' clocks agree.

    Attributes:
        residual_ns: median distance of a collective's ends from their common end; -1 unknown.
        anchors: collectives that it was worked out from.
    """

    residual_ns: int
    anchors: int


@dataclass(frozen=True, slots=True)
class RankRow:
    """How well one rank fits, over all steps.

    Attributes:
        rank: rank.
        start_error_ns: median distance of its device tasks' replayed starts from the measured.
        start_error_p95_ns: the 95th percentile.
        waiting_ns: measured waiting inside its collectives.
        replayed_waiting_ns: the same in the replay.
        stall_ns: host time beyond what is typical between two calls.
        stall: the same as a share of the measured steps.
    """

    rank: int
    start_error_ns: int
    start_error_p95_ns: int
    waiting_ns: int
    replayed_waiting_ns: int
    stall_ns: int
    stall: float


@dataclass(frozen=True, slots=True)
class InterferenceRow:
    """Whether work that overlaps slows each other down in the scenarios.

    Attributes:
        used: it does.
        reason: why, or why not.
        steps_ns: length of each step as recorded under it; what the scenarios' changes are
            against. Empty where it is not used.
        step_error: mean error of held-out steps without it and with it; null where none were.
        kernel_error: median error of held-out kernels beside communication, as above.
    """

    used: bool
    reason: str
    steps_ns: list[int]
    step_error: list[float] | None
    kernel_error: list[float] | None


@dataclass(frozen=True, slots=True)
class ScenarioRow:
    """One what-if.

    Attributes:
        name: as typed.
        step_ns: length of a step under it, mean over the steps.
        steps_ns: of each step.
        change: against the replay without it; negative is faster.
        tasks: tasks that it means.
        before_ns: sum of their durations as recorded, over all ranks and steps.
        after_ns: the same under the scenario.
    """

    name: str
    step_ns: int
    steps_ns: list[int]
    change: float
    tasks: int
    before_ns: int
    after_ns: int


@dataclass(frozen=True, slots=True)
class ReplayView:
    """Everything ``foretrace replay`` says.

    Attributes:
        trace: where the trace set lies.
        ranks: ranks that were replayed.
        missing_ranks: ranks of the job that were not recorded.
        tasks: tasks of the job graph.
        edges: dependencies of the job graph.
        unmatched: communication operations without a counterpart.
        steps: one row per step.
        alignment: clocks.
        start_error_ns: median distance of all device tasks' replayed starts from the measured.
        span_ns: measured time from the first step's begin to the last one's end.
        times: "measured", or "laid out" where nobody recorded when tasks began (most Chakra
            graphs): the import worked starts out, and all ``measured_`` fields hold those.
        per_rank: one row per rank.
        interference: whether scenarios were replayed with it, and why.
        scenarios: one row per what-if.
        stood_in: communication operations of groups of which some ranks were not recorded.
        absent_wait_ns: what unmatched operations took beyond the shortest run of each in
            several steps: waiting for ranks that were not recorded.
    """

    trace: str
    ranks: list[int]
    missing_ranks: list[int]
    tasks: int
    edges: int
    unmatched: int
    steps: list[StepRow]
    alignment: AlignmentRow
    start_error_ns: int
    span_ns: int
    times: str
    per_rank: list[RankRow]
    interference: InterferenceRow
    scenarios: list[ScenarioRow]
    stood_in: int = 0
    absent_wait_ns: int = 0


def print_view(view: ReplayView) -> None:
    """Write it for people."""
    print_line(
        f"{view.trace}: {_count(view.ranks, 'rank')} ({number_list(view.ranks)}), "
        f"{_count(view.steps, 'step')}, {view.tasks:,} tasks, {view.edges:,} dependencies"
    )
    if view.missing_ranks:
        print_line(
            f"not recorded: {_count(view.missing_ranks, 'rank')} "
            f"({number_list(view.missing_ranks)}); waiting for them stays inside durations"
        )
    if view.times != MEASURED:
        print_line(
            "times laid out: nobody recorded when tasks began; the import worked it out from "
            "durations and dependencies"
        )
    print_line(_clock_line(view))
    print_line()
    _print_steps(view.steps, view.times)
    print_line()
    _print_path(view.steps)
    whole = sum(row.measured_ns for row in view.steps)
    if view.span_ns * OVERLAP < whole:
        print_line(
            f"steps overlap, since ranks run ahead of each other: all of them take "
            f"{duration(view.span_ns)}, {duration(view.span_ns / len(view.steps))} a step"
        )
    print_line(_device_line(view))
    print_line(_stall_line(view.per_rank))
    print_line(interference_line(view.interference))
    if view.interference.used:
        steps = ", ".join(duration(ns) for ns in view.interference.steps_ns[:MOST_RANKS])
        print_line(f"with it the steps take {steps}; the what-ifs' changes are against those")
    if len(view.ranks) > 1:
        print_line()
        _print_ranks(view.per_rank, view.times)
    if view.scenarios:
        print_line()
        _print_scenarios(view.scenarios)


def _count(items: Sequence[object], word: str) -> str:
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"


def interference_line(row: InterferenceRow) -> str:
    """Which replay was used and why, in one line."""
    if not row.used:
        return f"interference of overlapping work: not used ({row.reason})"
    return f"interference of overlapping work: used ({row.reason})"


def _clock_line(view: ReplayView) -> str:
    if len(view.ranks) < 2:
        return "clocks: one rank, nothing to align"
    if view.alignment.residual_ns < 0:
        return "clocks: kept as recorded; " + NO_ANCHORS
    return (
        f"clocks: aligned on the ends of {view.alignment.anchors:,} collectives, "
        f"which agree within {duration(view.alignment.residual_ns)} (median)"
    )


def _print_steps(steps: Sequence[StepRow], times: str) -> None:
    print_table(
        ("step", times, "replayed", "error", "null replay", "unexplained late", "early"),
        [
            (
                str(row.step) if row.step >= 0 else "all",
                duration(row.measured_ns),
                duration(row.replayed_ns),
                percent(row.error, signed=True),
                percent(row.null_error, signed=True),
                percent(row.unexplained),
                percent(row.unexplained_early),
            )
            for row in steps
        ],
    )


def _print_path(steps: Sequence[StepRow]) -> None:
    if not steps:
        return
    split = {
        word: sum(row.critical_path[word] * row.replayed_ns for row in steps)
        for word in steps[0].critical_path
    }
    whole = sum(row.replayed_ns for row in steps) or 1
    parts = [f"{word} {percent(ns / whole)}" for word, ns in split.items() if ns]
    print_line("critical path: " + ", ".join(parts))
    copied = sum(row.copied_host * row.replayed_ns for row in steps) / whole
    line = f"host time copied from the trace: {percent(copied)} of the critical path"
    if copied > COPIED_WARNING:
        line += "; a small error proves little here"
    print_line(line)
    if split.get("skew", 0) / whole > SKEW_WORTH_A_LINE:
        share = percent(split["skew"] / whole)
        print_line(f"when ranks enter the recording (skew) is also an input: {share} of it")


def _device_line(view: ReplayView) -> str:
    text = f"device tasks start {duration(view.start_error_ns)} off (median)"
    if view.unmatched:
        text += (
            f"; {view.unmatched:,} communication operations have no counterpart: "
            "waits on ranks that were not recorded are inputs"
        )
        if view.absent_wait_ns:
            text += f" ({duration(view.absent_wait_ns)} beyond the shortest run of each)"
    if view.stood_in:
        text += f"; in {view.stood_in:,} operations recorded ranks stand in for the group's others"
    return text


def _stall_line(ranks: Sequence[RankRow]) -> str:
    worst = max(ranks, key=lambda row: row.stall_ns, default=None)
    if worst is None or worst.stall_ns == 0:
        return "host stalls: none"
    return (
        f"host stalls: most on rank {worst.rank}, {duration(worst.stall_ns)}, "
        f"{percent(worst.stall)} of the steps; try --what-if 'stall=0'"
    )


def _print_ranks(ranks: Sequence[RankRow], times: str) -> None:
    """The ranks that fit worst come first where there are too many for a screen."""
    shown = sorted(ranks, key=lambda row: -row.start_error_ns)[:MOST_RANKS]
    print_table(
        ("rank", "starts off by", "95%", f"waits {times}", "replayed", "host stall"),
        [
            (
                str(row.rank),
                duration(row.start_error_ns),
                duration(row.start_error_p95_ns),
                duration(row.waiting_ns),
                duration(row.replayed_waiting_ns),
                percent(row.stall),
            )
            for row in sorted(shown, key=lambda row: row.rank)
        ],
    )
    if len(shown) < len(ranks):
        print_line(f"({len(ranks) - len(shown)} ranks that fit better are left out)")


def _print_scenarios(scenarios: Sequence[ScenarioRow]) -> None:
    print_table(
        ("what if", "step", "change", "tasks", "their time", "becomes"),
        [
            (
                row.name,
                duration(row.step_ns),
                percent(row.change, signed=True),
                f"{row.tasks:,}",
                duration(row.before_ns),
                duration(row.after_ns),
            )
            for row in scenarios
        ],
    )
