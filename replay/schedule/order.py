"""A pipeline schedule: for each rank the order of its forwards and backwards.

The model is cut into stages ``0 .. stages - 1`` in the order of the forward pass; a rank holds one
or several of them. An operation works on one micro-batch in one stage. What it waits for:

- the operation before it on its rank;
- a forward: the same micro-batch's forward in the stage before;
- a backward: its forward, and the same micro-batch's backward in the stage behind;
- gradients of weights: the gradients of inputs of the same micro-batch and stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.graph import I8, I32, I64
from foretrace.replay.wavefront import by_level
from foretrace.traces.errors import GraphError, LayoutError


class Phase(IntEnum):
    """What an operation computes."""

    FORWARD = 0
    BACKWARD = 1  # gradients of inputs and weights
    INPUT = 2  # gradients of inputs only
    WEIGHT = 3  # gradients of weights only


@dataclass(frozen=True, slots=True)
class Schedule:
    """Operations of all ranks, sorted by rank, in each rank's order; arrays of shape ``(ops,)``.

    Attributes:
        name: such as ``1f1b``.
        ranks: pipeline ranks.
        stages: parts that the model is cut into.
        micro_batches: micro-batches of a step.
        rank: pipeline rank of each operation.
        phase: ``Phase``.
        micro_batch: micro-batch, from 0.
        stage: stage of the model, from 0.
        beside: it runs together with the operation before it (DualPipe's overlapped pairs).
    """

    name: str
    ranks: int
    stages: int
    micro_batches: int
    rank: I32
    phase: I8
    micro_batch: I32
    stage: I32
    beside: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rank)


Op = tuple[Phase, int, int, bool]
"""Phase, micro-batch, stage, beside."""


def schedule_of(name: str, stages: int, micro_batches: int, orders: Iterable[list[Op]]) -> Schedule:
    """Collect the orders of rank 0, 1, ... ."""
    lists = list(orders)
    flat = [op for order in lists for op in order]
    columns: list[tuple[Any, ...]] = list(zip(*flat, strict=True)) or [()] * 4
    return Schedule(
        name=name,
        ranks=len(lists),
        stages=stages,
        micro_batches=micro_batches,
        rank=np.repeat(np.arange(len(lists), dtype=np.int32), [len(order) for order in lists]),
        phase=np.array(columns[0], np.int8),
        micro_batch=np.array(columns[1], np.int32),
        stage=np.array(columns[2], np.int32),
        beside=np.array(columns[3], np.bool_),
    )


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What each operation waits for; arrays of shape ``(edges,)``.

    Attributes:
        source: operation that has to end.
        target: operation that waits.
        transfer: the two are of neighbouring stages: activations or gradients go over.
    """

    source: I64
    target: I64
    transfer: NDArray[np.bool_]


def dependencies(schedule: Schedule) -> Dependencies:
    """Edges of the data and of each rank's order.

    Two operations that run together do not wait for each other; both wait for what came
    before the pair, and what comes behind it waits for both.

    Raises:
        LayoutError: the schedule is not complete.
    """
    forward, backward, weight = _places(schedule)
    parts = [
        (forward[:, :-1], forward[:, 1:], True),
        (backward[:, 1:], backward[:, :-1], True),
        (forward, backward, False),
    ]
    split = weight >= 0
    parts.append((backward[split], weight[split], False))
    parts.append((*_order(schedule), False))
    source = [np.asarray(p[0]).reshape(-1) for p in parts]
    target = [np.asarray(p[1]).reshape(-1) for p in parts]
    moved = [np.full(len(s), p[2]) for s, p in zip(source, parts, strict=True)]
    return Dependencies(np.concatenate(source), np.concatenate(target), np.concatenate(moved))


def check(schedule: Schedule) -> None:
    """Refuse schedules that are not complete or that never end.

    Raises:
        LayoutError: saying what is missing, or that operations wait for each other.
    """
    edges = dependencies(schedule)
    try:
        by_level(len(schedule), edges.source, edges.target)
    except GraphError as error:
        raise LayoutError(
            f"schedule {schedule.name!r} never ends: {error}; change the order on a rank"
        ) from error


def _places(schedule: Schedule) -> tuple[I64, I64, I64]:
    """Number of each (micro-batch, stage)'s forward, backward (of inputs) and of weights."""
    shape = (schedule.micro_batches, schedule.stages)
    inside = (schedule.micro_batch < shape[0]) & (schedule.stage < shape[1])
    if not (inside & (schedule.micro_batch >= 0) & (schedule.stage >= 0)).all():
        raise LayoutError(
            f"schedule {schedule.name!r}: micro-batches go from 0 to {shape[0] - 1} and stages "
            f"from 0 to {shape[1] - 1}"
        )
    cell = schedule.micro_batch.astype(np.int64) * shape[1] + schedule.stage
    places = []
    for phases in ((Phase.FORWARD,), (Phase.BACKWARD, Phase.INPUT), (Phase.WEIGHT,)):
        rows = np.flatnonzero(np.isin(schedule.phase, phases))
        count = np.bincount(cell[rows], minlength=shape[0] * shape[1])
        if count.max(initial=0) > 1 or (phases[0] != Phase.WEIGHT and count.min(initial=1) < 1):
            _refuse(schedule, phases[0], count)
        found = np.full(shape[0] * shape[1], -1, np.int64)
        found[cell[rows]] = rows
        places.append(found.reshape(shape))
    split = schedule.phase == Phase.INPUT
    both = np.zeros(shape[0] * shape[1], np.int64)
    both[cell[split]] += 1
    both[cell[schedule.phase == Phase.WEIGHT]] += 2
    if np.isin(both, (1, 2)).any():
        at = int(np.flatnonzero(np.isin(both, (1, 2)))[0])
        raise LayoutError(
            f"schedule {schedule.name!r}: micro-batch {at // shape[1]} in stage {at % shape[1]} "
            "needs both the gradients of inputs and of weights, or a whole backward"
        )
    return places[0], places[1], places[2]


def _refuse(schedule: Schedule, phase: Phase, count: I64) -> None:
    at = int(np.flatnonzero(count != 1)[0])
    raise LayoutError(
        f"schedule {schedule.name!r}: micro-batch {at // schedule.stages} has {int(count[at])} "
        f"{phase.name.lower()}s in stage {at % schedule.stages}, expected one"
    )


def _order(schedule: Schedule) -> tuple[I64, I64]:
    """Edges of each rank's order; operations that run together count as one place in it."""
    place = np.cumsum(~schedule.beside) - 1
    first = np.flatnonzero(~schedule.beside)
    last = np.append(first[1:], len(schedule)) - 1
    target = np.flatnonzero(place > 0)
    target = target[schedule.rank[first[place[target] - 1]] == schedule.rank[target]]
    begin, end = first[place[target] - 1], last[place[target] - 1]
    two = begin != end
    return np.concatenate([begin, end[two]]), np.concatenate([target, target[two]])
