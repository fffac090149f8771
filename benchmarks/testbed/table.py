"""Predictions beside measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.prediction import Prediction

MEAN_BAR, WORST_BAR = 0.05, 0.10


@dataclass(frozen=True, slots=True)
class Row:
    """One intervention.

    Attributes:
        prediction: what was said before.
        measured_ns: time of each step of the changed job.
    """

    prediction: Prediction
    measured_ns: NDArray[np.int64]

    @property
    def measured_ms(self) -> float:
        """Median step, ms."""
        return float(np.median(self.measured_ns)) / 1e6

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.prediction.predicted_ms / self.measured_ms - 1

    @property
    def naive_error(self) -> float:
        """The same of the naive guess."""
        return self.prediction.naive_ms / self.measured_ms - 1


def table(rows: Sequence[Row]) -> str:
    """A Markdown table; the spread is from the 10th to the 90th percentile of the steps."""
    lines = [
        "| change | recorded | predicted | measured | spread | error | nothing overlaps | error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        low, high = np.percentile(row.measured_ns, [10, 90]) / 1e6
        said = row.prediction
        lines.append(
            f"| {said.name} | {said.recorded_ms:.1f} ms | {said.predicted_ms:.1f} ms "
            f"| {row.measured_ms:.1f} ms | {low:.1f}-{high:.1f} | {row.error:+.1%} "
            f"| {said.naive_ms:.1f} ms | {row.naive_error:+.1%} |"
        )
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """Mean and worst of the errors' sizes, and whether the bars hold."""
    sizes = np.abs([row.error for row in rows])
    naive = np.abs([row.naive_error for row in rows])
    holds = sizes.mean() <= MEAN_BAR and sizes.max() <= WORST_BAR
    return (
        f"mean |error| {sizes.mean():.1%}, worst {sizes.max():.1%} "
        f"(bars: {MEAN_BAR:.0%} and {WORST_BAR:.0%}: {'held' if holds else 'MISSED'}); "
        f"nothing overlaps: mean {naive.mean():.1%}, worst {naive.max():.1%}"
    )
