"""Time of memory-bound kernels, and the bare roofline of any work.

::

    t = t0 + bytes / (BW * share)                             memory-bound classes
    t = max(flops / (P * share_P), bytes / (BW * share_BW))   anything else

t0 (seconds), share: per class, fitted (``fit_memory``) or ``efficiency.MEMORY_DEFAULTS``.
Valid above some 10 KB; tensors that fit the cache and were just written read faster than
this says, by up to the ratio of cache to memory bandwidth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Gpu
from foretrace.replay.costs.efficiency import MemoryShare

F64 = NDArray[np.float64]
_LOWEST, _HIGHEST = 0.02, 1.5  # above 1: tensors that the cache still holds
MIN_POINTS = 3


def memory_seconds(moved: F64, gpu: Gpu, model: MemoryShare) -> F64:
    """Time of kernels that move ``moved`` bytes. Shape ``(n,)``."""
    return model.latency_s + np.asarray(moved) / (gpu.hbm_bytes_per_s * model.share)


def bare_roofline(flops: F64, moved: F64, peak: F64, gpu: Gpu) -> F64:
    """Larger of compute and memory time at datasheet peaks, seconds. Shape ``(n,)``."""
    return np.maximum(np.asarray(flops) / peak, np.asarray(moved) / gpu.hbm_bytes_per_s)


def fit_memory(moved: F64, seconds: F64, gpu: Gpu, prior: MemoryShare) -> MemoryShare:
    """Latency and share of one class from timed kernels, by weighted relative errors.

    Args:
        moved: bytes of each kernel, shape ``(kernels,)``.
        seconds: measured.
        gpu: the device they ran on.
        prior: kept where there are fewer than ``MIN_POINTS`` different sizes.
    """
    use = moved > 0
    x, y = moved[use] / gpu.hbm_bytes_per_s, seconds[use]
    if len(np.unique(x)) < MIN_POINTS:
        return prior
    weight = 1 / y
    for _ in range(20):  # towards least absolute relative errors
        latency, slope = _line(x, y, weight)
        error = np.abs((latency + slope * x) / y - 1)
        weight = 1 / (y * np.sqrt(error + 0.02))
    share = float(np.clip(1 / max(slope, 1e-9), _LOWEST, _HIGHEST))
    predicted = memory_seconds(moved[use], gpu, MemoryShare(share, latency, 0.0))
    return MemoryShare(share, latency, float(np.median(np.abs(np.log(predicted / y)))))


def _line(x: F64, y: F64, weight: F64) -> tuple[float, float]:
    """Intercept and slope, neither below zero, by weighted least squares."""
    design = np.stack([weight, weight * x], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(design, weight * y, rcond=None)
    if latency < 0:
        slope = float((weight**2 * x * y).sum() / (weight**2 * x * x).sum())
        return 0.0, slope
    if slope <= 0:
        return float(np.average(y, weights=weight**2)), 1e-9
    return float(latency), float(slope)
