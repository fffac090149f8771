"""Figures: what they show adds up, and they stay legible with one rank or hundreds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.analysis.graphs import GraphBuilder, two_ranks
from tests.analysis.jobs import Job
from tests.analysis.random_graphs import timelines

from foretrace.analysis.breakdown import COLUMNS, breakdown
from foretrace.analysis.figures import (
    COLOURS,
    LABELS,
    MANY_RANKS,
    breakdown_figure,
    lane_bands,
    paint,
    timeline_figure,
)
from foretrace.analysis.strips import CLASSES, HOST_WORK, strips
from foretrace.replay.engine import replay
from foretrace.replay.graph import TaskKind, Timeline
from foretrace.replay.timeline import step_windows

LANES = ("device", "communication", "host")


def many_ranks(count: int) -> Timeline:
    return replay(Job(ranks=count, steps=1, layers=2).build())


def test_strips_by_hand() -> None:
    data = strips(two_ranks().replayed(), (0, 93), 93, LANES)
    assert data.lane == LANES * 2
    assert data.rank.tolist() == [0, 0, 0, 1, 1, 1]
    time = data.share.sum(axis=1).astype(int)
    of = {name: i for i, name in enumerate(CLASSES)}
    assert time[0, of["compute"]] == 20
    assert time[0, of["idle_rank"]] == 30
    assert (time[1, of["communication"]], time[1, of["idle_rank"]]) == (18, 30)
    assert (time[5, HOST_WORK], time[5, of["idle_stall"]]) == (20, 45)
    assert data.texts[data.text[0, 20]] == "gemm"
    assert data.texts[data.text[0, 40]] == "waits for rank 1"
    assert data.text[2, 50] == -1  # the host of rank 0 has nothing to do


@given(timelines())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_device_strips_hold_the_breakdown(timeline: Timeline) -> None:
    table = breakdown(timeline)
    windows = step_windows(timeline)
    for row, step in enumerate(windows.step.tolist()):
        low, high = int(windows.start_ns[row]), int(windows.end_ns[row])
        if high == low:
            continue
        bins = min(7, high - low)
        data = strips(timeline, (low, high), bins, LANES)
        width = np.diff(data.edges_ns)
        assert data.share.sum(axis=2).max() <= 1 + 1e-5
        assert data.share[::3].sum(axis=2) == pytest.approx(1)
        mine = table[table["step"] == step]
        for activity, column in COLUMNS.items():
            time = (data.share[::3, :, activity] * width).sum(axis=1)
            assert time == pytest.approx(mine[column].to_numpy(), abs=1e-3)


def test_every_class_has_a_colour_and_a_name() -> None:
    assert set(COLOURS) == set(LABELS) == set(CLASSES)
    assert len(set(COLOURS.values())) == len(CLASSES)


def test_paint_fills_from_below_by_share() -> None:
    data = strips(two_ranks().replayed(), (0, 93), 93)
    image = paint(data, 12, 1)
    assert image.shape == (2 * lane_bands(12, 1)[-1][0], 93, 4)
    blue = tuple(bytes.fromhex(COLOURS["compute"][1:] + "ff"))
    assert tuple(image[5, 20]) == blue
    assert (image[12, :, 3] == 0).all()  # the gap between ranks


def test_breakdown_figure_draws_every_activity() -> None:
    table = breakdown(two_ranks(steps=2).replayed())
    figure = breakdown_figure(table)
    axes = figure.axes[0]
    assert axes.get_xlabel() == "time per step (ms)"
    drawn = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {"compute", "exposed communication", "copies", "waiting for another rank"} <= drawn
    assert axes.get_xlim()[1] == pytest.approx(93e-6)


@pytest.mark.parametrize("count", [1, 8, MANY_RANKS + 1, 128])
def test_legible_at_any_number_of_ranks(count: int) -> None:
    timeline = many_ranks(count)
    figure = breakdown_figure(breakdown(timeline))
    many = count > MANY_RANKS
    axes = figure.axes[0]
    labels = axes.get_xticks() if many else axes.get_yticks()
    assert len(labels) <= max(MANY_RANKS, 1)
    drawn = len(axes.collections) + len(axes.patches)
    assert drawn <= 10 * (1 if many else count)
    figure, data = timeline_figure(timeline)
    assert data.share.shape[0] * data.share.shape[1] <= 200_000
    assert len(figure.axes[0].get_yticks()) <= 33
    assert figure.axes[0].get_xlabel() == "time in the step (ms)"


def test_hidden_communication_is_marked() -> None:
    b = GraphBuilder()
    begin = b.task(TaskKind.MARK, 0, 0, stream=1)
    b.task(TaskKind.KERNEL, 0, 100)
    b.task(TaskKind.COMM, 0, 40, stream=20)
    b.mark(0, 0, begin, begin)
    figure = breakdown_figure(breakdown(b.replayed()))
    texts = {text.get_text() for text in figure.legends[0].get_texts()}
    assert "compute that hides communication" in texts


def test_a_record_without_steps_is_drawn_whole() -> None:
    b = GraphBuilder()
    b.task(TaskKind.KERNEL, 0, 100)
    _, data = timeline_figure(b.replayed())
    assert (data.edges_ns[0], data.edges_ns[-1]) == (0, 100)
