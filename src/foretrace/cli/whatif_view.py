"""What ``foretrace whatif`` says, as plain records: written as JSON as they are, or as text."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.cli.replay_view import InterferenceRow, interference_line
from foretrace.cli.terminal import duration, number_list, percent, print_line, print_table

MOST_CLASSES = 20  # rows of a table of classes; --json has them all


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
class PathRow:
    """One class of tasks on the critical path as recorded, over all ranks.

    Attributes:
        name: class of tasks; ``(other)`` is what belongs to none, such as gaps.
        path_ns: its time on the critical path of all steps.
        share: of the path.
        slack_ns: how much longer the nearest of its tasks may take before the last step ends
            later; null where that does not depend on it.
    """

    name: str
    path_ns: int
    share: float
    slack_ns: int | None


@dataclass(frozen=True, slots=True)
class WhatIfView:
    """Everything ``foretrace whatif`` says.

    Attributes:
        trace: where the trace set lies.
        ranks: ranks that were replayed.
        measured_ns: measured time of a step, as ``step_ns`` of a scenario.
        interference: whether work that overlaps slows each other down, and why.
        replayed: the job as it is.
        scenarios: one row per scenario, in the order of the file.
        sensitivity: derivatives as recorded, largest first, where asked for.
        critical_path: what the critical path as recorded is made of, for each way to sort tasks
            that was asked for.
    """

    trace: str
    ranks: list[int]
    measured_ns: int
    interference: InterferenceRow
    replayed: WhatIfRow
    scenarios: list[WhatIfRow]
    sensitivity: list[SensitivityRow]
    critical_path: dict[str, list[PathRow]]


def print_whatif(view: WhatIfView) -> None:
    """Write it for people."""
    rank_word = "rank" if len(view.ranks) == 1 else "ranks"
    print_line(
        f"{view.trace}: {len(view.ranks)} {rank_word} ({number_list(view.ranks)}), "
        f"a step measured as {duration(view.measured_ns)}"
    )
    print_line(interference_line(view.interference))
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
    for by, path in view.critical_path.items():
        print_line(f"The critical path by {by}, and how much longer the nearest other task may be")
        print_table(
            (by, "on the path", "share", "slack"),
            [
                (
                    row.name,
                    duration(row.path_ns),
                    percent(row.share),
                    "" if row.slack_ns is None else duration(row.slack_ns),
                )
                for row in path[:MOST_CLASSES]
            ],
        )
