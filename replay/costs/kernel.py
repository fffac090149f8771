"""Time of any computation kernel, with where the number comes from and how sure it is.

Sources, best first:

- ``measured``: the same work was timed on this GPU; its median.
- ``other shape``: the same class and type was timed on this GPU at other shapes; the fitted
  model at the new shape, times what it missed by at the nearest timed shapes.
- ``class curve``: a model fitted to the class, or to another type of it, on this GPU.
- ``roofline``: the model with published shares of the datasheet peaks.

Uncertainty is one standard deviation of the log time (0.1 is about 10 %).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Gpu
from foretrace.replay.costs.attention import attention_seconds
from foretrace.replay.costs.efficiency import MEMORY_DEFAULTS
from foretrace.replay.costs.gemm import GemmModel, default_model, gemm_seconds, has_peak, peak_flops
from foretrace.replay.costs.kernel_book import ATTENTION, GEMM, Book
from foretrace.replay.costs.kernel_class import KERNEL_CLASSES
from foretrace.replay.costs.kernel_distinct import distinct_rows
from foretrace.replay.costs.kernel_work import Work
from foretrace.replay.costs.roofline import bare_roofline, memory_seconds
from foretrace.replay.graph import I8
from foretrace.traces.errors import LayoutError

F64 = NDArray[np.float64]
_LENGTH = 1.0  # in powers of two: how far a timed shape teaches about another
_KNOWN = 0.15  # expected size of what the model misses by
_NOISE = 0.05
_ROOFLINE_SPREAD = 0.35
_ATTENTION_SPREAD = 0.3


class Origin(IntEnum):
    """Where an estimate comes from."""

    MEASURED = 0
    OTHER_SHAPE = 1
    CLASS_CURVE = 2
    ROOFLINE = 3
    UNKNOWN = 4


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated kernels; arrays of shape ``(n,)``.

    Attributes:
        seconds: time alone; NaN where nothing is known of the work.
        origin: ``Origin`` of each.
        uncertainty: standard deviation of the log time.
    """

    seconds: F64
    origin: I8
    uncertainty: F64


def estimate(work: Work, gpu: Gpu, book: Book | None = None) -> Estimate:
    """Time of kernels on a GPU.

    Args:
        work: what the kernels do.
        gpu: the device to estimate for.
        book: what was timed on that device; without one every estimate is a roofline.

    Raises:
        LayoutError: the book is of another GPU type (use ``retime`` for that).
    """
    if book is not None and book.gpu.name != gpu.name:
        raise LayoutError(
            f"the timed kernels are of {book.gpu.name!r}, the estimate is for {gpu.name!r}; "
            "carry times over with foretrace.replay.costs.retime"
        )
    first, kind = distinct_rows(_numbers(work))
    each = work.only(first)
    result = model_estimate(each, gpu, book)
    if book is not None:
        _by_neighbours(result, each, book)
        _by_measurement(result, each, book)
    return Estimate(result.seconds[kind], result.origin[kind], result.uncertainty[kind])


def model_estimate(work: Work, gpu: Gpu, book: Book | None = None) -> Estimate:
    """The models alone: class curves where fitted, else the roofline with published shares."""
    n = len(work)
    result = Estimate(np.full(n, np.nan), np.full(n, Origin.UNKNOWN, np.int8), np.full(n, np.inf))
    for dtype in np.unique(work.dtype[work.kind == GEMM]):
        mine = (work.kind == GEMM) & (work.dtype == dtype) & (work.sides[:, 1] > 0)
        if not mine.any() or not has_peak(gpu, str(dtype)):
            continue
        model, origin = _gemm_model(str(dtype), gpu, book)
        times = gemm_seconds(*work.sides[mine].T, gpu=gpu, dtype=str(dtype), model=model)
        _put(result, mine, times, origin, 1.4826 * model.spread)
    _attention(result, work, gpu)
    _memory_bound(result, work, gpu, book)
    left = (result.origin == Origin.UNKNOWN) & ((work.flops > 0) | (work.bytes > 0))
    if left.any():
        peak = peak_flops(gpu, "bf16")
        times = bare_roofline(work.flops[left], work.bytes[left], np.full(left.sum(), peak), gpu)
        _put(result, left, 2 * times, Origin.ROOFLINE, 2 * _ROOFLINE_SPREAD)
    return result


def _gemm_model(dtype: str, gpu: Gpu, book: Book | None) -> tuple[GemmModel, Origin]:
    if book is not None and dtype in book.gemm:
        return book.gemm[dtype], Origin.CLASS_CURVE
    return default_model(gpu, dtype), Origin.ROOFLINE


def _attention(result: Estimate, work: Work, gpu: Gpu) -> None:
    for dtype in np.unique(work.dtype[work.kind == ATTENTION]):
        mine = (work.kind == ATTENTION) & (work.dtype == dtype) & (work.sides[:, 1] > 0)
        if not mine.any() or not has_peak(gpu, str(dtype)):
            continue
        heads, q, kv, dim = work.sides[mine].T
        times = attention_seconds(
            heads, q, kv, dim, work.causal[mine], backward=work.backward[mine], gpu=gpu,
            dtype=str(dtype),
        )  # fmt: skip
        _put(result, mine, times, Origin.ROOFLINE, _ATTENTION_SPREAD)


def _memory_bound(result: Estimate, work: Work, gpu: Gpu, book: Book | None) -> None:
    for name, default in MEMORY_DEFAULTS.items():
        mine = (work.kind == KERNEL_CLASSES.index(name)) & (work.bytes > 0)
        if not mine.any():
            continue
        fitted = book.memory.get(name) if book is not None else None
        model = fitted or default
        origin = Origin.CLASS_CURVE if fitted else Origin.ROOFLINE
        _put(result, mine, memory_seconds(work.bytes[mine], gpu, model), origin, model.spread)


def _by_neighbours(result: Estimate, work: Work, book: Book) -> None:
    """Correct products and attention by what the model misses at nearby timed shapes."""
    timed = book.samples.work
    at_timed = model_estimate(timed, book.gpu, book).seconds
    for kind in (GEMM, ATTENTION):
        for dtype in np.unique(work.dtype[work.kind == kind]):
            near = (timed.kind == kind) & (timed.dtype == dtype) & np.isfinite(at_timed)
            mine = (work.kind == kind) & (work.dtype == dtype) & np.isfinite(result.seconds)
            if not near.any() or not mine.any():
                continue
            missed = np.log(book.samples.seconds[near] / at_timed[near])
            level = float(np.median(missed)) if kind == ATTENTION else 0.0
            shift, left = smooth(timed.sides[near], missed - level, work.sides[mine])
            spread = np.sqrt(left**2 + (1.4826 * np.median(np.abs(missed - level))) ** 2)
            times = result.seconds[mine] * np.exp(shift + level)
            _put(result, mine, times, Origin.OTHER_SHAPE, np.maximum(spread, _NOISE))


def smooth(timed: F64, missed: F64, asked: F64) -> tuple[F64, F64]:
    """What the model will miss by at ``asked`` shapes: Gaussian regression in log2 sides.

    Args:
        timed: sides of timed shapes, shape ``(timed, 4)``.
        missed: log of measured over modelled, shape ``(timed,)``.
        asked: sides asked for, shape ``(asked, 4)``.

    Returns:
        Expected log correction and its standard deviation, each of shape ``(asked,)``.
    """
    known, back = np.unique(np.log2(np.maximum(timed, 1)), axis=0, return_inverse=True)
    group = back.reshape(-1)
    count = np.bincount(group)
    value = np.bincount(group, missed) / count
    wanted, where = np.unique(np.log2(np.maximum(asked, 1)), axis=0, return_inverse=True)
    inside = _kernel(known, known) + np.diag(_NOISE**2 / count)
    across = _kernel(wanted, known)
    solved = np.linalg.solve(inside, np.stack([value, np.zeros_like(value)], axis=1))[:, 0]
    explained = np.einsum("ij,ji->i", across, np.linalg.solve(inside, across.T))
    left = np.sqrt(np.maximum(_KNOWN**2 - explained, 0))
    at = where.reshape(-1)
    return (across @ solved)[at], left[at]


def _kernel(a: F64, b: F64) -> F64:
    distance = ((a[:, None] - b[None]) ** 2).sum(axis=-1)
    result: F64 = _KNOWN**2 * np.exp(-distance / (2 * _LENGTH**2))
    return result


def _by_measurement(result: Estimate, work: Work, book: Book) -> None:
    """Take the median of the same work where it was timed."""
    timed = book.samples
    seen: dict[tuple[object, ...], list[int]] = {}
    for row, key in enumerate(_keys(timed.work)):
        seen.setdefault(key, []).append(row)
    for row, key in enumerate(_keys(work)):
        rows = seen.get(key)
        if rows is None or not (work.flops[row] > 0 or work.bytes[row] > 0):
            continue
        weight = timed.count[rows]
        order = np.argsort(timed.seconds[rows])
        middle = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)
        chosen = rows[int(order[min(int(middle), len(rows) - 1)])]
        result.seconds[row] = timed.seconds[chosen]
        result.origin[row] = Origin.MEASURED
        apart = np.log(timed.seconds[rows].max() / timed.seconds[rows].min()) / 2
        result.uncertainty[row] = max(float(timed.spread[chosen]), float(apart), 0.01)


def _keys(work: Work) -> list[tuple[object, ...]]:
    columns = (
        work.kind.tolist(), work.dtype.tolist(), map(tuple, work.sides.tolist()),
        work.causal.tolist(), work.backward.tolist(), work.flops.tolist(), work.bytes.tolist(),
    )  # fmt: skip
    return list(zip(*columns, strict=True))


def _numbers(work: Work) -> F64:
    """All that distinguishes one piece of work from another, as numbers."""
    _, dtype = np.unique(work.dtype, return_inverse=True)
    columns = (work.kind, dtype.reshape(-1), work.causal, work.backward, work.flops, work.bytes)
    stacked = np.stack([np.asarray(c, np.float64) for c in columns], axis=1)
    return np.concatenate([stacked, work.sides], axis=1)


def _put(
    result: Estimate, mine: NDArray[np.bool_], seconds: F64, origin: Origin, spread: float | F64
) -> None:
    result.seconds[mine] = seconds
    result.origin[mine] = origin
    result.uncertainty[mine] = spread
