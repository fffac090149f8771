"""Figures for people, as matplotlib figures.

Colours that the colour-blind tell apart, units on every axis, and legible from one rank to a
thousand: many ranks are aggregated, never drawn over each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.breakdown import COLUMNS
from foretrace.analysis.run import slowest_step
from foretrace.analysis.strips import CLASSES, Strips, strips
from foretrace.replay.graph import Timeline
from foretrace.replay.timeline import step_windows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# After Okabe and Ito's palette; idle time without a cause to mend is grey.
COLOURS = {
    "compute": "#0072b2",
    "communication": "#e69f00",
    "copy": "#009e73",
    "idle_rank": "#cc79a7",
    "idle_host": "#d55e00",
    "idle_stall": "#f0e442",
    "idle_dependency": "#6f6f6f",
    "idle_unexplained": "#a3a3a3",
    "idle_no_work": "#80808050",
    "host_work": "#56b4e9",
}
"""Colour of each class of :data:`foretrace.analysis.strips.CLASSES`."""

LABELS = {
    "compute": "compute",
    "communication": "exposed communication",
    "copy": "copies",
    "idle_rank": "waiting for another rank",
    "idle_host": "waiting for the host",
    "idle_stall": "host stall",
    "idle_dependency": "gaps between tasks",
    "idle_unexplained": "unexplained",
    "idle_no_work": "no work",
    "host_work": "host work",
}
"""What each class is called in figures and reports."""

MANY_RANKS = 32
"""With more ranks bars become columns without gaps."""

LANES_UP_TO = 16
"""Up to so many ranks the timeline shows communication and host strips as well."""

_WIDTH_IN = 10.0
_PIXELS = 12  # levels inside one strip


def breakdown_figure(table: pd.DataFrame, step: int | None = None) -> Figure:
    """What each rank does in a step, as stacked bars.

    Args:
        table: from :func:`foretrace.analysis.breakdown.breakdown`.
        step: which step; None for the mean over all steps.
    """
    from matplotlib.figure import Figure

    chosen = table if step is None else table[table["step"] == step]
    mean = chosen.groupby("rank").mean()
    ranks = mean.index.to_numpy()
    many = len(ranks) > MANY_RANKS
    height = 3.6 if many else 1.1 + 0.26 * max(len(ranks), 2)
    figure = Figure(figsize=(_WIDTH_IN, height), layout="constrained")
    axes = figure.subplots()
    base = np.zeros(len(ranks))
    for activity, column in COLUMNS.items():
        value = mean[column].to_numpy() / 1e6
        if not value.any():
            continue
        name = activity.name.lower()
        style: dict[str, Any] = {"color": COLOURS[name], "label": LABELS[name]}
        if many:
            _columns(axes, ranks, base, base + value, style)
        else:
            axes.barh(np.arange(len(ranks)), value, left=base, height=0.8, **style)
        base = base + value
    hidden = mean["hidden_communication_ns"].to_numpy() / 1e6
    if hidden.any():
        _mark_hidden(axes, ranks, mean["compute_ns"].to_numpy() / 1e6, hidden, many)
    _label_ranks(axes, ranks, many, float(base.max()) if len(base) else 1.0)
    _legend(figure, axes)
    return figure


def timeline_figure(timeline: Timeline, step: int | None = None) -> tuple[Figure, Strips]:
    """One step of all ranks: strips of time whose height is shared by what happens.

    Args:
        timeline: measured, replayed or what-if.
        step: which step; the slowest by default.

    Returns:
        The figure and the numbers behind it.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    window = _window(timeline, step)
    count = len(np.unique(timeline.graph.rank[timeline.graph.rank >= 0]))
    lanes = ("device", "communication", "host") if count <= LANES_UP_TO else ("device",)
    bins = int(np.clip(150_000 // max(count * len(lanes), 1), 200, 1000))
    data = strips(timeline, window, bins, lanes)
    rows = len(data.rank)
    height = float(np.clip(0.16 * rows, 0.8, 9.0)) + 0.9
    figure = Figure(figsize=(_WIDTH_IN, height), layout="constrained")
    axes = figure.subplots()
    span_ms = (window[1] - window[0]) / 1e6
    pixels = strip_pixels(rows)
    image = paint(data, pixels, len(lanes))
    axes.imshow(image, aspect="auto", interpolation="none", extent=(0, span_ms, count, 0))
    _label_strips(axes, data, lanes, lane_bands(pixels, len(lanes)))
    axes.set_xlabel("time in the step (ms)")
    seen = [c for i, c in enumerate(CLASSES) if data.share[:, :, i].any()]
    patches = [Patch(color=COLOURS[c], label=LABELS[c]) for c in seen]
    figure.legend(handles=patches, loc="outside upper left", ncols=4, frameon=False, fontsize=9)
    return figure, data


def strip_pixels(rows: int) -> int:
    """Height of a strip in pixels: fewer where there are many."""
    return _PIXELS if rows <= 128 else 4


def lane_bands(pixels: int, lanes: int) -> list[tuple[int, int]]:
    """First and last row of pixels of each lane of a rank, with gaps between lanes and ranks.

    Args:
        pixels: height of the first lane; the others are half as high.
        lanes: strips per rank.

    Returns:
        One pair for each lane, and ``(height, height)`` of the whole rank at the end.
    """
    bands, at = [], 0
    for lane in range(lanes):
        high = pixels if lane == 0 else pixels // 2
        bands.append((at, at + high))
        at += high + 1
    at += pixels // 4 if lanes > 1 else 0
    return [*bands, (at, at)]


def paint(data: Strips, pixels: int, lanes: int) -> NDArray[np.uint8]:
    """The strips as an image, each bin's column filled from below by shares.

    Args:
        data: the strips.
        pixels: height of a rank's first strip, see :func:`lane_bands`.
        lanes: strips per rank.

    Returns:
        RGBA, shape ``(height, bins, 4)``; nothing happening is transparent.
    """
    colour = np.array([_rgba(COLOURS[c]) for c in CLASSES] + [(0, 0, 0, 0)], np.uint8)
    *bands, (height, _) = lane_bands(pixels, lanes)
    bins = data.share.shape[1]
    image = np.zeros((len(data.rank) // lanes, height, bins, 4), np.uint8)
    for lane, (first, last) in enumerate(bands):
        level = 1 - (np.arange(last - first) + 0.5) / (last - first)
        filled = np.cumsum(data.share[lane::lanes], axis=2)
        which = (filled[:, None, :, :] <= level[None, :, None, None]).sum(axis=3)
        image[:, first:last] = colour[which]
    return image.reshape(-1, bins, 4)


def _window(timeline: Timeline, step: int | None) -> tuple[int, int]:
    windows = step_windows(timeline)
    if not len(windows.step):
        return int(timeline.start_ns.min()), int(timeline.end_ns.max())
    wanted = slowest_step(timeline) if step is None else step
    row = int(np.flatnonzero(windows.step == wanted)[0])
    return int(windows.start_ns[row]), int(windows.end_ns[row])


def _rgba(colour: str) -> tuple[int, int, int, int]:
    channels = bytes.fromhex(colour[1:].ljust(8, "f"))
    return channels[0], channels[1], channels[2], channels[3]


def _columns(axes: Axes, ranks: Any, low: Any, high: Any, style: dict[str, Any]) -> None:
    """Columns without gaps: one polygon however many ranks there are."""
    edge = np.append(np.arange(len(ranks)) - 0.5, len(ranks) - 0.5)
    style = {"linewidth": 0} | style
    axes.fill_between(
        edge, np.append(low, low[-1]), np.append(high, high[-1]), step="post", **style
    )


def _mark_hidden(axes: Axes, ranks: Any, compute: Any, hidden: Any, many: bool) -> None:
    """Hatch the end of the computation by how much communication runs behind it."""
    style: dict[str, Any] = {
        "facecolor": COLOURS["compute"],
        "edgecolor": "#ffffff",
        "hatch": "////",
        "linewidth": 0,
        "label": "compute that hides communication",
    }
    if many:
        _columns(axes, ranks, compute - hidden, compute, style)
    else:
        axes.barh(np.arange(len(ranks)), hidden, left=compute - hidden, height=0.8, **style)


def _label_ranks(axes: Axes, ranks: Any, many: bool, top: float) -> None:
    if many:
        every = max(len(ranks) // 16, 1)
        axes.set_xticks(np.arange(0, len(ranks), every), [str(r) for r in ranks[::every]])
        axes.set(xlabel="rank", ylabel="time per step (ms)", ylim=(0, top))
        axes.set_xlim(-0.5, len(ranks) - 0.5)
    else:
        axes.set_yticks(np.arange(len(ranks)), [str(r) for r in ranks])
        axes.set(xlabel="time per step (ms)", ylabel="rank", xlim=(0, top))
        axes.set_ylim(len(ranks) - 0.5, -0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _label_strips(
    axes: Axes, data: Strips, lanes: tuple[str, ...], bands: list[tuple[int, int]]
) -> None:
    ranks = data.rank[:: len(lanes)]
    every = max(-(-len(ranks) // 32), 1)
    *strips_, (height, _) = bands
    middle = sum(strips_[0]) / 2 / height
    axes.set_yticks(np.arange(0, len(ranks), every) + middle, [str(r) for r in ranks[::every]])
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("rank")
    if len(lanes) > 1:
        right = axes.secondary_yaxis("right")
        right.set_yticks([sum(band) / 2 / height for band in strips_], list(lanes), fontsize=7)
        right.tick_params(length=0, pad=1)
        right.spines["right"].set_visible(False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False, fontsize=9)
