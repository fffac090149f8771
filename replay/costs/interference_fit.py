"""Constants of the interference model from a trace's own kernels, used only where they help.

``epsilon`` is the median of what the waves leave unexplained on matrix kernels; ``lam``,
``beta`` and ``kappa`` of memory kernels are found on a grid by the clipped absolute log error.
Folds are made by kernel identity, so that no kernel is predicted from itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from foretrace.replay.cluster import Gpu
from foretrace.replay.costs.interference import (
    DEFAULT,
    F64,
    Interference,
    matrix_slowdown,
    memory_slowdown,
    slowdown,
)
from foretrace.replay.costs.interference_pairs import Pairs

FOLDS = 5
MIN_IDENTITIES = 8
"""Fewer kernels than this of a class are not fitted."""
_CLIP = 0.7
_LAM = (0.0, 1.0, 2.0, 3.3, 5.0, 8.0)
_BETA = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
_KAPPA = (1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class ClassFit:
    """What a fit did for one class of kernels.

    Attributes:
        instances: overlapped kernels.
        default_error: median relative error of the defaults.
        held_out_error: median relative error of the fit on kernels it did not see; NaN where
            there were too few to fit.
        used: the fit is used: its held-out error is lower.
    """

    instances: int
    default_error: float
    held_out_error: float
    used: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants to use for a trace, and why.

    Attributes:
        model: constants, each class fitted or default.
        matrix: result for matrix kernels.
        memory: result for memory kernels.
    """

    model: Interference
    matrix: ClassFit
    memory: ClassFit


def fit(pairs: Pairs, gpu: Gpu, prior: Interference = DEFAULT) -> Fit:
    """Fit the constants to a trace's pairs, keeping the prior where the fit is not better.

    Args:
        pairs: overlapped kernels with their times alone.
        gpu: the device.
        prior: constants to beat.
    """
    model, results = prior, {}
    for matrix in (True, False):
        mine = pairs.only(pairs.load.matrix == matrix)
        result = _assess(mine, gpu, prior, matrix=matrix)
        if result.used:
            model = replace(fit_class(mine, gpu, model, matrix=matrix), origin="fitted")
        results[matrix] = result
    return Fit(model, results[True], results[False])


def fit_class(pairs: Pairs, gpu: Gpu, prior: Interference, *, matrix: bool) -> Interference:
    """Constants of one class from all of its pairs."""
    if matrix:
        bare = matrix_slowdown(pairs.load, gpu, replace(prior, epsilon=0.0))
        return replace(prior, epsilon=float(np.median(pairs.measured / bare)) - 1.0)
    best, least = prior, np.inf
    for lam, beta, kappa in product(_LAM, _BETA, _KAPPA):
        tried = replace(prior, lam=lam, beta=beta, kappa=kappa)
        error = np.abs(np.log(memory_slowdown(pairs.load, gpu, tried) / pairs.measured))
        total = float(np.minimum(error, _CLIP).sum())
        if total < least - 1e-12:
            best, least = tried, total
    return best


def held_out(pairs: Pairs, gpu: Gpu, prior: Interference, *, matrix: bool) -> F64:
    """Prediction for each pair from a fit that did not see its kernel. Shape ``(n,)``."""
    _, number = np.unique(pairs.identity, return_inverse=True)
    fold = number.reshape(-1) % FOLDS
    predicted = np.ones(len(pairs))
    for k in range(FOLDS):
        test = fold == k
        if test.any() and (~test).any():
            model = fit_class(pairs.only(~test), gpu, prior, matrix=matrix)
            predicted[test] = slowdown(pairs.only(test).load, gpu, model)
    return predicted


def median_error(predicted: F64, measured: F64) -> float:
    """Median of ``|predicted / measured - 1|``; NaN for none."""
    if not len(measured):
        return float("nan")
    return float(np.median(np.abs(predicted / measured - 1)))


def _assess(pairs: Pairs, gpu: Gpu, prior: Interference, *, matrix: bool) -> ClassFit:
    default = median_error(slowdown(pairs.load, gpu, prior), pairs.measured)
    if len(np.unique(pairs.identity)) < MIN_IDENTITIES:
        return ClassFit(len(pairs), default, float("nan"), used=False)
    error = median_error(held_out(pairs, gpu, prior, matrix=matrix), pairs.measured)
    return ClassFit(len(pairs), default, error, used=error < default)
