"""The compiled least squares behind the clocks.

Unknown are an offset and a drift of each rank and the time of each collective. The times are
eliminated: within a collective only what a member's end lies away from the weighted mean of all
members counts. What is left, one or two unknowns a rank, is solved by conjugate gradients.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

ENOUGH_NS = 1e-4
EPSILON = 1e-14
"""The solver stops when no unknown would move by more than so many ns, or by this share of the
largest value: what is left then is rounding."""

MOST_ITERATIONS = 500


@njit(cache=True)
def robust_fit(
    ptr: I64, column: I64, value: F64, phase: F64, shape: tuple[int, bool], huber: tuple[int, float]
) -> tuple[F64, F64, F64]:
    """Offsets and drifts that bring the ends of each collective together.

    The model: ``value = time of the collective - offset - drift * phase``, by least squares with
    Huber weights that are found anew in each round.

    Args:
        ptr: members of collective i are ``ptr[i]:ptr[i + 1]``.
        column: rank of each member, as a column.
        value: recorded end, ns.
        phase: of the member's collective.
        shape: number of ranks, and whether clocks may drift.
        huber: number of rounds, and the limit of the weights in robust standard deviations.

    Returns:
        ``(offset, drift, residual)``, shapes ``(ranks,)``, ``(ranks,)`` and ``(members,)``.
    """
    ranks, drifting = shape
    rounds, limit = huber
    unknown = np.zeros(2 * ranks if drifting else ranks)
    weight = np.ones(len(column))
    value = value.copy()
    _take_means(ptr, value, weight)
    residual = value.copy()
    members = (ptr, column, phase)
    for _ in range(rounds):
        _solve(members, value, weight, unknown, ranks)
        _move(members, unknown, ranks, residual)
        residual += value
        _take_means(ptr, residual, weight)
        scale = max(1.4826 * np.median(np.abs(residual)), 1.0)
        for i in range(len(column)):
            weight[i] = min(1.0, limit * scale / max(abs(residual[i]), 1e-9))
    drift = unknown[ranks:].copy() if drifting else np.zeros(ranks)
    return unknown[:ranks].copy(), drift, residual


@njit(cache=True)
def _solve(
    members: tuple[I64, I64, F64], value: F64, weight: F64, unknown: F64, ranks: int
) -> None:
    """Conjugate gradients from the present solution, in place, scaled by the diagonal."""
    _, column, phase = members
    moved = np.empty(len(column))
    _move(members, unknown, ranks, moved)
    gradient, image = np.zeros(len(unknown)), np.zeros(len(unknown))
    _gather(members, weight, -value - moved, ranks, gradient)
    diagonal = np.full(len(unknown), 1e-300)
    for i in range(len(column)):
        diagonal[column[i]] += weight[i]
        if len(unknown) > ranks:
            diagonal[ranks + column[i]] += weight[i] * phase[i] * phase[i]
    ahead = gradient / diagonal
    direction = ahead.copy()
    product = np.dot(gradient, ahead)
    enough = max(ENOUGH_NS, EPSILON * np.abs(value).max())
    for _ in range(MOST_ITERATIONS):
        if np.abs(ahead).max() <= enough:
            break
        _move(members, direction, ranks, moved)
        _gather(members, weight, moved, ranks, image)
        curve = np.dot(direction, image)
        if curve <= 0.0:
            break
        unknown += product / curve * direction
        gradient -= product / curve * image
        ahead = gradient / diagonal
        before, product = product, np.dot(gradient, ahead)
        direction = ahead + product / before * direction


@njit(cache=True)
def _move(members: tuple[I64, I64, F64], unknown: F64, ranks: int, out: F64) -> None:
    """By how much each member's end is moved."""
    _, column, phase = members
    for i in range(len(column)):
        out[i] = unknown[column[i]]
        if len(unknown) > ranks:
            out[i] += phase[i] * unknown[ranks + column[i]]


@njit(cache=True)
def _take_means(ptr: I64, values: F64, weight: F64) -> None:
    """Take each collective's weighted mean out of its members' values, in place."""
    for c in range(len(ptr) - 1):
        total, mass = 0.0, 0.0
        for i in range(ptr[c], ptr[c + 1]):
            total += weight[i] * values[i]
            mass += weight[i]
        for i in range(ptr[c], ptr[c + 1]):
            values[i] -= total / mass


@njit(cache=True)
def _gather(members: tuple[I64, I64, F64], weight: F64, values: F64, ranks: int, out: F64) -> None:
    """What values differ from their collective's mean by, summed up by unknown; changes values."""
    ptr, column, phase = members
    _take_means(ptr, values, weight)
    out[:] = 0.0
    for i in range(len(column)):
        part = weight[i] * values[i]
        out[column[i]] += part
        if len(out) > ranks:
            out[ranks + column[i]] += part * phase[i]
