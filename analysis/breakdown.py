"""Where each rank's time goes in each step, to the nanosecond.

Every table works on measured, replayed and what-if timelines alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foretrace.analysis.activity import IDLE, Activity, Pieces, pieces
from foretrace.analysis.communication import labels
from foretrace.analysis.intervals import total_by
from foretrace.replay.graph import I32, Timeline
from foretrace.replay.timeline import step_windows
from foretrace.traces.schema import COLLECTIVE_KINDS

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    Activity.COMPUTE: "compute_ns",
    Activity.COMMUNICATION: "exposed_communication_ns",
    Activity.COPY: "copy_ns",
    Activity.IDLE_RANK: "idle_rank_ns",
    Activity.IDLE_HOST: "idle_host_ns",
    Activity.IDLE_STALL: "idle_stall_ns",
    Activity.IDLE_DEPENDENCY: "idle_dependency_ns",
    Activity.IDLE_UNEXPLAINED: "idle_unexplained_ns",
    Activity.IDLE_NO_WORK: "idle_no_work_ns",
}
"""Column of each activity in :func:`breakdown`."""


@dataclass(frozen=True, slots=True)
class StepPieces:
    """The pieces of every step's window; a piece counts in each window it lies in.

    Attributes:
        timeline: where they come from.
        pieces: clipped to the windows, step after step.
        step: step of each piece, shape ``(k,)``.
        windows: ``(step, start_ns, end_ns)`` of each step.
        ranks: all ranks.
    """

    timeline: Timeline
    pieces: Pieces
    step: I32
    windows: tuple[tuple[int, int, int], ...]
    ranks: I32


def step_pieces(timeline: Timeline) -> StepPieces:
    """Cut all ranks' time into pieces once, for every table below to share."""
    whole = pieces(timeline)
    found = step_windows(timeline)
    windows = tuple(
        zip(found.step.tolist(), found.start_ns.tolist(), found.end_ns.tolist(), strict=True)
    )
    parts = [whole.clip(start, end) for _, start, end in windows]
    step = [np.full(len(p.rank), w[0], np.int32) for w, p in zip(windows, parts, strict=True)]
    return StepPieces(
        timeline,
        Pieces.concatenate(parts) if parts else whole.take(np.zeros(len(whole.rank), bool)),
        np.concatenate(step) if step else np.empty(0, np.int32),
        windows,
        np.unique(whole.rank),
    )


def breakdown(source: Timeline | StepPieces) -> pd.DataFrame:
    """What each rank's devices do in each step.

    Args:
        source: a timeline, or its pieces where several tables are made of one.

    Returns:
        One row per step and rank: ``rank, step, total_ns, compute_ns,
        exposed_communication_ns, hidden_communication_ns, copy_ns, idle_ns`` and the causes
        of idle time, ``idle_rank_ns`` (waiting for another rank), ``idle_host_ns``,
        ``idle_stall_ns``, ``idle_dependency_ns``, ``idle_unexplained_ns``,
        ``idle_no_work_ns``. Compute, exposed communication, copies and idle add up to
        ``total_ns`` exactly, the causes to ``idle_ns``; hidden communication runs behind
        compute and is no part of the sum.
    """
    import pandas as pd

    cut = _cut(source)
    rows = len(cut.windows) * len(cut.ranks)
    cell = _step_row(cut) * len(cut.ranks) + np.searchsorted(cut.ranks, cut.pieces.rank)
    dur = cut.pieces.dur_ns
    sums = total_by(cell * len(COLUMNS) + cut.pieces.activity, dur, rows * len(COLUMNS))
    hidden = total_by(cell, np.where(cut.pieces.hidden >= 0, dur, 0), rows)
    by_activity = sums.reshape(rows, len(COLUMNS))
    table = {
        "rank": np.tile(cut.ranks, len(cut.windows)),
        "step": np.repeat([w[0] for w in cut.windows], len(cut.ranks)),
        "total_ns": by_activity.sum(axis=1),
        "compute_ns": by_activity[:, Activity.COMPUTE],
        "exposed_communication_ns": by_activity[:, Activity.COMMUNICATION],
        "hidden_communication_ns": hidden,
        "copy_ns": by_activity[:, Activity.COPY],
        "idle_ns": by_activity[:, list(IDLE)].sum(axis=1),
    }
    return pd.DataFrame(table | {COLUMNS[a]: by_activity[:, a] for a in IDLE})


def communication_breakdown(source: Timeline | StepPieces) -> pd.DataFrame:
    """Communication of each rank and step by collective kind and group.

    Returns:
        ``rank, step, kind, group, exposed_ns, hidden_ns``; ``group`` is an index into the
        graph's groups. Where several collectives run at once the one that began first has
        the time, so the sums equal those of :func:`breakdown`.
    """
    import pandas as pd

    cut = _cut(source)
    exposed = np.where(cut.pieces.activity == Activity.COMMUNICATION, cut.pieces.task, -1)
    task = np.where(exposed >= 0, exposed, cut.pieces.hidden)
    rows = np.flatnonzero(task >= 0)
    label = labels(cut.timeline.graph)
    dur = cut.pieces.dur_ns[rows]
    bare = exposed[rows] >= 0
    table = pd.DataFrame(
        {
            "rank": cut.pieces.rank[rows],
            "step": cut.step[rows],
            "kind": label.kind[task[rows]],
            "group": label.group[task[rows]],
            "exposed_ns": np.where(bare, dur, 0),
            "hidden_ns": np.where(bare, 0, dur),
        }
    )
    return _summed(table, ["rank", "step", "kind", "group"])


def waits(source: Timeline | StepPieces) -> pd.DataFrame:
    """Idle time owed to other ranks: who waits for whom, and in which collective.

    Returns:
        ``rank, step, waits_for, kind, group, idle_ns``; ``waits_for`` is the rank that
        arrived last; ``kind`` is empty where the wait is in no collective. ``idle_ns`` sums
        to ``idle_rank_ns`` of :func:`breakdown`.
    """
    import pandas as pd

    cut = _cut(source)
    rows = np.flatnonzero(cut.pieces.activity == Activity.IDLE_RANK)
    label = labels(cut.timeline.graph)
    task = cut.pieces.task[rows]
    table = pd.DataFrame(
        {
            "rank": cut.pieces.rank[rows],
            "step": cut.step[rows],
            "waits_for": cut.pieces.culprit[rows],
            "kind": label.kind[task],
            "group": label.group[task],
            "idle_ns": cut.pieces.dur_ns[rows],
        }
    )
    return _summed(table, ["rank", "step", "waits_for", "kind", "group"])


def _cut(source: Timeline | StepPieces) -> StepPieces:
    return source if isinstance(source, StepPieces) else step_pieces(source)


def _step_row(cut: StepPieces) -> np.ndarray:
    steps = np.array([w[0] for w in cut.windows], np.int64)
    return np.searchsorted(steps, cut.step)


def _summed(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Sums per key, the kinds' codes replaced by their names."""
    table = table.groupby(keys, as_index=False).sum()
    names = np.array([*COLLECTIVE_KINDS, ""])
    table["kind"] = names[table["kind"].to_numpy(np.int64)]
    return table
