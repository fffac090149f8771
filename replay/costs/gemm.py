"""Time of matrix products, with tiles and waves counted whole.

A product of (batch, m, k) by (batch, k, n) is cut into output tiles of a rows by b columns,
optionally with k cut into s parts. Blocks fill the N multiprocessors in whole waves::

    waves  = ceil(batch * ceil(m / a) * ceil(n / b) * s / N)        at least 1
    block  = 2 * a * b * (k / s + K0) / (P / N * share * ab / (ab + c * (a + b)))
    memory = bytes / (BW * memory_share)          partial sums of split k included
    t      = max(waves * block, memory) * (misaligned?) + t0

minimised over a menu of tiles and splits, since libraries pick by such a model. P: peak
FLOP/s of the type (``Gpu.flops``), BW: device bandwidth (bytes/s), c: loss of small tiles, K0:
prologue and epilogue of a block in units of k, t0: fixed seconds. FLOPs count 2mnk.

Sources: tile and wave quantisation, NVIDIA "Matrix Multiplication Background User's Guide";
default c and K0: middle of the fits to public A100, A800 and V100 traces; shares:
``efficiency``. Validity: 8 to 10^6 in each dimension; skinny products (m or n below 16) and
fused epilogues are outside of it and come out too fast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrace.replay.cluster import Gpu
from foretrace.replay.costs.efficiency import matmul_share
from foretrace.replay.costs.kernel_distinct import distinct_rows
from foretrace.traces.errors import LayoutError

F64 = NDArray[np.float64]

TILES = np.array(
    [
        (256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128),
        (64, 64), (32, 128), (128, 32), (64, 32), (32, 64), (32, 32),
    ],
    np.float64,
)  # fmt: skip
"""Output tiles a library may use, rows by columns."""
SPLITS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 32], np.float64)
_MIN_SPLIT_K = 64.0  # a part of k shorter than this is never cut off
_ROWS_AT_ONCE = 4096
_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp4": 0.5}
_INSTEAD = {"bf16": "fp16", "fp16": "bf16", "tf32": "fp32", "fp8": "bf16", "fp4": "fp8"}


@dataclass(frozen=True, slots=True)
class GemmModel:
    """Constants of the model for one GPU and type.

    Attributes:
        share: of the peak, before losses of tiles.
        tile_loss: c, in elements.
        prologue_k: K0, in elements of k.
        fixed_s: t0, seconds.
        memory_share: of the datasheet bandwidth.
        misaligned: factor where n or k is no multiple of 16 bytes.
        spread: relative uncertainty (median absolute log error where fitted).
    """

    share: float
    tile_loss: float = 15.0
    prologue_k: float = 100.0
    fixed_s: float = 0.0
    memory_share: float = 0.8
    misaligned: float = 1.6
    spread: float = 0.2


def default_model(gpu: Gpu, dtype: str = "bf16") -> GemmModel:
    """The model where nothing was measured on the GPU.

    The best published rate belongs to large tiles, so their loss is taken out of it.
    """
    loss = 256 * 128 / (256 * 128 + 15.0 * (256 + 128))
    return GemmModel(share=min(matmul_share(gpu, dtype) / loss, 1.0))


def has_peak(gpu: Gpu, dtype: str) -> bool:
    """Whether the GPU multiplies this type, or one that stands in for it."""
    return dtype in _BYTES and _stand_in(gpu, dtype) in gpu.flops


def peak_flops(gpu: Gpu, dtype: str) -> float:
    """Dense peak for ``dtype``, or for the type that hardware uses in its place.

    Raises:
        LayoutError: the GPU has no such peak.
    """
    name = _stand_in(gpu, dtype)
    if name not in gpu.flops:
        raise LayoutError(
            f"GPU {gpu.name!r}: no peak for {dtype!r} among {', '.join(gpu.flops)}; "
            "add it to the description or ask for another type"
        )
    return gpu.flops[name]


def _stand_in(gpu: Gpu, dtype: str) -> str:
    name = dtype
    for _ in _INSTEAD:
        if name in gpu.flops:
            break
        name = _INSTEAD.get(name, name)
    return name


def gemm_seconds(
    batch: ArrayLike, m: ArrayLike, n: ArrayLike, k: ArrayLike, *, gpu: Gpu,
    dtype: str = "bf16", model: GemmModel | None = None,
) -> F64:  # fmt: skip
    """Time of dense (batched) products.

    Args:
        batch: independent products, shape ``(products,)`` or scalar.
        m: rows of the result.
        n: columns of the result.
        k: summed dimension.
        gpu: the device.
        dtype: operand type as in ``Gpu.flops``.
        model: fitted constants; the defaults otherwise.

    Returns:
        Seconds, shape ``(products,)``.
    """
    sides = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(v, np.float64)) for v in (batch, m, n, k))
    )
    shapes = np.stack(sides, axis=1)
    first, back = distinct_rows(shapes)
    distinct = shapes[first]
    chosen = model or default_model(gpu, dtype)
    result = np.empty(len(distinct))
    for start in range(0, len(distinct), _ROWS_AT_ONCE):
        part = distinct[start : start + _ROWS_AT_ONCE]
        count = _dense_tiles(part)
        result[start : start + len(part)] = _best(part, count, gpu, dtype, chosen)
    return result[back]


def grouped_gemm_seconds(
    rows: ArrayLike, n: float, k: float, *, gpu: Gpu, dtype: str = "bf16",
    model: GemmModel | None = None,
) -> float:  # fmt: skip
    """Time of one kernel that multiplies each group's rows by its own (k, n) matrix.

    Tiles of all groups share the waves; a group pays whole tiles, so uneven or tiny groups
    cost more than one product of the same FLOPs.

    Args:
        rows: rows of each group, shape ``(groups,)``; zeros cost nothing.
        n: columns of every matrix.
        k: summed dimension.
        gpu: the device.
        dtype: operand type.
        model: fitted constants.
    """
    each = np.asarray(rows, np.float64)
    used = each[each > 0]
    if not len(used):
        return 0.0
    chosen = model or default_model(gpu, dtype)
    down = np.ceil(used[:, None] / TILES[:, 0]).sum(axis=0)
    count = (down * np.ceil(n / TILES[:, 1]))[None, :]
    moved = (used.sum() * (k + n) + len(used) * k * n) * _BYTES[dtype]
    shape = np.array([[1.0, used.sum(), n, k]])
    return float(_best(shape, count, gpu, dtype, chosen, moved=np.array([moved]))[0])


def block_sparse_gemm_seconds(
    blocks: float, block: float, n: float, *, gpu: Gpu, dtype: str = "bf16",
    model: GemmModel | None = None,
) -> float:  # fmt: skip
    """Time of a block-sparse by dense product: ``blocks`` non-zero squares by n columns.

    Each non-zero block of side ``block`` adds ``2 * block^2 * n`` FLOPs; a row of blocks is a
    group. Rows are taken as equally filled.

    Args:
        blocks: non-zero blocks.
        block: side of a block.
        n: columns of the dense matrix.
        gpu: the device.
        dtype: operand type.
        model: fitted constants.
    """
    return grouped_gemm_seconds(
        np.full(int(max(blocks, 0)), block), n, block, gpu=gpu, dtype=dtype, model=model
    )


def _dense_tiles(shapes: F64) -> F64:
    """Output tiles of each product for each tile of the menu, shape ``(products, tiles)``."""
    down = np.ceil(shapes[:, 1:2] / TILES[:, 0])
    across = np.ceil(shapes[:, 2:3] / TILES[:, 1])
    return shapes[:, 0:1] * down * across


def _best(
    shapes: F64, tiles: F64, gpu: Gpu, dtype: str, model: GemmModel, moved: F64 | None = None
) -> F64:
    batch, m, n, k = shapes.T
    size = _BYTES[dtype]
    if moved is None:
        moved = size * batch * (m * k + k * n + m * n)
    area = TILES[:, 0] * TILES[:, 1]
    rate = peak_flops(gpu, dtype) / gpu.sms * model.share
    rate = rate * area / (area + model.tile_loss * TILES.sum(axis=1))
    part = k[:, None] / SPLITS
    depth = np.ceil(part / 32) * 32 + model.prologue_k
    block = 2 * area[None, :, None] * depth[:, None, :] / rate[None, :, None]
    waves = np.maximum(np.ceil(tiles[:, :, None] * SPLITS / gpu.sms), 1.0)
    extra = np.where(SPLITS > 1, 8.0 * SPLITS, 0.0) * (batch * m * n)[:, None]
    memory = (moved[:, None] + extra) / (gpu.hbm_bytes_per_s * model.memory_share)
    time = np.maximum(waves * block, memory[:, None, :])
    time = np.where(((part < _MIN_SPLIT_K) & (SPLITS > 1))[:, None, :], np.inf, time)
    step = max(16 // max(int(size), 1), 1)
    crooked = (n % step != 0) | (k % step != 0)
    fastest = time.reshape(len(shapes), -1).min(axis=1)
    total: F64 = fastest * np.where(crooked, model.misaligned, 1.0) + model.fixed_s
    return total
