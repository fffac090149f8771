"""What slow workers cost a job: its slowdown against its ideal, and who is to blame.

In the ideal job every operation lasts as long as the typical one of its type: the mean over all
workers, micro-batches and steps for work, the median for data movement (without its waiting).
A part of the job - a worker, a data-parallel rank, a stage, an operation type - is charged with
the slowdown of a job that is ideal except for that part.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from foretrace.replay.graph import F64, I64
from foretrace.replay.optable.gaps import HeldOut, replay_held_out
from foretrace.replay.optable.graph import OpGraph, build_graph
from foretrace.replay.optable.table import OpTable
from foretrace.replay.wavefront import ends_of_many
from foretrace.traces.errors import GraphError

BLOCK_BYTES = 96 << 20
"""Scenarios are evaluated in blocks whose ends take about this much memory."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What one part of the job is charged with.

    Attributes:
        part: the part: ``(dp, stage)`` of a worker, dp rank, stage, or operation type.
        slowdown: length of a job that is ideal but for this part, against the ideal job.
        saved_ns: how much shorter a step gets when only this part becomes ideal, ns.
    """

    part: tuple[int, int] | int | str
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
    workers: tuple[Charge, ...]
    dp_ranks: tuple[Charge, ...]
    stages: tuple[Charge, ...]
    operations: tuple[Charge, ...]
    problems: tuple[str, ...]

    @property
    def slowdown(self) -> float:
        """Length of the job without launch gaps against its ideal."""
        return _ratio(self.actual_ns, self.ideal_ns)


@dataclass(frozen=True, slots=True)
class Parts:
    """Into which parts the rows of a table fall.

    Attributes:
        part: part of each row in each way of splitting, numbered through, shape ``(4, rows)``.
        names: what each part is.
        split: first part of each way of splitting, shape ``(5,)``.
    """

    part: I64
    names: tuple[tuple[int, int] | int | str, ...]
    split: tuple[int, ...]


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
    count = len(parts.names)
    actual, ideal = lengths[:, 0], lengths[:, 1]
    alone, without = lengths[:, 2 : 2 + count], lengths[:, 2 + count :]
    charges = [
        Charge(name, _ratio(alone[:, i], ideal), round(float((actual - without[:, i]).mean())))
        for i, name in enumerate(parts.names)
    ]
    workers, dp_ranks, stages, operations = (
        tuple(sorted(charges[a:b], key=lambda c: -c.slowdown))
        for a, b in pairwise(parts.split)
    )
    first = np.flatnonzero(np.append(True, np.diff(table.step) != 0))
    measured = np.maximum.reduceat(table.end_ns, first) - np.minimum.reduceat(table.start_ns, first)
    held_out, problem = _held_out(table)
    problems = (*table.problems, *job.matches.problems, *problem)
    return Blame(
        table.step[first],
        measured,
        actual,
        ideal,
        held_out,
        workers,
        dp_ranks,
        stages,
        operations,
        problems,
    )


def _held_out(table: OpTable) -> tuple[HeldOut | None, list[str]]:
    """The held-out steps, or why there are none."""
    try:
        held_out = replay_held_out(table)
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
    parts, names, split = [], [], [0]
    for key in (table.dp.astype(np.int64) * width + table.stage, table.dp, table.stage, kind):
        found, part = np.unique(key, return_inverse=True)
        parts.append(part + split[-1])
        split.append(split[-1] + len(found))
        names.append(found.tolist())
    workers = [divmod(worker, width) for worker in names[0]]
    operations = [reported[i] for i in names[3]]
    return Parts(np.stack(parts), (*workers, *names[1], *names[2], *operations), tuple(split))


def _scenario_lengths(job: OpGraph, exec_ns: I64, ideal_ns: I64, parts: Parts) -> I64:
    """Length of each step in each scenario, ns, shape ``(steps, 2 + 2 * parts)``.

    Scenarios: as it was; ideal; ideal but for one part; as it was but for one ideal part.
    """
    classes, of_row = _classes(parts.part)
    inside = np.zeros((classes.shape[1], len(parts.names)), bool)
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


def _ratio(length_ns: I64, ideal_ns: I64) -> float:
    whole: F64 = ideal_ns.mean()
    return float(length_ns.mean() / whole) if whole else 1.0
