"""What holds the step back, ordered by what a replay without it saves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from foretrace.analysis.causes import RULES
from foretrace.analysis.causes.case import Case, Cause, make_case
from foretrace.replay.engine import replay
from foretrace.replay.graph import JobGraph, Timeline
from foretrace.replay.timeline import step_time, step_windows

LEAST_SHARE = 0.005
"""Findings that save less than this share of the step are not reported."""

CONFIDENCES = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that holds the step back, and its price.

    Attributes:
        kind: short name of the rule that found it.
        title: one line for people.
        ranks: ranks it concerns.
        saving_ns: by how much a step gets shorter without it, by replay, ns.
        share: that as a share of the replayed step.
        confidence: "high", "medium" or "low".
        evidence: sentences with numbers and where to look.
        action: what to do next.
    """

    kind: str
    title: str
    ranks: tuple[int, ...]
    saving_ns: int
    share: float
    confidence: str
    evidence: tuple[str, ...]
    action: str


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings of a job, best saving first.

    Attributes:
        found: the findings.
        step_ns: replayed step that savings are shares of, mean over the steps.
        noise_ns: what a saving has to exceed, ns.
        priced: how many causes were replayed.
    """

    found: tuple[Finding, ...]
    step_ns: float
    noise_ns: float
    priced: int


def find(source: JobGraph | Case, measured: Timeline | None = None) -> Findings:
    """Propose causes, replay the job without each, and rank them.

    Args:
        source: the job graph, or a case made of one.
        measured: the measured timeline; its steps' differences are the noise that a finding
            has to exceed, and a replay far from it lowers the confidence.
    """
    case = source if isinstance(source, Case) else make_case(source)
    noise = noise_between_steps(measured if measured is not None else case.timeline)
    least = max(LEAST_SHARE * case.step_ns, noise)
    doubt = _doubt(case, measured)
    found, priced = [], 0
    for cause in _worth_a_replay(case, least):
        priced += 1
        saving = case.step_ns - _step_without(case, cause)
        if saving > least:
            found.append(_finding(case, cause, saving, doubt))
    found.sort(key=lambda f: -f.saving_ns)
    return Findings(tuple(found), case.step_ns, least, priced)


def noise_between_steps(timeline: Timeline) -> float:
    """Typical difference of a step from the median step, ns; 0 with fewer than two steps.

    The median absolute deviation, scaled to a standard deviation: one slow first step does
    not drown every finding.
    """
    dur = step_windows(timeline).dur_ns
    if len(dur) < 2:
        return 0.0
    return float(1.4826 * np.median(np.abs(dur - np.median(dur))))


def _worth_a_replay(case: Case, least: float) -> Iterable[Cause]:
    """Causes that could save enough: no more than they have on the critical path.

    Shortening tasks leaves the old critical path in place, only shorter, and the new step is
    at least that long. Half of the bar allows for steps that shift against each other.
    """
    for rule in RULES:
        for cause in rule(case):
            shorter = np.flatnonzero(cause.dur_ns < case.graph.dur_ns[cause.tasks])
            if len(cause.gone) or case.on_path(cause.tasks[shorter]) >= least / 2:
                yield cause


def _step_without(case: Case, cause: Cause) -> float:
    return step_time(step_windows(replay(cause.removed_from(case.graph), label=cause.kind)))


def _doubt(case: Case, measured: Timeline | None) -> int:
    """How many levels of confidence to take off: 1 where the replay misses the step by 5%."""
    if measured is None:
        return 0
    truth = step_time(step_windows(measured))
    return int(truth > 0 and abs(case.step_ns / truth - 1) > 0.05)


def _finding(case: Case, cause: Cause, saving: float, doubt: int) -> Finding:
    level = max(cause.confidence - 1 - doubt, 0)
    return Finding(
        cause.kind,
        cause.title,
        tuple(sorted(cause.ranks)),
        round(saving),
        saving / max(case.step_ns, 1),
        CONFIDENCES[level],
        cause.evidence,
        cause.action,
    )
