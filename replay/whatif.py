"""What-ifs on a job graph: the job under each scenario, replayed.

Scenarios that only change durations share one pass over the graph, several at a time; waiting
is worked out anew by the replay and never scaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from foretrace.replay.engine import replay, replay_each
from foretrace.replay.graph import I64, JobGraph, Timeline
from foretrace.replay.scenario import Change, Scenario
from foretrace.replay.selection import KIND_TASKS, Mask, select
from foretrace.replay.timeline import step_windows

__all__ = ["KIND_TASKS", "Outcome", "apply", "changed", "evaluate", "outcomes", "select"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scenario does to a job.

    Attributes:
        scenario: what was asked.
        timeline: the replay under the scenario.
        tasks: how many tasks its rules mean; with transforms, how many change their duration
            or, where the dependencies change, all.
        before_ns: their durations' sum as recorded, over all ranks, ns.
        after_ns: the same under the scenario.
        step_ns: length of each step, shape ``(steps,)``.
    """

    scenario: Scenario
    timeline: Timeline
    tasks: int
    before_ns: int
    after_ns: int
    step_ns: I64


@dataclass(frozen=True, slots=True)
class _Case:
    """A scenario and the job under it."""

    scenario: Scenario
    graph: JobGraph
    meant: Mask | None


def evaluate(graph: JobGraph, scenarios: Sequence[Scenario]) -> list[Outcome]:
    """Replay one graph under each scenario; they do not add up, each stands alone.

    Raises:
        ScenarioError: a rule matches no task; raised before anything is replayed.
    """
    return list(outcomes(graph, scenarios))


def outcomes(graph: JobGraph, scenarios: Sequence[Scenario]) -> Iterator[Outcome]:
    """Like :func:`evaluate`, one after the other, so that timelines can be dropped.

    Raises:
        ScenarioError: as the first outcome is asked for.
    """
    cases = [_case(graph, s) for s in scenarios]
    for same, several in groupby(cases, key=lambda case: same_dependencies(case.graph, graph)):
        if same:
            yield from _at_once(graph, list(several))
        else:
            for case in several:
                timeline = replay(case.graph, label=case.scenario.name)
                yield _outcome(graph, case, timeline)


def changed(graph: JobGraph, scenario: Scenario) -> JobGraph:
    """The job under ``scenario``: its rules, then its transforms, in order.

    Raises:
        ScenarioError: a rule matches no task, or the trace lacks what a transform needs.
    """
    return _case(graph, scenario).graph


def apply(graph: JobGraph, scenario: Scenario) -> I64:
    """Durations under ``scenario``.

    Returns:
        ns, shape ``(n,)``, a new array; give it to ``replay(graph, dur_ns=...)``. Where a
        transform changes dependencies, they are those of the tasks of :func:`changed`.

    Raises:
        ScenarioError: a rule matches no task; says what there is.
    """
    dur_ns: I64 = changed(graph, scenario).dur_ns.copy()
    return dur_ns


def same_dependencies(one: JobGraph, other: JobGraph) -> bool:
    """Whether two graphs share their edges, so that only durations differ."""
    return (
        one.pred is other.pred
        and one.pred_ptr is other.pred_ptr
        and one.edge_delay_ns is other.edge_delay_ns
        and one.edge_kind is other.edge_kind
    )


def _at_once(graph: JobGraph, cases: list[_Case]) -> Iterator[Outcome]:
    runs = replay_each(graph, ((c.scenario.name, c.graph.dur_ns) for c in cases))
    for case, timeline in zip(cases, runs, strict=True):
        yield _outcome(graph, case, timeline)


def _case(graph: JobGraph, scenario: Scenario) -> _Case:
    """The job under the scenario, and the tasks that any of its rules means."""
    dur_ns = graph.dur_ns.copy()
    meant = np.zeros(len(graph), dtype=bool)
    for rule in scenario.rules:
        mask = select(graph, rule)
        dur_ns[mask] = new_durations(dur_ns[mask], rule.change)
        meant |= mask
    after = graph.with_durations(dur_ns)
    for transform in scenario.transforms:
        after = transform(after)
    if not scenario.transforms:
        return _Case(scenario, after, meant)
    if not same_dependencies(after, graph):
        return _Case(scenario, after, None)
    return _Case(scenario, after, meant | (after.dur_ns != graph.dur_ns))


def _outcome(graph: JobGraph, case: _Case, timeline: Timeline) -> Outcome:
    before, after = graph.dur_ns, case.graph.dur_ns
    if case.meant is not None:
        before, after = before[case.meant], after[case.meant]
    return Outcome(
        case.scenario,
        timeline,
        tasks=len(after),
        before_ns=int(before.sum()),
        after_ns=int(after.sum()),
        step_ns=step_windows(timeline).dur_ns,
    )


def new_durations(dur_ns: I64, change: Change) -> I64:
    """Durations after a change, ns."""
    if change.factor == 1.0:  # stays in integers
        new: I64 = np.maximum(dur_ns + round(change.offset_ns), 0)
    else:
        new = np.maximum(np.rint(dur_ns * change.factor + change.offset_ns), 0).astype(np.int64)
    return new
