"""Time of fused (flash) attention, forward and backward, by blocks of the score matrix.

Per head, rows of queries come in blocks of 128 and walk over the blocks of 128 keys that
they may see: all of them, or up to the diagonal when causal. Only whole blocks are computed,
so short or ragged sequences cost more than their FLOPs say::

    pairs = sum over query blocks of visible key blocks
    flops = 4 * batch * heads * d * 128^2 * pairs           (backward: x 2.5)
    fill  = ceil(B / N) * N / B     with B = batch * heads * ceil(q / 128), N multiprocessors
    t     = max(flops / (P * share * h(d)) * ramp * fill', bytes / BW) + t0
    ramp  = (mean key blocks + 2) / mean key blocks          (prologue of a query block)

fill' = fill for less than one wave, else fill damped to (1 + fill) / 2: blocks of unequal
length balance. h(d) = d / (d + 32) normalised to 1 at 128: narrow heads do less per
softmax. Backward FLOPs are 2.5 times forward (five products for two), Dao, FlashAttention-2
(arXiv 2307.08691), section 4.1; shares in ``efficiency``.

Validity: q and kv of 64 and more; dropout, sliding windows, paged caches and the decoding
case (q = 1) are not modelled.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrace.replay.cluster import Gpu
from foretrace.replay.costs.efficiency import attention_share
from foretrace.replay.costs.gemm import peak_flops

F64 = NDArray[np.float64]
BLOCK = 128.0
BACKWARD_FLOPS = 2.5
_NARROW = 32.0
PROLOGUE = 2.0
"""Start and end of a query block, in key blocks; from one forward kernel on an A800."""
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
_MEMORY_SHARE = 0.8
_FIXED_S = 3e-6


def attention_flops(
    batch_heads: ArrayLike, q: ArrayLike, kv: ArrayLike, dim: ArrayLike, causal: ArrayLike
) -> F64:
    """FLOPs of the forward pass that are needed, masked scores left out.

    Args:
        batch_heads: sequences times heads.
        q: query length.
        kv: key length.
        dim: head dimension.
        causal: whether a query sees only keys up to its own position (aligned at the end).
    """
    b, rows, cols, d = (np.asarray(v, np.float64) for v in (batch_heads, q, kv, dim))
    masked = np.where(np.asarray(causal, bool), rows * cols - rows * (rows - 1) / 2, rows * cols)
    return 4 * b * d * np.maximum(masked, 0)


def attention_seconds(
    batch_heads: ArrayLike, q: ArrayLike, kv: ArrayLike, dim: ArrayLike, causal: ArrayLike, *,
    backward: ArrayLike = False, gpu: Gpu, dtype: str = "bf16",
    shares: tuple[float, float] | None = None,
) -> F64:  # fmt: skip
    """Time of fused attention.

    Args:
        batch_heads: sequences times heads, shape ``(n,)`` or scalar; likewise the others.
        q: query length.
        kv: key length.
        dim: head dimension.
        causal: lower-triangular mask.
        backward: the backward pass (all of its kernels together).
        gpu: the device.
        dtype: operand type.
        shares: share of the matmul peak forward and backward; the defaults otherwise.

    Returns:
        Seconds, shape ``(n,)``.
    """
    b, rows, cols, d = (np.atleast_1d(np.asarray(v, np.float64)) for v in (batch_heads, q, kv, dim))
    mask, back = np.asarray(causal, bool), np.asarray(backward, bool)
    fixed = shares or (attention_share(gpu, backward=False), attention_share(gpu, backward=True))
    blocks_q = np.ceil(rows / BLOCK)
    mean_keys = _mean_key_blocks(rows, cols, mask)
    flops = 4 * b * d * BLOCK**2 * blocks_q * mean_keys * np.where(back, BACKWARD_FLOPS, 1.0)
    narrow = d / (d + _NARROW) * (128 + _NARROW) / 128
    rate = peak_flops(gpu, dtype) * np.where(back, fixed[1], fixed[0]) * narrow
    compute = flops / rate * (1 + PROLOGUE / mean_keys) * _fill(b * blocks_q, gpu.sms)
    tensors = np.where(back, 2.5, 1.0) * (2 * rows + 2 * cols)
    memory = b * d * tensors * _BYTES.get(dtype, 2) / (gpu.hbm_bytes_per_s * _MEMORY_SHARE)
    return np.maximum(compute, memory) + _FIXED_S


def _mean_key_blocks(q: F64, kv: F64, causal: NDArray[np.bool_]) -> F64:
    """Key blocks that a query block sees, on average; at least one."""
    blocks_q, blocks_k = np.ceil(q / BLOCK), np.ceil(kv / BLOCK)
    # The diagonal ends at the last key; blocks before it grow by one each.
    triangle = np.minimum(blocks_q, blocks_k)
    ahead = np.maximum(blocks_k - blocks_q, 0.0)
    visible = ahead + (triangle + 1) / 2
    return np.maximum(np.where(causal, np.minimum(visible, blocks_k), blocks_k), 1.0)


def _fill(blocks: F64, sms: int) -> F64:
    """Time lost because the last wave is not full."""
    full = np.maximum(np.ceil(blocks / sms), 1.0) * sms / np.maximum(blocks, 1.0)
    return np.where(blocks < sms, full, (1 + full) / 2)
