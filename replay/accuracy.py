"""How far a replay can be trusted: its errors, what it leaves unexplained, and the null replay.

A small step error proves little on its own. Beside it stand the *null replay* (no rendezvous,
all waits frozen at their measured lengths), the time that the model cannot explain, the error
of single device tasks, each rank's waiting, and how much of the critical path is host time
copied from the trace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from foretrace.replay.build import Build
from foretrace.replay.criticalpath import PathPart, critical_path, path_split
from foretrace.replay.engine import counts_from_start, replay
from foretrace.replay.graph import I64, EdgeKind, JobGraph, TaskKind, Timeline
from foretrace.replay.kernels import latest_predecessor
from foretrace.replay.timeline import measured, step_windows

DEVICE_STARTS = (TaskKind.KERNEL, TaskKind.MEMCPY, TaskKind.MEMSET, TaskKind.ARRIVE)
FROZEN = (EdgeKind.RENDEZVOUS, EdgeKind.PEER, EdgeKind.SYNC, EdgeKind.QUEUE)
HOST_WAITS = (EdgeKind.SYNC, EdgeKind.QUEUE)


@dataclass(frozen=True, slots=True)
class StepAccuracy:
    """One step, measured against replayed.

    Attributes:
        step: step number.
        measured_ns: measured length.
        replayed_ns: replayed length.
        null_ns: length under the null replay.
        unexplained_ns: time on the measured critical path in which a task could have started and
            did not, for no modelled reason.
        unexplained_early_ns: time that tasks of the replayed critical path were recorded to start
            earlier than the model allows.
        path_ns: the critical path by what it is spent on (``criticalpath.PATH_CLASSES``).
    """

    step: int
    measured_ns: int
    replayed_ns: int
    null_ns: int
    unexplained_ns: int
    unexplained_early_ns: int
    path_ns: dict[str, int]

    @property
    def error(self) -> float:
        """(replayed - measured) / measured."""
        return (self.replayed_ns - self.measured_ns) / max(self.measured_ns, 1)

    @property
    def null_error(self) -> float:
        """The same for the null replay."""
        return (self.null_ns - self.measured_ns) / max(self.measured_ns, 1)

    @property
    def unexplained(self) -> float:
        """Late starts on the critical path, as a share of the step."""
        return self.unexplained_ns / max(self.measured_ns, 1)

    @property
    def unexplained_early(self) -> float:
        """Early starts on the critical path, as a share of the step."""
        return self.unexplained_early_ns / max(self.measured_ns, 1)

    @property
    def copied_host(self) -> float:
        """Share of the critical path that is host time copied from the trace."""
        whole = sum(self.path_ns.values())
        return (self.path_ns["host"] + self.path_ns["stall"]) / max(whole, 1)


@dataclass(frozen=True, slots=True)
class RankAccuracy:
    """One rank, measured against replayed, over the whole recording.

    Attributes:
        rank: rank.
        start_error_ns: median absolute error of its device tasks' starts.
        start_error_p95_ns: the 95th percentile.
        late_ns: sum of unexplained lateness over its device tasks.
        early_ns: sum of unexplained earliness over its device tasks.
        waiting_ns: measured waiting inside its collectives.
        replayed_waiting_ns: the same in the replay.
        stall_ns: host time beyond the typical gaps.
    """

    rank: int
    start_error_ns: int
    start_error_p95_ns: int
    late_ns: int
    early_ns: int
    waiting_ns: int
    replayed_waiting_ns: int
    stall_ns: int


@dataclass(frozen=True, slots=True)
class Assessment:
    """Everything that tells how good a replay is.

    Attributes:
        build: the job graph and what was learnt while it was built.
        timeline: the replay.
        steps: one entry per step.
        ranks: one entry per rank.
        start_error_ns: median absolute error of all device tasks' starts.
        span_ns: measured time from the first step's begin to the last one's end. Less than the
            steps' sum where ranks run ahead of each other, so that steps overlap.
    """

    build: Build
    timeline: Timeline
    steps: tuple[StepAccuracy, ...]
    ranks: tuple[RankAccuracy, ...]
    start_error_ns: int
    span_ns: int


def assess(build: Build) -> Assessment:
    """Replay a job as it was recorded and hold the result against the recording."""
    graph = build.graph
    timeline, real = replay(graph), measured(graph)
    null = replay(null_graph(graph), label="null")
    slack = unexplained(graph)
    error = start_errors(timeline, real)
    device = np.isin(graph.kind, DEVICE_STARTS)
    ranks = np.unique(graph.rank[graph.rank >= 0])
    return Assessment(
        build=build,
        timeline=timeline,
        steps=_steps(timeline, real, null, slack),
        ranks=tuple(_rank(int(r), timeline, real, slack, error) for r in ranks),
        start_error_ns=_percentile(np.abs(error[device]), 50),
        span_ns=_span(real),
    )


def _span(real: Timeline) -> int:
    windows = step_windows(real)
    return int(windows.end_ns.max() - windows.start_ns.min()) if len(windows.step) else 0


def unexplained(graph: JobGraph) -> I64:
    """Measured start minus the earliest start its measured predecessors allow, shape ``(n,)``.

    Positive: the task started late for no modelled reason. Negative: earlier than the model
    allows. Tasks that nothing precedes get 0.
    """
    allowed, _ = latest_predecessor(
        graph.measured_start_ns,
        graph.measured_end_ns,
        graph.pred_ptr,
        graph.pred,
        counts_from_start(graph),
        graph.edge_delay_ns,
    )
    return graph.measured_start_ns - allowed


def start_errors(timeline: Timeline, real: Timeline) -> I64:
    """Replayed minus measured start of each task, both counted from the first step's begin."""
    begin = timeline.graph.steps.begin
    shift = real.start_ns[begin].min() - timeline.start_ns[begin].min()
    errors: I64 = timeline.start_ns + shift - real.start_ns
    return errors


def null_graph(graph: JobGraph) -> JobGraph:
    """The graph that knows nothing of waiting: no rendezvous, every wait left in its duration."""
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    own = (graph.kind[target] == TaskKind.COMM) & (graph.kind[graph.pred] == TaskKind.ARRIVE)
    drop = np.isin(graph.edge_kind, FROZEN) & ~own
    dur = graph.dur_ns.copy()
    comm = target[own]
    dur[comm] = graph.measured_end_ns[comm] - graph.measured_start_ns[graph.pred[own]]
    waits = np.zeros(len(graph), bool)
    waits[target[np.isin(graph.edge_kind, HOST_WAITS)]] = True
    waits |= graph.kind == TaskKind.SYNC
    chain = waits[target] & (graph.edge_kind == EdgeKind.HOST_ORDER)
    held = target[chain]
    dur[held] = graph.measured_end_ns[held] - graph.measured_end_ns[graph.pred[chain]]
    keep = ~drop
    ptr = np.zeros(len(graph) + 1, np.int64)
    np.cumsum(np.bincount(target[keep], minlength=len(graph)), out=ptr[1:])
    return replace(
        graph,
        dur_ns=np.maximum(dur, 0),
        pred_ptr=ptr,
        pred=graph.pred[keep],
        edge_kind=graph.edge_kind[keep],
        edge_delay_ns=graph.edge_delay_ns[keep],
    )


def collective_waiting(timeline: Timeline) -> tuple[I64, I64]:
    """Waiting of each member of a matched collective.

    Returns:
        ``(COMM task, waiting ns)``, both of shape ``(members,)``.
    """
    graph = timeline.graph
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    own = (graph.kind[target] == TaskKind.COMM) & (graph.kind[graph.pred] == TaskKind.ARRIVE)
    own &= graph.collective[target] >= 0
    comm = target[own]
    return comm, timeline.start_ns[comm] - timeline.start_ns[graph.pred[own]]


def sync_waiting(timeline: Timeline) -> tuple[I64, I64]:
    """Waiting of the host in each blocking call or launch, beyond its own cost.

    Returns:
        ``(SYNC or CALL task, waiting ns)``, both of shape ``(calls,)``.
    """
    graph = timeline.graph
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    waits = graph.kind == TaskKind.SYNC
    held = np.isin(graph.edge_kind, HOST_WAITS) & (graph.kind[target] == TaskKind.CALL)
    waits[target[held]] = True
    chain = waits[target] & (graph.edge_kind == EdgeKind.HOST_ORDER)
    sync = target[chain]
    waited = timeline.start_ns[sync] - timeline.end_ns[graph.pred[chain]]
    return sync, np.maximum(waited, 0)


def _steps(
    timeline: Timeline, real: Timeline, null: Timeline, slack: I64
) -> tuple[StepAccuracy, ...]:
    windows, truth, frozen = step_windows(timeline), step_windows(real), step_windows(null)
    result = []
    for i, step in enumerate(windows.step):
        path = critical_path(timeline, int(step))
        tasks = np.unique(path.task[(path.part == PathPart.OWN) & (path.task >= 0)])
        early = slack[tasks]
        # A task that was late for no modelled reason leaves the replayed path: look for it on
        # the measured one. Then measured - replayed <= unexplained always holds.
        recorded = critical_path(real, int(step))
        result.append(
            StepAccuracy(
                step=int(step),
                measured_ns=int(truth.dur_ns[i]),
                replayed_ns=int(windows.dur_ns[i]),
                null_ns=int(frozen.dur_ns[i]),
                unexplained_ns=int(recorded.segment_ns[recorded.part == PathPart.LATE].sum()),
                unexplained_early_ns=int(-early[early < 0].sum()),
                path_ns=path_split(timeline.graph, path),
            )
        )
    return tuple(result)


def _rank(rank: int, timeline: Timeline, real: Timeline, slack: I64, error: I64) -> RankAccuracy:
    graph = timeline.graph
    mine = graph.rank == rank
    device = mine & np.isin(graph.kind, DEVICE_STARTS)
    comm, waited = collective_waiting(real)
    _, replayed = collective_waiting(timeline)
    own = graph.rank[comm] == rank
    late = slack[device]
    return RankAccuracy(
        rank=rank,
        start_error_ns=_percentile(np.abs(error[device]), 50),
        start_error_p95_ns=_percentile(np.abs(error[device]), 95),
        late_ns=int(late[late > 0].sum()),
        early_ns=int(-late[late < 0].sum()),
        waiting_ns=int(waited[own].sum()),
        replayed_waiting_ns=int(replayed[own].sum()),
        stall_ns=int(graph.dur_ns[mine & (graph.kind == TaskKind.STALL)].sum()),
    )


def _percentile(values: I64, percent: float) -> int:
    return int(np.percentile(values, percent)) if len(values) else 0
