"""Slack: how much longer each task may take without delaying the end of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.engine import counts_from_start
from foretrace.replay.graph import I64, Timeline
from foretrace.replay.pathkernels import latest_times
from foretrace.replay.timeline import IS_DEVICE
from foretrace.traces.errors import GraphError

UNBOUNDED_NS = np.iinfo(np.int64).max >> 1
"""Slack of a task that no end of a step depends on."""

_NEVER_NS = UNBOUNDED_NS >> 1


@dataclass(frozen=True, slots=True)
class Slack:
    """Room before the end of a step; arrays of shape ``(n,)``, UNBOUNDED_NS where nothing binds.

    Attributes:
        longer_ns: how much longer a task may take.
        later_ns: how much later it may start; never more than ``longer_ns``, and less where
            other work counts from its start (a launch, an overlapping kernel).
        end_ns: end of the step that this is measured by.
    """

    longer_ns: I64
    later_ns: I64
    end_ns: int


def slack(timeline: Timeline, step: int | None = None) -> Slack:
    """Slack of every task on a replayed timeline.

    One task alone may take its slack; two on the same chain share it.

    Args:
        timeline: a replay. On a measured timeline late starts would count as room.
        step: the step whose end must stay; None for the last end of all steps.

    Raises:
        GraphError: the timeline has no such step.
    """
    graph = timeline.graph
    closing = closing_tasks(timeline, step)
    end_ns = int(timeline.end_ns[closing].max())
    deadline = np.full(len(graph), UNBOUNDED_NS)
    deadline[closing] = end_ns
    start, end = latest_times(
        timeline.end_ns - timeline.start_ns,
        graph.pred_ptr,
        graph.pred,
        counts_from_start(graph),
        graph.edge_delay_ns,
        deadline,
    )
    return Slack(_room(end, timeline.end_ns), _room(start, timeline.start_ns), end_ns)


def closing_tasks(timeline: Timeline, step: int | None = None) -> I64:
    """Tasks of which the last ends a step: its end marks and its device tasks.

    Raises:
        GraphError: the timeline has no such step.
    """
    graph = timeline.graph
    steps = np.unique(graph.steps.step)
    if step is not None and step not in steps:
        raise GraphError(f"no step {step} in the timeline; steps are {steps.tolist()}")
    if not len(steps):
        raise GraphError("the job has no steps: nothing says which end counts")
    wanted = steps if step is None else np.array([step])
    closing = IS_DEVICE[graph.kind] & np.isin(graph.step, wanted)
    closing[graph.steps.end[np.isin(graph.steps.step, wanted)]] = True
    return np.flatnonzero(closing)


def _room(latest: I64, actual: I64) -> I64:
    # What only leads to unbounded work lies a few durations below the bound itself.
    room: I64 = np.where(latest > _NEVER_NS, UNBOUNDED_NS, latest - actual)
    return room
