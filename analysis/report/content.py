"""What the report says, as plain values; the template only arranges them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretrace.analysis.breakdown import COLUMNS, breakdown, step_pieces
from foretrace.analysis.causes.case import make_case
from foretrace.analysis.figures import COLOURS, LABELS, breakdown_figure, timeline_figure
from foretrace.analysis.findings import Finding, Findings, find
from foretrace.analysis.report.hover import hover_data
from foretrace.analysis.report.provenance import Provenance, provenance
from foretrace.analysis.report.svg import inline_svg, page_style
from foretrace.analysis.report.tables import Table, sensitivity_table, tables
from foretrace.analysis.run import Run, slowest_step
from foretrace.analysis.sensitivity import sensitivity
from foretrace.replay.accuracy import StepAccuracy
from foretrace.replay.timeline import step_time, step_windows

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of activity in the mean over ranks and steps.

    Attributes:
        name: class, for its colour.
        label: in words.
        colour: its colour.
        share: of the step.
        time_ns: per step.
    """

    name: str
    label: str
    colour: str
    share: float
    time_ns: float


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that the template needs.

    Attributes:
        title: name of the run.
        verdict: what a reader in a hurry should take along, one sentence each.
        warnings: what limits the trust in the rest.
        measured_ns: mean step, measured.
        replayed_ns: mean step, replayed.
        steps: measured against replayed, per step.
        parts: where the time goes, mean over ranks and steps.
        findings: what to mend, with prices.
        sensitivity: what speeding up each kind of work saves.
        figure_ranks: per-rank figure, SVG.
        figure_timeline: timeline of the slowest step, SVG.
        slowest: number of that step.
        hover: data of the timeline, JSON.
        tables: further tables by name.
        provenance: where all this comes from.
    """

    title: str
    verdict: list[str]
    warnings: list[str]
    measured_ns: float
    replayed_ns: float
    steps: tuple[StepAccuracy, ...]
    parts: list[Part]
    findings: Findings
    sensitivity: Table
    figure_ranks: str
    figure_timeline: str
    slowest: int
    hover: str
    tables: dict[str, Table]
    provenance: Provenance

    @property
    def best(self) -> Finding | None:
        """The finding that saves most."""
        return self.findings.found[0] if self.findings.found else None

    @property
    def error(self) -> float:
        """Replayed against measured, mean over the steps."""
        return self.replayed_ns / max(self.measured_ns, 1) - 1

    @property
    def null_error(self) -> float:
        """The null replay against measured, mean over the steps."""
        null = sum(s.null_ns for s in self.steps)
        return null / max(sum(s.measured_ns for s in self.steps), 1) - 1


def gather(run: Run) -> Content:
    """Run all analyses of a report."""
    cut = step_pieces(run.measured)
    table = breakdown(cut)
    case = make_case(run.graph)
    found = find(case, run.measured)
    slowest = slowest_step(run.measured)
    with page_style():
        ranks = inline_svg(breakdown_figure(table), _describe(table), "ranks")
        figure, data = timeline_figure(run.measured, slowest)
        label = f"Timeline of step {slowest}: what each rank does over time"
        drawn = inline_svg(figure, label, "time")
    parts = _parts(table)
    source = provenance(run)
    measured = step_time(step_windows(run.measured))
    return Content(
        title=source.name,
        verdict=_verdict(parts, found),
        warnings=[*source.warnings, *_doubts(run)],
        measured_ns=measured,
        replayed_ns=case.step_ns,
        steps=run.assessment.steps,
        parts=parts,
        findings=found,
        sensitivity=sensitivity_table(sensitivity(case)),
        figure_ranks=ranks,
        figure_timeline=drawn,
        slowest=slowest,
        hover=json.dumps(hover_data(figure, data), separators=(",", ":")).replace("<", "\\u003c"),
        tables=tables(run, cut, table, slowest),
        provenance=source,
    )


def _parts(table: pd.DataFrame) -> list[Part]:
    total = float(table["total_ns"].sum())
    parts = []
    for activity, column in COLUMNS.items():
        time = float(table[column].sum())
        if time > 0:
            name = activity.name.lower()
            share = time / max(total, 1)
            parts.append(Part(name, LABELS[name], COLOURS[name], share, time / len(table)))
    return parts


def _describe(table: pd.DataFrame) -> str:
    """The per-rank figure in words."""
    total = table.groupby("rank")["total_ns"].sum()
    busy = (table.groupby("rank")["compute_ns"].sum() / total).fillna(0)
    return (
        f"What each of {len(busy)} ranks does in a step. Computation takes from "
        f"{busy.min():.0%} (rank {busy.idxmin()}) to {busy.max():.0%} (rank {busy.idxmax()})."
    )


def _verdict(parts: list[Part], found: Findings) -> list[str]:
    share = {p.name: p.share for p in parts}
    idle = sum(v for k, v in share.items() if k.startswith("idle"))
    lines = [
        f"Ranks compute for {share.get('compute', 0):.0%} of the step, communicate for "
        f"{share.get('communication', 0):.0%} with nothing computed meanwhile, and are idle for "
        f"{idle:.0%}."
    ]
    causes = [p for p in parts if p.name.startswith("idle") and p.share >= 0.01]
    if causes:
        causes.sort(key=lambda p: -p.share)
        lines.append(
            "Idle time is " + ", ".join(f"{p.label} ({p.share:.0%})" for p in causes[:3]) + "."
        )
    if not found.found:
        lines.append("No single cause saves more than the noise: nothing stands out to mend.")
    return lines


def _doubts(run: Run) -> list[str]:
    """What the accuracy of the replay says about the rest of the report."""
    steps = run.assessment.steps
    doubts = [
        f"The replay of step {step.step} is off by {step.error:+.1%}: take the savings as hints."
        for step in steps
        if abs(step.error) > 0.05
    ]
    copied = [step.copied_host for step in steps if step.copied_host > 0.5]
    if copied:
        low, high = f"{min(copied):.0%}", f"{max(copied):.0%}"
        share = low if low == high else f"{low} to {high}"
        doubts.append(
            f"{share} of the critical path is host time copied from the trace, so a small replay "
            "error says little about how well devices and collectives are modelled."
        )
    unmatched = sum(run.assessment.build.unmatched.values())
    if unmatched:
        doubts.append(
            f"{unmatched} communication operations have no counterpart in the other ranks' "
            "traces; their time may contain waiting."
        )
    return doubts
