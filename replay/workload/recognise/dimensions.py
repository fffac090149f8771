"""Shape of the model, from the shapes of the products and attention of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.replay.costs.kernel_class import KERNEL_CLASSES
from foretrace.replay.workload.recognise.rows import Row
from foretrace.traces.errors import LayoutError

_GEMM = KERNEL_CLASSES.index("gemm")
_ATTENTION = KERNEL_CLASSES.index("attention")


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Sizes of the model and of a micro-batch, as one tensor-parallel rank has them.

    Attributes:
        hidden: width of the residual stream.
        heads: query heads of a rank.
        kv_heads: key and value heads of a rank.
        head_dim: width of a head.
        ffn: width of the MLP on a rank.
        gated: the MLP has three matrices.
        vocab: vocabulary of a rank, 0 unknown.
        seq: tokens of a sequence on a rank.
        micro_batch: sequences of a micro-batch.
        dtype: operand type of the products.
        flash: attention is one kernel.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    vocab: int
    seq: int
    micro_batch: int
    dtype: str
    flash: bool


Product = tuple[float, float, float, float]
"""Batch, m, n, k."""


def find_dimensions(layer: Sequence[Row], head: Sequence[Row]) -> Dimensions:
    """Read the sizes off the forward pass of a layer and of the head.

    Args:
        layer: rows of a layer's forward pass.
        head: rows of the head's.

    Raises:
        LayoutError: naming what the trace does not tell.
    """
    kinds = [row.work[0] for row in layer]
    products = [
        (place, row.work[2]) for place, row in enumerate(layer)
        if row.work[0] == _GEMM and row.work[2][1] > 0
    ]  # fmt: skip
    linear = [(place, s) for place, s in products if s[0] == 1]
    if len(linear) < 3:
        raise LayoutError(
            f"{len(linear)} matrix products with recorded shapes in a layer's forward pass, "
            "expected those of attention and MLP; record with record_shapes=True"
        )
    whole = [p for p, kind in enumerate(kinds) if kind == _ATTENTION and layer[p].work[2][1] > 0]
    batched = [(p, s) for p, s in products if s[0] > 1]
    if whole:
        at = whole[0]
        batch_heads, seq, _, dim = layer[at].work[2]
    elif batched:  # scores: queries x keys
        at = batched[0][0]
        batch_heads, seq, _, dim = batched[0][1]
    else:
        raise LayoutError("no attention with recorded shapes in a layer's forward pass")
    before = [s for place, s in linear if place < at]
    behind = [s for place, s in linear if place > at]
    if not before or len(behind) < 3:
        raise LayoutError(
            f"{len(before)} products before attention and {len(behind)} behind it in a layer; "
            "expected the projections, the output and two or three of the MLP"
        )
    tokens, hidden = before[0][1], before[0][3]
    heads, kv = _heads(before, behind[0], dim)
    micro = tokens / seq
    if abs(batch_heads - micro * heads) > 0.01 * batch_heads:
        raise LayoutError(
            f"attention over {batch_heads:g} sequences x heads does not fit {tokens:g} tokens in "
            f"sequences of {seq:g} and {heads:g} heads"
        )
    ffn, gated = _mlp(behind[1:])
    dtypes = [row.work[1] for row in layer if row.work[0] == _GEMM and row.work[1]]
    return Dimensions(
        hidden=round(hidden), heads=round(heads), kv_heads=round(kv), head_dim=round(dim),
        ffn=round(ffn), gated=gated, vocab=_vocab(head, hidden), seq=round(seq),
        micro_batch=round(micro), dtype=dtypes[0] if dtypes else "bf16", flash=bool(whole),
    )  # fmt: skip


def _heads(
    before: Sequence[Sequence[float]], out: Sequence[float], dim: float
) -> tuple[float, float]:
    """Query and key-value heads: the output product takes the queries' width."""
    heads = out[3] / dim
    width = sum(s[2] for s in before)
    return heads, (width / dim - heads) / 2


def _mlp(products: Sequence[Sequence[float]]) -> tuple[float, bool]:
    """Width of the MLP, and whether it is gated."""
    down = products[-1][3]
    up = sum(s[2] for s in products[:-1])
    return down, up > 1.5 * down


def _vocab(head: Sequence[Row], hidden: float) -> int:
    """Columns of the widest product of the head."""
    wide = [
        row.work[2][2] for row in head
        if row.work[0] == _GEMM and row.work[2][1] > 0 and row.work[2][3] == hidden
    ]  # fmt: skip
    return round(float(np.max(wide))) if wide else 0
