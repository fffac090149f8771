"""Recordings of passes alone: each pipeline rank's forwards and backwards, and nothing inside them.

Such a recording names no layers and no operations. It tells how long each pipeline rank takes for
a micro-batch, what a transfer takes, and the schedule; that is enough to lay out the same stages in
another order, or cut in pieces as an interleaved schedule does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import F64, I64
from foretrace.replay.schedule.named import named_schedule
from foretrace.replay.schedule.order import Phase, Schedule
from foretrace.replay.schedule.timing import Spans, run
from foretrace.traces.errors import LayoutError
from foretrace.traces.store import TraceSet

_NAMES = ("1f1b", "gpipe")
_PASSES = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class PipelineRecording:
    """What the passes of a pipeline take; medians over micro-batches and steps.

    Attributes:
        forward_ns: forward pass of each pipeline rank, waiting excluded, shape ``(ranks,)``.
        backward_ns: the same of backward passes.
        open_ns: what the first forward pass of a step takes longer, shape ``(ranks,)``.
        close_ns: what the last backward pass takes longer, shape ``(ranks,)``.
        gap_ns: pause before a pass that waits for its own rank only, shape ``(ranks,)``.
        transfer_ns: from a pass's end to the begin of the neighbour's pass that waits for it.
        micro_batches: micro-batches of a step.
        schedule: name of the schedule that fits the recorded order.
        fits: share of the passes that stand where the schedule has them.
        steps: steps that were used; the first one warms up.
        total_ns: from the begin of the step to the last pass's end on each rank, shape
            ``(ranks,)``.
    """

    forward_ns: F64
    backward_ns: F64
    open_ns: F64
    close_ns: F64
    gap_ns: F64
    transfer_ns: float
    micro_batches: int
    schedule: str
    fits: float
    steps: int
    total_ns: F64

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.forward_ns)


def is_pipeline_recording(trace: TraceSet) -> bool:
    """Whether a trace set holds the passes of a pipeline and nothing that ran in them."""
    infos = [trace.info(rank) for rank in trace.ranks]
    device = sum(n for i in infos for kind, n in i.counts.items() if kind in ("kernel", "runtime"))
    pipeline = infos[0].layout.get("pp", 0) == len(infos) > 1
    return not device and pipeline and _pass_rows(trace, trace.ranks[0]) is not None


def read_pipeline(trace: TraceSet) -> PipelineRecording:
    """Read the passes of a recording with one stage on each rank.

    Raises:
        LayoutError: ranks have different numbers of passes, or an order of no known schedule.
    """
    found = [_pass_rows(trace, rank) for rank in trace.ranks]
    start, end = (np.stack([row[n] for row in _whole(found)], axis=1) for n in (0, 1))
    start, end = start[-max(len(start) - 1, 1) :], end[-max(len(end) - 1, 1) :]
    forward, backward = (start[..., 0], end[..., 0]), (start[..., 1], end[..., 1])
    schedule, fits = _schedule(start)
    before, sent = _ready(schedule, end)
    begin = np.stack([forward[0], backward[0]], axis=-1)
    ready = np.maximum(before, sent)
    # What lies before the message has come is waiting, wherever the recording puts it.
    taken = end - np.maximum(begin, np.where(np.isfinite(sent), sent, begin))
    pause = np.maximum(begin - ready, 0.0)
    own = (before >= sent) & np.isfinite(before)
    other = (sent > before) & np.isfinite(sent)
    ranks = start.shape[1]
    middle = np.median(taken, axis=(0, 2))
    return PipelineRecording(
        forward_ns=middle[:, 0],
        backward_ns=middle[:, 1],
        open_ns=np.median(taken[:, :, 0, 0], axis=0) - middle[:, 0],
        close_ns=np.median(taken[:, :, -1, 1], axis=0) - middle[:, 1],
        gap_ns=np.array([_median(pause[:, r][own[:, r]]) for r in range(ranks)]),
        transfer_ns=_median(pause[other]),
        micro_batches=start.shape[2],
        schedule=schedule.name,
        fits=fits,
        steps=len(start),
        total_ns=np.median(end.max(axis=(2, 3)) - start.min(axis=(1, 2, 3))[:, None], axis=0),
    )


def replay_pipeline(
    found: PipelineRecording, schedule: str = "", virtual: int = 1, micro_batches: int = 0
) -> tuple[Schedule, Spans]:
    """Run the recorded passes in the order of a schedule.

    With several stages a rank, each takes its part of what the rank's layers take. What the first
    and the last rank take longer than the others is of embedding and head, and stays whole.

    Args:
        found: the recording.
        schedule: name of a schedule whose backward passes are not split; as recorded if empty.
        virtual: stages of a rank.
        micro_batches: as recorded if 0.

    Raises:
        LayoutError: the schedule does not fit.
    """
    name = schedule or found.schedule
    order = named_schedule(name, found.ranks, micro_batches or found.micro_batches, virtual)
    if np.isin(order.phase, (Phase.INPUT, Phase.WEIGHT)).any():
        raise LayoutError(
            f"schedule {name!r} splits backward passes; the recording times them as a whole"
        )
    own = np.zeros(len(order))
    for phase, ns in ((Phase.FORWARD, found.forward_ns), (Phase.BACKWARD, found.backward_ns)):
        mine = order.phase == phase
        layers, ends = _parts(ns)
        stage_ns = layers[order.rank] / (order.stages // found.ranks)
        stage_ns += np.where(order.stage == 0, ends[0], 0.0)
        stage_ns += np.where(order.stage == order.stages - 1, ends[1], 0.0)
        own[mine] = stage_ns[mine]
    for rank in range(order.ranks):
        rows = np.flatnonzero(order.rank == rank)
        own[rows[order.phase[rows] == Phase.FORWARD][0]] += found.open_ns[rank]
        own[rows[order.phase[rows] != Phase.FORWARD][-1]] += found.close_ns[rank]
    pause = found.gap_ns[order.rank]
    dur = np.rint(own + pause).astype(np.int64)
    return order, run(order, dur, round(max(found.transfer_ns - float(np.median(pause)), 0.0)))


def rank_totals(order: Schedule, spans: Spans) -> I64:
    """Last end on each rank, ns from the begin of the step, shape ``(ranks,)``."""
    last = np.zeros(order.ranks, np.int64)
    np.maximum.at(last, order.rank, spans.end_ns)
    return last


def _parts(ns: F64) -> tuple[F64, tuple[float, float]]:
    """Time of each rank's layers, and that of (embedding, head)."""
    if len(ns) < 3:
        return ns, (0.0, 0.0)
    inner = float(np.median(ns[1:-1]))
    ends = max(float(ns[0]) - inner, 0.0), max(float(ns[-1]) - inner, 0.0)
    layers = ns.copy()
    layers[0] -= ends[0]
    layers[-1] -= ends[1]
    return layers, ends


def _pass_rows(trace: TraceSet, rank: int) -> tuple[F64, F64] | None:
    """Starts and ends of a rank's passes, each of shape ``(steps, micro-batches, 2)``.

    None if there are none, or a step lacks some.
    """
    table = trace.events(rank, columns=["name", "start_ns", "dur_ns", "step"])
    names = np.array(table["name"].to_pylist(), object)
    step = table["step"].to_numpy()
    begin = table["start_ns"].to_numpy().astype(np.float64)
    last = begin + table["dur_ns"].to_numpy()
    columns = []
    for name in _PASSES:
        mine = np.flatnonzero((names == name) & (step >= 0))
        mine = mine[np.lexsort((begin[mine], step[mine]))]
        numbers, count = np.unique(step[mine], return_counts=True)
        if not len(mine) or len(np.unique(count)) != 1:
            return None
        shape = (len(numbers), int(count[0]))
        columns.append((begin[mine].reshape(shape), last[mine].reshape(shape)))
    if columns[0][0].shape != columns[1][0].shape:
        return None
    return (
        np.stack([columns[0][0], columns[1][0]], axis=-1),
        np.stack([columns[0][1], columns[1][1]], axis=-1),
    )


def _whole(found: list[tuple[F64, F64] | None]) -> list[tuple[F64, F64]]:
    whole = [row for row in found if row is not None]
    if len(whole) != len(found) or len({row[0].shape for row in whole}) != 1:
        raise LayoutError(
            "ranks differ in their steps or passes; a pipeline recording needs as many forward as "
            "backward passes on every rank and in every step"
        )
    return whole


def _schedule(start: F64) -> tuple[Schedule, float]:
    """The schedule whose phases come in the recorded order; ``start`` as in ``_ready``."""
    _, ranks, batches, _ = start.shape
    flat = start.transpose(1, 0, 2, 3).reshape(ranks, len(start), -1)
    phase = np.argsort(flat, axis=2, kind="stable") % 2 == 1
    found = []
    for name in _NAMES:
        order = named_schedule(name, ranks, batches)
        mine = (order.phase != Phase.FORWARD).reshape(ranks, 1, -1)
        found.append((float((phase == mine).mean()), order))
    share, best = max(found, key=lambda one: one[0])
    return best, share


def _ready(schedule: Schedule, end: F64) -> tuple[F64, F64]:
    """When the pass before on the rank, and the neighbour's pass, had ended.

    Args:
        schedule: order of the passes.
        end: ends, shape ``(steps, ranks, micro-batches, phases)``.

    Returns:
        Both of the shape of ``end``; minus infinity where there is none.
    """
    before, sent = np.full(end.shape, -np.inf), np.full(end.shape, -np.inf)
    sent[:, 1:, :, 0] = end[:, :-1, :, 0]
    sent[:, :-1, :, 1] = end[:, 1:, :, 1]
    for rank in range(schedule.ranks):
        rows = np.flatnonzero(schedule.rank == rank)
        phase = (schedule.phase[rows] != Phase.FORWARD).astype(np.int64)
        batch = schedule.micro_batch[rows]
        before[:, rank, batch[1:], phase[1:]] = end[:, rank, batch[:-1], phase[:-1]]
    return before, sent


def _median(values: F64) -> float:
    return float(np.median(values)) if values.size else 0.0
