"""How a job scales: the same layout on more and more GPUs, and what breaks first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from foretrace.replay.extrapolate.job import F64, Extrapolated
from foretrace.replay.extrapolate.sweep import Outcome, Target, outcome, predicted
from foretrace.replay.graph import TaskKind, Timeline
from foretrace.replay.layout import Layout
from foretrace.traces.errors import LayoutError

LOST = 0.05
"""A curve is broken where it has lost this share of the first point's throughput a GPU."""


@dataclass(frozen=True, slots=True)
class Point:
    """One size of a scaling curve.

    Attributes:
        outcome: its prediction.
        efficiency: throughput a GPU over that of the first size.
        cause: part of the time a token that grew most since the first size: a kind of group
            whose communication is on the critical path, ``compute`` or ``bubble``; "" where
            none grew.
        share: what it grew by, as a share of the first size's step.
    """

    outcome: Outcome
    efficiency: float
    cause: str
    share: float


def sizes(text: str) -> list[int]:
    """Numbers of GPUs: ``8..16384`` doubles, ``8,24,96`` is a list.

    Raises:
        LayoutError: neither.
    """
    low, dots, high = text.partition("..")
    try:
        if not dots:
            found = sorted({int(part) for part in text.split(",")})
        else:
            found, reach = [int(low)], int(high)
            while found[-1] * 2 <= reach and found[-1] > 0:
                found.append(found[-1] * 2)
            if reach > found[-1]:
                found.append(reach)
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise LayoutError(f"--scale {text}: expected 8..16384, or a list such as 8,24,96")
    return found


def scaled(layout: Layout, sizes: Sequence[int], strong: bool) -> list[Layout]:
    """The layout on other numbers of GPUs; data-parallel ranks come and go.

    Args:
        layout: the layout at its own size.
        sizes: numbers of GPUs.
        strong: the global batch stays as it is, else it grows with the data-parallel ranks.

    Raises:
        LayoutError: no size holds a whole replica.
    """
    one = layout.tp * layout.cp * layout.pp
    found = []
    for gpus in sizes:
        dp, rest = divmod(gpus, one)
        if rest or not dp:
            continue
        batch = layout.global_batch
        if not strong:
            batch = layout.global_batch // layout.dp * dp
        elif batch % (dp * layout.micro_batch):
            continue
        found.append(msgspec.structs.replace(layout, dp=dp, global_batch=batch))
    if not found:
        raise LayoutError(
            f"no size of --scale is a multiple of tp x cp x pp = {one} whose replicas share the "
            f"global batch of {layout.global_batch}"
        )
    return found


def curve(target: Target, layouts: Sequence[Layout]) -> list[Point]:
    """Efficiency of each size against the first, and the part that grew most.

    Args:
        target: model and machine.
        layouts: one for each size, the smallest first.

    Raises:
        LayoutError: one of them cannot be.
    """
    points: list[Point] = []
    first: tuple[Outcome, dict[str, float]] | None = None
    for layout in layouts:
        found = predicted(target, layout)
        one, parts = outcome(layout, found), path_parts(found.job, found.timeline)
        first = first or (one, parts)
        # What the first size's tokens would take of each GPU here.
        scale = first[0].layout.global_batch / layout.global_batch
        scale *= layout.gpus / first[0].layout.gpus
        grown = {name: ns * scale - first[1].get(name, 0.0) for name, ns in parts.items()}
        cause = max(grown, key=lambda name: grown[name])
        share = max(grown[cause] / first[0].step_ns, 0.0)
        rate = one.tokens_per_s_per_gpu / first[0].tokens_per_s_per_gpu
        points.append(Point(one, rate, cause if share else "", share))
    return points


def first_break(points: Sequence[Point]) -> Point | None:
    """The first size that has lost too much, None where none has."""
    return next((point for point in points if point.efficiency < 1 - LOST), None)


def path_parts(job: Extrapolated, timeline: Timeline) -> dict[str, float]:
    """What the critical path of a step is made of, ns; the parts add up to its length.

    ``compute`` is a rank's mean computation; what else the path computes, because ranks wait for
    each other in a pipeline, is ``bubble``. Communication counts by kind of group. Computations
    that hold communication (``brief``) hold as much of it as their rank's do on average.
    """
    graph = job.graph
    inside, busy = _held(job)
    role = np.searchsorted(job.roles.rank, graph.rank)
    parts: dict[str, float] = defaultdict(float)
    task = int(np.argmax(timeline.end_ns))
    while True:
        length = int(graph.dur_ns[task])
        if graph.kind[task] == TaskKind.COMM:
            parts[graph.names[graph.name[task]].rpartition(" ")[2]] += length
        elif length:
            mine = int(role[task])
            share = length / busy[mine]
            for kind, ns in inside[mine].items():
                parts[kind] += share * ns
            parts["bubble"] += length - share * sum(inside[mine].values())
        edge = int(timeline.bound[task])
        if edge < 0:
            break
        task = int(graph.pred[edge])
    count = job.roles.count
    own = [ns - sum(held.values()) for ns, held in zip(busy.tolist(), inside, strict=True)]
    parts["compute"] = float(np.dot(count, own) / count.sum())
    parts["bubble"] -= parts["compute"]
    return {name: float(ns) for name, ns in parts.items()}


def _held(job: Extrapolated) -> tuple[tuple[Mapping[str, int], ...], F64]:
    """Communication in each role's computations, and the time of these, ns."""
    graph = job.graph
    works = graph.kind == TaskKind.KERNEL
    role = np.searchsorted(job.roles.rank, graph.rank[works])
    busy = np.bincount(role, graph.dur_ns[works], len(job.roles))
    return job.inside, np.maximum(busy, 1.0)
