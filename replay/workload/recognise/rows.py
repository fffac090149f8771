"""Recognised operations, collected row by row into a block's table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.costs.kernel_class import KERNEL_CLASSES
from foretrace.replay.costs.kernel_work import Work
from foretrace.replay.graph import I64
from foretrace.replay.layout import GROUP_KINDS
from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.operations import NONE, Operations

_OTHER = KERNEL_CLASSES.index("other")
GAPS = "launch gaps"
"""Name of the row that stands for the time in which a block's device had nothing to do."""

OTHER = "work of some layers"
"""Name of the row that stands for operations that only some of the layers run, by their mean."""


@dataclass(frozen=True, slots=True)
class Talk:
    """What a communication operation is: kind of collective, kind of group, bytes."""

    collective: int
    group: str
    bytes: int


WorkRow = tuple[int, str, tuple[float, ...], bool, bool, float, float]
NO_WORK: WorkRow = (_OTHER, "", (0.0, 0.0, 0.0, 0.0), False, False, 0.0, 0.0)


def work_row(work: Work, at: int) -> WorkRow:
    """One row of a table of work."""
    return (
        int(work.kind[at]), str(work.dtype[at]), tuple(work.sides[at].tolist()),
        bool(work.causal[at]), bool(work.backward[at]), float(work.flops[at]),
        float(work.bytes[at]),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One operation: a computation, or communication if ``talk`` is given."""

    name: str
    phase: Phase
    measured_ns: float
    work: WorkRow = NO_WORK
    talk: Talk | None = None
    beside: bool = False


def operations(rows: list[Row]) -> Operations:
    """The rows as a table."""
    work = [row.work for row in rows]
    columns = list(zip(*work, strict=True)) or [()] * 7
    kind, dtype, sides, causal, backward, flops, moved = columns
    talks = [row.talk for row in rows]
    return Operations(
        name=tuple(row.name for row in rows),
        phase=np.array([row.phase for row in rows], np.int8),
        work=Work(
            kind=np.array(kind, np.int8),
            dtype=np.array(dtype, np.str_),
            sides=np.array(sides, np.float64).reshape(-1, 4),
            causal=np.array(causal, np.bool_),
            backward=np.array(backward, np.bool_),
            flops=np.array(flops, np.float64),
            bytes=np.array(moved, np.float64),
        ),
        collective=np.array([t.collective if t else NONE for t in talks], np.int8),
        group=np.array([GROUP_KINDS.index(t.group) if t else NONE for t in talks], np.int8),
        bytes=np.array([t.bytes if t else 0 for t in talks], np.int64),
        beside=np.array([row.beside for row in rows], np.bool_),
        measured_ns=_rounded([row.measured_ns for row in rows]),
    )


def _rounded(values: list[float]) -> I64:
    return np.rint(np.array(values, np.float64)).astype(np.int64)
