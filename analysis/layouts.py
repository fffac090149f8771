"""Figures of predicted layouts: time against memory, and throughput against size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foretrace.analysis.figures import COLOURS
from foretrace.replay.extrapolate.scaling import Point
from foretrace.replay.extrapolate.sweep import Outcome, pareto

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE_IN = (9.0, 5.0)
_NAMED = 8  # layouts of the front that are named
_GIB = 2.0**30


def layout_name(outcome: Outcome) -> str:
    """What sets a layout apart, in a few words: ``tp 8 · pp 4 · dp 32``."""
    layout = outcome.layout
    sizes = ("tp", "cp", "pp", "virtual", "dp", "ep", "etp")
    words = [f"{key} {getattr(layout, key)}" for key in sizes if getattr(layout, key) > 1]
    words.append(f"mb {layout.micro_batch}")
    words.append(f"zero {layout.zero}")
    if layout.recompute != "none":
        words.append(layout.recompute)
    return " · ".join(words)


def pareto_figure(outcomes: Sequence[Outcome]) -> Figure:
    """Step time against memory of each layout; a line joins those that no other one beats."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_IN, layout="constrained")
    axes = figure.subplots()
    known = [one for one in outcomes if one.memory_bytes is not None]
    front = pareto(known)
    style = {"linewidths": 0, "color": COLOURS["idle_unexplained"], "alpha": 0.6}
    axes.scatter(*_places(known), s=10, label=f"{len(known):,} layouts", **style)  # type: ignore[arg-type]
    axes.plot(
        *_places(front),
        "o-",
        color=COLOURS["compute"],
        markersize=4,
        label="none is better in both",
    )
    _name(axes, front)
    axes.set(xlabel="memory of the fullest GPU (GiB)", ylabel="step time (s)")
    if known and max(o.step_ns for o in known) > 5 * min(o.step_ns for o in known):
        axes.set_yscale("log")
    _finish(axes)
    return figure


def _name(axes: Axes, front: Sequence[Outcome]) -> None:
    """Number some layouts of the front, and list them beside the axes."""
    count = min(len(front), _NAMED)
    chosen = [front[round(k * (len(front) - 1) / max(count - 1, 1))] for k in range(count)]
    for number, one in enumerate(chosen, start=1):
        memory, seconds = (values[0] for values in _places([one]))
        axes.annotate(
            str(number), (memory, seconds), (4, 4), textcoords="offset points", fontsize=8
        )
    lines = [f"{number}  {layout_name(one)}" for number, one in enumerate(chosen, start=1)]
    axes.text(
        1.02, 0.9, "\n".join(lines), transform=axes.transAxes, fontsize=7, va="top", linespacing=1.8
    )


def scaling_figure(points: Sequence[Point]) -> Figure:
    """Throughput of one GPU against their number, and what would be perfect."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_IN, layout="constrained")
    axes = figure.subplots()
    gpus = [point.outcome.layout.gpus for point in points]
    rate = [point.outcome.tokens_per_s_per_gpu for point in points]
    axes.axhline(rate[0], color=COLOURS["idle_dependency"], linewidth=1, linestyle="--",
                 label="as the first size")  # fmt: skip
    axes.plot(gpus, rate, "o-", color=COLOURS["compute"], markersize=4, label="predicted")
    axes.set_xscale("log", base=2)
    axes.set_xticks(gpus, [f"{n:,}" for n in gpus], rotation=45, fontsize=8)
    axes.set(xlabel="GPUs", ylabel="tokens/s a GPU", ylim=(0, max(rate) * 1.1))
    _finish(axes)
    return figure


def _places(outcomes: Sequence[Outcome]) -> tuple[list[float], list[float]]:
    memory = [(one.memory_bytes or 0.0) / _GIB for one in outcomes]
    return memory, [one.step_ns / 1e9 for one in outcomes]


def _finish(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
