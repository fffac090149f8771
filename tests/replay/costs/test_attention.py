"""Fused attention: blocks counted by loops, and properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.replay.cluster import load_gpu
from foretrace.replay.costs.attention import (
    _mean_key_blocks,
    attention_flops,
    attention_seconds,
)

GPU = load_gpu("a100")
lengths = st.integers(1, 5000)


def test_flops_counted_one_by_one() -> None:
    for q, kv in ((5, 5), (3, 8)):
        pairs = sum(1 for i in range(q) for j in range(kv) if j <= i + kv - q)
        assert attention_flops(2, q, kv, 64, True) == 4 * 2 * 64 * pairs
        assert attention_flops(2, q, kv, 64, False) == 4 * 2 * 64 * q * kv


@given(lengths, lengths)
def test_visible_blocks_counted_one_by_one(q: int, kv: int) -> None:
    rows, cols = -(-q // 128), -(-kv // 128)
    seen = [min(max(cols - rows + i + 1, 0), cols) for i in range(rows)]
    if rows <= cols:
        expected = max(sum(seen) / rows, 1.0)
        got = _mean_key_blocks(np.array([q * 1.0]), np.array([kv * 1.0]), np.array([True]))
        assert got[0] == pytest.approx(expected)


@given(st.integers(1, 200), lengths, st.sampled_from([32, 64, 128]))
def test_causal_is_cheaper_backward_dearer_and_longer_never_cheaper(b: int, q: int, d: int) -> None:
    full = attention_seconds(b, q, q, d, False, gpu=GPU)[0]
    causal = attention_seconds(b, q, q, d, True, gpu=GPU)[0]
    back = attention_seconds(b, q, q, d, False, backward=True, gpu=GPU)[0]
    longer = attention_seconds(b, q, q + 128, d, False, gpu=GPU)[0]
    assert causal <= full * (1 + 1e-12)
    assert back > full
    assert longer >= full * (1 - 1e-12)


def test_long_sequences_reach_the_published_share() -> None:
    seconds = attention_seconds(64, 65536, 65536, 128, False, gpu=GPU)[0]
    rate = attention_flops(64, 65536, 65536, 128, False) / seconds
    assert rate / 312e12 == pytest.approx(0.73, rel=0.02)


def test_arrays() -> None:
    got = attention_seconds(8, np.array([512, 1024]), np.array([512, 1024]), 64, True, gpu=GPU)
    assert got.shape == (2,)
    assert got[1] > got[0]
