"""What slow workers cost a job: its slowdown against its ideal, and who is to blame.

In the ideal job every operation lasts as long as the typical one of its type: the mean over all
workers, micro-batches and steps for work, the median for data movement (without its waiting).
A part of the job - a worker, a data-parallel rank, a stage, an operation type - is charged with
the slowdown of a job that is ideal except for that part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from foretrace.replay.graph import F64, I64
from foretrace.replay.optable.gaps import HeldOut, replay_held_out
from foretrace.replay.optable.graph import OpGraph, build_graph
from foretrace.replay.wavefront import ends_of_many
from foretrace.traces.errors import GraphError
from foretrace.traces.optable.table import OpTable

BLOCK_BYTES = 96 << 20
"""Scenarios are evaluated in blocks whose ends take about this much memory."""


Part = TypeVar("Part", tuple[int, int], int, str)


@dataclass(frozen=True, slots=True)
class Charge(Generic[Part]):
    """What one part of the job is charged with.

    Attributes:
        part: ``(dp, stage)`` of a worker, the number of a dp rank or stage, an operation type.
        slowdown: length of a job that is ideal but for this part, against the ideal job.
        saved_ns: how much shorter a step gets when only this part becomes ideal, ns.
    """

    part: Part
    slowdown: float
    saved_ns: int


@dataclass(frozen=True, slots=True)
class Blame:
    """The slowdown of a job and its attribution; lists are sorted, worst first.

    Attributes:
        step: step numbers, shape ``(steps,)``.
        measured_ns: last end minus first start of each step.
        actual_ns: length of each step without launch gaps.
        ideal_ns: length of each step of the ideal job.
        held_out: steps replayed with the gaps of other steps, None where that is impossible.
        workers: charges of (dp rank, stage).
        dp_ranks: charges of data-parallel ranks.
        stages: charges of pipeline stages.
        operations: charges of operation types.
        problems: what is odd about the table, one line each.
    """

    step: I64
    measured_ns: I64
    actual_ns: I64
    ideal_ns: I64
    held_out: HeldOut | None
    workers: tuple[Charge[tuple[int, int]], ...]
    dp_ranks: tuple[Charge[int], ...]
    stages: tuple[Charge[int], ...]
    operations: tuple[Charge[str], ...]
    problems: tuple[str, ...]

    @property
    def slowdown(self) -> float:
        """Length of the job without launch gaps against its ideal."""
        return float(_ratio(self.actual_ns, self.ideal_ns))


@dataclass(frozen=True, slots=True)
class Parts:
    """Into which parts the rows of a table fall, numbered through in the order of the fields.

    Attributes:
        of_row: part of each row as worker, dp rank, stage and operation, shape ``(4, rows)``.
        workers: (dp rank, stage) of each worker.
        dp_ranks: data-parallel ranks.
        stages: pipeline stages.
        operations: operation types.
    """

    of_row: I64
    workers: list[tuple[int, int]]
    dp_ranks: list[int]
    stages: list[int]
    operations: list[str]

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """How many workers, dp ranks, stages and operations there are."""
        return len(self.workers), len(self.dp_ranks), len(self.stages), len(self.operations)


def find_stragglers(table: OpTable) -> Blame:
    """Attribute the slowdown of a job.

    Args:
        table: the job's operations.

    Raises:
        GraphError: the table's order contradicts itself.
    """
    job = build_graph(table)
    exec_ns = job.exec_ns
    ideal_ns = ideal_durations(table, exec_ns)
    parts = split_job(table)
    lengths = _scenario_lengths(job, exec_ns, ideal_ns, parts)
    actual, ideal = lengths[:, 0], lengths[:, 1]
    alone, without = np.split(lengths[:, 2:], 2, axis=1)
    slowdown = np.split(_ratio(alone, ideal), np.cumsum(parts.sizes)[:-1])
    saved = np.split((actual[:, None] - without).mean(axis=0), np.cumsum(parts.sizes)[:-1])
    first = np.flatnonzero(np.append(True, np.diff(table.step) != 0))
    measured = np.maximum.reduceat(table.end_ns, first) - np.minimum.reduceat(table.start_ns, first)
    held_out, problem = _held_out(job)
    return Blame(
        step=table.step[first],
        measured_ns=measured,
        actual_ns=actual,
        ideal_ns=ideal,
        held_out=held_out,
        workers=_charges(parts.workers, slowdown[0], saved[0]),
        dp_ranks=_charges(parts.dp_ranks, slowdown[1], saved[1]),
        stages=_charges(parts.stages, slowdown[2], saved[2]),
        operations=_charges(parts.operations, slowdown[3], saved[3]),
        problems=(*table.problems, *job.matches.problems, *problem),
    )


def _charges(parts: Sequence[Part], slowdown: F64, saved_ns: F64) -> tuple[Charge[Part], ...]:
    """One charge for each part, worst first."""
    order = np.lexsort((-saved_ns, -slowdown))
    return tuple(Charge(parts[i], float(slowdown[i]), round(float(saved_ns[i]))) for i in order)


def _held_out(job: OpGraph) -> tuple[HeldOut | None, list[str]]:
    """The held-out steps, or why there are none."""
    try:
        held_out = replay_held_out(job.table, job.matches)
    except GraphError as error:
        return None, [f"no step error: {error}"]
    return held_out, [] if held_out else ["no step error: it takes two steps or more"]


def ideal_durations(table: OpTable, exec_ns: I64) -> I64:
    """Duration of each row in the ideal job, ns, shape ``(rows,)``.

    Args:
        table: the table.
        exec_ns: duration of each row without waiting.
    """
    names = sorted({o.reported for o in table.operations})
    kind = np.array([names.index(o.reported) for o in table.operations])[table.op]
    moves = {o.reported: o.moves for o in table.operations}
    typical = np.zeros(len(names))
    for i, name in enumerate(names):
        of_kind = exec_ns[kind == i]
        typical[i] = np.median(of_kind) if moves[name] else of_kind.mean()
    ideal: I64 = np.rint(typical).astype(np.int64)[kind]
    return ideal


def split_job(table: OpTable) -> Parts:
    """Split a job's rows by worker, data-parallel rank, stage and operation type."""
    reported = sorted({o.reported for o in table.operations})
    kind = np.array([reported.index(o.reported) for o in table.operations])[table.op]
    width = table.layout.pp
    worker, of_worker = np.unique(table.dp * np.int64(width) + table.stage, return_inverse=True)
    dp, of_dp = np.unique(table.dp, return_inverse=True)
    stage, of_stage = np.unique(table.stage, return_inverse=True)
    sizes = [len(worker), len(dp), len(stage)]
    offset = np.cumsum([0, *sizes])[:, None]
    return Parts(
        of_row=np.stack([of_worker, of_dp, of_stage, kind]) + offset,
        workers=[divmod(number, width) for number in worker.tolist()],
        dp_ranks=dp.tolist(),
        stages=stage.tolist(),
        operations=reported,
    )


def _scenario_lengths(job: OpGraph, exec_ns: I64, ideal_ns: I64, parts: Parts) -> I64:
    """Length of each step in each scenario, ns, shape ``(steps, 2 + 2 * parts)``.

    Scenarios: as it was; ideal; ideal but for one part; as it was but for one ideal part.
    """
    classes, of_row = _classes(parts.of_row)
    inside = np.zeros((classes.shape[1], len(parts)), bool)
    np.put_along_axis(inside, classes.T, True, axis=1)
    everything = np.ones((len(inside), 1), bool)
    real = np.concatenate([everything, ~everything, inside, ~inside], axis=1)

    tasks = len(job.graph)
    of_task = np.zeros(tasks, np.int64)
    ideal, excess = np.zeros(tasks, np.int64), np.zeros(tasks, np.int64)
    of_task[job.exec_task] = of_row
    ideal[job.exec_task], excess[job.exec_task] = ideal_ns, exec_ns - ideal_ns
    block = max(BLOCK_BYTES // (8 * tasks), 1)
    blocks = [real[:, i : i + block] for i in range(0, real.shape[1], block)]

    def lengths(chosen: np.ndarray) -> I64:
        def durations(a: int, b: int) -> np.ndarray:
            extra = chosen[of_task[a:b]] * excess[a:b, None]
            extra += ideal[a:b, None]
            return extra

        end = ends_of_many(job.graph, job.level_ptr, durations, chosen.shape[1])
        return _step_lengths(job, end)

    return np.concatenate([lengths(chosen) for chosen in blocks], axis=1)


def _classes(part: I64) -> tuple[I64, I64]:
    """Distinct columns of ``part``, shape ``(4, classes)``, and the class of each row."""
    worker, kind = part[0], part[3]
    _, first, of_row = np.unique(
        worker * (int(kind.max()) + 1) + kind, return_index=True, return_inverse=True
    )
    return part[:, first], of_row


def _step_lengths(job: OpGraph, end_ns: I64) -> I64:
    """End of each step, ns, shape ``(steps, scenarios)``; steps begin at 0."""
    marks = job.graph.steps
    order = np.argsort(marks.step, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(marks.step[order]) != 0))
    lengths: I64 = np.maximum.reduceat(end_ns[marks.end[order]], first, axis=0)
    return lengths


def _ratio(length_ns: I64, ideal_ns: I64) -> F64:
    """Mean length over the steps (first axis) against the mean ideal length; 1 for no length."""
    whole = float(ideal_ns.mean())
    ratio: F64 = length_ns.mean(axis=0) / whole if whole else np.ones(length_ns.shape[1:])
    return ratio
