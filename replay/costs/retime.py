"""A measured kernel at other shapes or on another GPU: measured time x ratio of models.

What a model misses on the measured side (library version, clocks, layout) is assumed to be
missed alike on the other; constants that differ between GPUs are the published shares.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Gpu
from foretrace.replay.costs.kernel import Estimate, Origin, model_estimate
from foretrace.replay.costs.kernel_work import Work

F64 = NDArray[np.float64]
_ACROSS_GPUS = 0.12  # median error of product times between vendors on the public pair
_UNMODELLED = 0.5


def to_gpu(measured: F64, work: Work, old: Gpu, new: Gpu) -> Estimate:
    """Times on another GPU.

    Args:
        measured: seconds on ``old``, shape ``(n,)``.
        work: what the kernels do.
        old: where they were measured.
        new: where they would run.

    Returns:
        Times on ``new``. Where the work is unknown, times scale with device bandwidth.
    """
    here, there = model_estimate(work, old), model_estimate(work, new)
    return _scaled(measured, here, there, old.hbm_bytes_per_s / new.hbm_bytes_per_s, _ACROSS_GPUS)


def to_shapes(measured: F64, old: Work, new: Work, gpu: Gpu) -> Estimate:
    """Times of the same kernels at other shapes, on the GPU they were measured on.

    Args:
        measured: seconds at the old shapes, shape ``(n,)``.
        old: work at the old shapes.
        new: work at the new shapes, row by row.
        gpu: the device.

    Returns:
        Times at the new shapes; NaN where either work is unknown.
    """
    return _scaled(measured, model_estimate(old, gpu), model_estimate(new, gpu), np.nan, 0.1)


def _scaled(
    measured: F64, here: Estimate, there: Estimate, otherwise: float, spread: float
) -> Estimate:
    ratio = there.seconds / here.seconds
    known = np.isfinite(ratio)
    factor = np.where(known, ratio, otherwise)
    sure = np.where(known, np.maximum(spread, np.abs(np.log(factor)) * 0.2), _UNMODELLED)
    origin = np.where(known, Origin.OTHER_SHAPE, Origin.ROOFLINE).astype(np.int8)
    origin = np.where(np.isfinite(factor), origin, Origin.UNKNOWN).astype(np.int8)
    return Estimate(np.asarray(measured) * factor, origin, sure)
