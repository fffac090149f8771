"""What-ifs on a job graph: the job under each scenario, replayed.

Scenarios that only change durations share one pass over the graph, several at a time; waiting
is worked out anew by the replay and never scaled. With rates (see ``rates``) each scenario is a
run of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.replay.costs.interference_job import SharedJob
from foretrace.replay.engine import replay, replay_each
from foretrace.replay.graph import I64, JobGraph, Timeline
from foretrace.replay.scenario import Change, Scenario
from foretrace.replay.selection import KIND_TASKS, Mask, select
from foretrace.replay.timeline import step_windows
from foretrace.traces.errors import ScenarioError

MAX_TOTAL_NS = 4e18
"""Sum of all durations, ns; with more than that starts might not fit into 64 bits."""

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


def evaluate(
    graph: JobGraph, scenarios: Sequence[Scenario], shared: SharedJob | None = None
) -> list[Outcome]:
    """Replay one graph under each scenario; they do not add up, each stands alone.

    Args:
        graph: the job.
        scenarios: what to change.
        shared: the same job with what its tasks take from their devices: then work that overlaps
            under a scenario slows each other down, and durations are those of work alone.

    Raises:
        ScenarioError: a rule matches no task; raised before anything is replayed.
    """
    return list(outcomes(graph, scenarios, shared))


def outcomes(
    graph: JobGraph, scenarios: Sequence[Scenario], shared: SharedJob | None = None
) -> Iterator[Outcome]:
    """Like :func:`evaluate`, one after the other, so that timelines can be dropped.

    Raises:
        ScenarioError: as the first outcome is asked for.
    """
    graph = shared.graph if shared else graph
    cases = [_case(graph, s) for s in scenarios]
    for case, timeline in zip(cases, _timelines(graph, cases, shared), strict=True):
        yield _outcome(graph, case, timeline)


def _timelines(
    graph: JobGraph, cases: Sequence[_Case], shared: SharedJob | None
) -> Iterator[Timeline]:
    """One timeline a case; those that keep the dependencies share passes over the graph."""
    alike = [not shared and same_dependencies(case.graph, graph) for case in cases]
    durations = ((c.scenario.name, c.graph.dur_ns) for c, a in zip(cases, alike, strict=True) if a)
    runs = replay_each(graph, durations)
    for case, same in zip(cases, alike, strict=True):
        if same:
            yield next(runs)
        elif shared:
            yield shared.replay(case.graph, case.scenario.name)
        else:
            yield replay(case.graph, label=case.scenario.name)


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


def _case(graph: JobGraph, scenario: Scenario) -> _Case:
    """The job under the scenario, and the tasks that any of its rules means.

    Raises:
        ScenarioError: it cannot be carried out; the message names the scenario.
    """
    try:
        with np.errstate(invalid="ignore"):  # what leaves 64 bits is found by _check_range
            return _carried_out(graph, scenario)
    except ScenarioError as error:
        if scenario.name in str(error):  # a rule that is the whole scenario
            raise
        raise ScenarioError(f"scenario {scenario.name!r}: {error}") from error


def _carried_out(graph: JobGraph, scenario: Scenario) -> _Case:
    dur_ns = graph.dur_ns.copy()
    meant = np.zeros(len(graph), dtype=bool)
    for rule in scenario.rules:
        mask = select(graph, rule)
        dur_ns[mask] = new_durations(dur_ns[mask], rule.change)
        meant |= mask
        _check_range(dur_ns)
    after = graph.with_durations(dur_ns)
    for transform in scenario.transforms:
        after = transform(after)
        _check_range(after.dur_ns)
    if not scenario.transforms:
        return _Case(scenario, after, meant)
    if not same_dependencies(after, graph):
        return _Case(scenario, after, None)
    return _Case(scenario, after, meant | (after.dur_ns != graph.dur_ns))


def _check_range(dur_ns: I64) -> None:
    """Refuse durations that are out of range; a negative one comes from beyond 64 bits."""
    if dur_ns.min(initial=0) < 0 or float(dur_ns.sum(dtype=np.float64)) > MAX_TOTAL_NS:
        raise ScenarioError("durations grow to more than a hundred years, which cannot be meant")


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
