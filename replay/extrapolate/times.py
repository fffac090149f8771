"""Durations of a workload's operations, where each comes from, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Gpu
from foretrace.replay.costs.kernel import Estimate, Origin, estimate
from foretrace.replay.costs.kernel_book import ATTENTION, Book
from foretrace.replay.costs.kernel_class import KERNEL_CLASSES, MATRIX_CLASSES
from foretrace.replay.costs.kernel_work import Work
from foretrace.replay.extrapolate.stages import Timed
from foretrace.replay.graph import I8, I64
from foretrace.replay.workload.operations import Operations, Workload
from foretrace.traces.errors import LayoutError

F64 = NDArray[np.float64]
MATRIX = np.isin(np.arange(len(KERNEL_CLASSES)), [KERNEL_CLASSES.index(c) for c in MATRIX_CLASSES])
ORIGINS = ("measured", "transferred", "modelled")
"""Where a duration comes from: timed as it is, from timed kernels of other shapes, or a model."""
COMMUNICATION_SPREAD = 0.2
"""Standard deviation of the log time of communication without calibration: the cost models'
median error on the public measurements (docs/cost-collectives.md), scaled to a sigma."""
_ORIGIN_OF = {Origin.MEASURED: 0, Origin.OTHER_SHAPE: 1, Origin.CLASS_CURVE: 1}


class Efficiency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How far a framework on a GPU type is from the models; fitted to few measured steps.

    Attributes:
        matrix: factor of the time of matrix products.
        matrix8: the same of products with 8-bit operands, 0 for as ``matrix``.
        attention: factor of the time of fused attention.
        memory: factor of the time of kernels limited by memory.
        communication: factor of the time of communication.
        kernel_ns: added to every kernel: gaps, and small kernels that no model lists.
        launch_ns: what the host takes for the launches of one operation, communication
            included; a micro-batch is not faster than that times its operations.
        step_ns: added to every step.
        spread: standard deviation of the log of what is left, of the rows it was fitted to.
        source: the rows it was fitted to.
    """

    matrix: float = 1.0
    matrix8: float = 0.0
    attention: float = 1.0
    memory: float = 1.0
    communication: float = 1.0
    kernel_ns: float = 0.0
    launch_ns: float = 0.0
    step_ns: float = 0.0
    spread: float = 0.0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Times:
    """Durations of all blocks' operations.

    Attributes:
        timed: the workload with durations.
        origin: for each block the index into ``ORIGINS`` of each operation.
        uncertainty: for each block the standard deviation of the log duration.
        communication: where the times of communication come from, and the standard deviation
            of their log.
    """

    timed: Timed
    origin: tuple[I8, ...]
    uncertainty: tuple[F64, ...]
    communication: tuple[str, float] = ("modelled", COMMUNICATION_SPREAD)


def time_workload(
    workload: Workload, gpu: Gpu, book: Book | None = None, efficiency: Efficiency | None = None
) -> Times:
    """Time a workload on a GPU type.

    Durations that were measured on that type stand; others are estimated.

    Args:
        workload: what is to be timed.
        gpu: the device.
        book: kernels that were timed on it.
        efficiency: correction of the models.

    Raises:
        LayoutError: nothing is known of an operation's work.
    """
    fit = efficiency or Efficiency()
    made = [_block(block.operations, workload, gpu, book, fit) for block in workload.blocks]

    def optimizer_ns(moved: float) -> int:
        work = _memory_work("optimizer", moved)
        return round(float(estimate(work, gpu, book).seconds[0]) * 1e9 * fit.memory)

    timed = Timed(workload, tuple(m[0] for m in made), optimizer_ns, fit.launch_ns)
    return Times(timed, tuple(m[1] for m in made), tuple(m[2] for m in made))


def _block(
    ops: Operations, workload: Workload, gpu: Gpu, book: Book | None, fit: Efficiency
) -> tuple[I64, I8, F64]:
    computes = ops.collective < 0
    found = estimate(ops.work, gpu, book)
    _check(ops, found, computes)
    factor = np.where(MATRIX[ops.work.kind], fit.matrix, fit.memory)
    factor = np.where(ops.work.kind == ATTENTION, fit.attention, factor)
    if fit.matrix8:
        narrow = MATRIX[ops.work.kind] & np.isin(ops.work.dtype, ("fp8", "int8"))
        factor = np.where(narrow, fit.matrix8, factor)
    ns = np.nan_to_num(found.seconds) * 1e9 * factor + fit.kernel_ns
    measured = (ops.measured_ns >= 0) & (workload.gpu == gpu.name)
    ns = np.where(measured, ops.measured_ns, ns)
    origin = np.array([_ORIGIN_OF.get(Origin(o), 2) for o in found.origin], np.int8)
    origin = np.where(measured, 0, np.where(computes, origin, 2)).astype(np.int8)
    unsure = np.where(measured, 0.02, np.where(computes, found.uncertainty, 0.0))
    return np.rint(np.where(computes, ns, 0)).astype(np.int64), origin, unsure


def _check(ops: Operations, found: Estimate, computes: NDArray[np.bool_]) -> None:
    unknown = computes & ~np.isfinite(found.seconds) & (ops.measured_ns < 0)
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        kind, dtype = KERNEL_CLASSES[ops.work.kind[row]], ops.work.dtype[row]
        raise LayoutError(
            f"no time for {ops.name[row]!r} ({kind}, {dtype or 'no type'}): the GPU type has no "
            "peak for that type; choose another precision"
        )


def _memory_work(kind: str, moved: float) -> Work:
    return Work(
        kind=np.array([KERNEL_CLASSES.index(kind)], np.int8),
        dtype=np.array(["fp32"]),
        sides=np.zeros((1, 4)),
        causal=np.zeros(1, np.bool_),
        backward=np.zeros(1, np.bool_),
        flops=np.zeros(1),
        bytes=np.array([moved]),
    )
