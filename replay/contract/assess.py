"""How good the replay of a large recording is: what its reduced form can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.replay.accuracy import collective_waiting, start_errors
from foretrace.replay.build.context import POOL_RANKS
from foretrace.replay.build.recorded import has_own_graph
from foretrace.replay.contract.large import LargeReplay
from foretrace.replay.graph import DEVICE_KINDS, I64, TaskKind, Timeline
from foretrace.replay.timeline import StepWindows, step_windows
from foretrace.traces.store import TraceSet

LARGE_EVENTS = 10_000_000
"""Recordings with more events than this, on more ranks than learn together, are large. The plain
replay holds some 250 bytes an event; every sixth event or so becomes a task."""


@dataclass(frozen=True, slots=True)
class LargeAssessment:
    """What is known of the fit; arrays of shape ``(steps,)`` or ``(ranks,)``.

    Attributes:
        measured: the steps as recorded.
        replayed: the steps as replayed.
        arrival_error_ns: median distance of the replayed arrivals at collectives from the measured.
        waiting_ns: measured waiting inside each rank's collectives.
        replayed_waiting_ns: the same in the replay.
        rank_error_ns: rank -> median distance of its device tasks' starts, where it was expanded.
    """

    measured: StepWindows
    replayed: StepWindows
    arrival_error_ns: int
    waiting_ns: I64
    replayed_waiting_ns: I64
    rank_error_ns: dict[int, int]


def is_large(trace: TraceSet, ranks: Sequence[int]) -> bool:
    """Whether a recording is too large to be replayed in one piece."""
    if len(ranks) <= POOL_RANKS:
        return False
    events = sum(sum(trace.info(r).counts.values()) for r in ranks)
    return events > LARGE_EVENTS and not has_own_graph(trace, ranks)


def assess_large(large: LargeReplay) -> LargeAssessment:
    """Hold a reduced replay against the recording."""
    timeline = large.timeline
    graph = timeline.graph
    real = _as_measured(timeline)
    error = np.abs(start_errors(timeline, real))
    arrivals = error[(graph.kind == TaskKind.ARRIVE) & (graph.rank >= 0)]
    return LargeAssessment(
        measured=step_windows(real),
        replayed=step_windows(timeline),
        arrival_error_ns=int(np.median(arrivals)) if len(arrivals) else 0,
        waiting_ns=_by_rank(real, large.ranks),
        replayed_waiting_ns=_by_rank(timeline, large.ranks),
        rank_error_ns=_expanded_errors(large, real),
    )


def _as_measured(timeline: Timeline) -> Timeline:
    """The recorded times of the tasks that were kept."""
    graph = timeline.graph
    none = np.full(len(graph), -1, np.int64)
    return Timeline(graph, graph.measured_start_ns, graph.measured_end_ns, none, "measured")


def _by_rank(timeline: Timeline, ranks: Sequence[int]) -> I64:
    """Waiting inside the collectives of each rank."""
    comm, waiting = collective_waiting(timeline)
    row = np.searchsorted(ranks, timeline.graph.rank[comm])
    total = np.zeros(len(ranks), np.int64)
    np.add.at(total, row, waiting)
    return total


def _expanded_errors(large: LargeReplay, real: Timeline) -> dict[int, int]:
    """Median error of the device tasks' starts of each expanded rank."""
    if large.expanded is None:
        return {}
    begin = large.timeline.graph.steps.begin
    shift = real.start_ns[begin].min() - large.timeline.start_ns[begin].min()
    graph = large.expanded.graph
    error = np.abs(large.expanded.start_ns + shift - graph.measured_start_ns)
    device = np.isin(graph.kind, [k for k in DEVICE_KINDS if k != TaskKind.COMM])
    return {
        int(r): int(np.median(error[device & (graph.rank == r)]))
        for r in np.unique(graph.rank[graph.rank >= 0])
    }
