"""Constants of the GEMM model from products that were timed on one GPU with one type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.replay.cluster import Gpu
from foretrace.replay.costs.gemm import F64, GemmModel, default_model, gemm_seconds

_FIELDS = ("share", "tile_loss", "prologue_k", "fixed_s", "memory_share", "misaligned")
_SCALE = np.array([1.0, 10.0, 100.0, 1e-6, 1.0, 1.0])
_LOW = np.array([0.2, 0.0, 0.0, 0.0, 0.3, 1.0])
_HIGH = np.array([1.1, 80.0, 600.0, 1e-5, 1.0, 4.0])
MIN_SHAPES = 4
"""With fewer shapes only ``share`` is fitted."""


def fit_gemm(shapes: F64, seconds: F64, gpu: Gpu, dtype: str) -> GemmModel:
    """Fit by least squares of log errors, outliers softened.

    Args:
        shapes: batch, m, n, k of each product, shape ``(products, 4)``.
        seconds: measured, shape ``(products,)``.
        gpu: the device they ran on.
        dtype: their operand type.
    """
    start = default_model(gpu, dtype)
    if len(shapes) < MIN_SHAPES:
        return _share_only(shapes, seconds, gpu, dtype, start)
    from scipy.optimize import least_squares

    def errors(values: F64) -> F64:
        model = _with(start, values * _SCALE)
        return np.log(gemm_seconds(*shapes.T, gpu=gpu, dtype=dtype, model=model) / seconds)

    first = np.array([getattr(start, f) for f in _FIELDS])
    first[0], first[3] = 0.95, 3e-6
    bounds = (_LOW / _SCALE, _HIGH / _SCALE)
    found = least_squares(
        errors, first / _SCALE, bounds=bounds, loss="soft_l1", f_scale=0.1, diff_step=1e-2,
        max_nfev=40,
    )  # fmt: skip
    model = _with(start, found.x * _SCALE)
    return replace(model, spread=float(np.median(np.abs(errors(found.x)))))


def _share_only(shapes: F64, seconds: F64, gpu: Gpu, dtype: str, start: GemmModel) -> GemmModel:
    """Scale the default model so that it meets the median of what was measured."""
    if not len(shapes):
        return start
    ratio = gemm_seconds(*shapes.T, gpu=gpu, dtype=dtype, model=start) / seconds
    share = float(np.clip(start.share * np.median(ratio), _LOW[0], _HIGH[0]))
    return replace(start, share=share)


def _with(start: GemmModel, values: F64) -> GemmModel:
    return replace(start, **{f: float(v) for f, v in zip(_FIELDS, values, strict=True)})
