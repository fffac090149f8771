"""Model shapes from the products and attention of a layer's forward pass."""

from __future__ import annotations

import pytest

from foretrace.replay.costs.kernel_class import KERNEL_CLASSES
from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.recognise.dimensions import Dimensions, find_dimensions
from foretrace.replay.workload.recognise.rows import Row
from foretrace.traces.errors import LayoutError

TOKENS, SEQ, BATCH = 4096, 1024, 4


def row(kind: str, *sides: float) -> Row:
    work = (KERNEL_CLASSES.index(kind), "bf16", sides, False, False, 0.0, 0.0)
    return Row(kind, Phase.FORWARD, 1000.0, work)


def product(n: int, k: int, batch: int = 1, m: int = TOKENS) -> Row:
    return row("gemm", batch, m, n, k)


def attention(heads: int, dim: int) -> Row:
    return row("attention", BATCH * heads, SEQ, SEQ, dim)


GROUPED = Dimensions(
    hidden=512, heads=8, kv_heads=2, head_dim=64, ffn=1536, gated=True, vocab=8000, seq=SEQ,
    micro_batch=BATCH, dtype="bf16", flash=True,
)  # fmt: skip
HEAD = [product(8000, 512)]


def test_grouped_heads_and_a_gated_mlp_in_fused_products() -> None:
    layer = [product(768, 512), attention(8, 64), product(512, 512), product(3072, 512),
             product(512, 1536)]  # fmt: skip
    assert find_dimensions(layer, HEAD) == GROUPED


def test_the_same_in_products_of_their_own() -> None:
    layer = [product(512, 512), product(128, 512), product(128, 512), attention(8, 64),
             product(512, 512), product(1536, 512), product(1536, 512),
             product(512, 1536)]  # fmt: skip
    assert find_dimensions(layer, HEAD) == GROUPED


def test_attention_as_two_products_around_a_softmax() -> None:
    layer = [product(1536, 512), product(SEQ, 64, BATCH * 8, SEQ), row("softmax", 0, 0, 0, 0),
             product(64, SEQ, BATCH * 8, SEQ), product(512, 512), product(2048, 512),
             product(512, 2048)]  # fmt: skip
    found = find_dimensions(layer, [])
    assert (found.flash, found.gated, found.vocab) == (False, False, 0)
    assert (found.heads, found.kv_heads, found.ffn, found.micro_batch) == (8, 8, 2048, BATCH)


def test_what_is_missing_is_said() -> None:
    layer = [product(1536, 512), attention(8, 64), product(512, 512), product(2048, 512),
             product(512, 2048)]  # fmt: skip
    with pytest.raises(LayoutError, match="no attention with recorded shapes"):
        find_dimensions([r for r in layer if r.name != "attention"], HEAD)
    with pytest.raises(LayoutError, match="record with record_shapes=True"):
        find_dimensions([row("gemm", 0, 0, 0, 0)] * 4, HEAD)
    with pytest.raises(LayoutError, match="0 products before attention"):
        find_dimensions(layer[1:], HEAD)
    wrong = [product(1536, 512), attention(4, 64), *layer[2:]]
    with pytest.raises(LayoutError, match="does not fit 4096 tokens"):
        find_dimensions(wrong, HEAD)
