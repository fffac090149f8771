"""Work beside the model's own: recomputation, rounding, steps that nothing fuses, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foretrace.replay.costs.kernel_class import KERNEL_CLASSES
from foretrace.replay.layout import Layout
from foretrace.replay.model import load_model
from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.describe import describe
from foretrace.replay.workload.operations import Block

LLAMA = load_model("llama3-8b")


def layer(**layout: Any) -> Block:
    split = Layout(**{"seq": 4096, "global_batch": 8, **layout})
    work = describe(LLAMA, split)
    (block,) = [b for b in work.blocks if b.name == "layer"]
    return block


def flops(block: Block, kind: str, *phases: Phase) -> float:
    ops = block.operations
    rows = np.isin(ops.phase, phases) & (ops.work.kind == KERNEL_CLASSES.index(kind))
    return float(ops.work.flops[rows].sum())


def moved(block: Block, *words: str) -> float:
    ops = block.operations
    rows = [row for row, name in enumerate(ops.name) if any(word in name for word in words)]
    return float(ops.work.bytes[rows].sum())


def test_recomputed_operations_are_keys_output_and_one_of_gate_and_value() -> None:
    plain, again = layer(), layer(recompute="operations")
    backward = (Phase.INPUT, Phase.WEIGHT)
    extra = flops(again, "gemm", *backward) - flops(plain, "gemm", *backward)
    keys = LLAMA.kv * LLAMA.width
    per_token = 2 * LLAMA.hidden * (keys + LLAMA.hidden + LLAMA.ffn)
    assert extra == pytest.approx(4096 * per_token)
    assert flops(again, "attention", *backward) == flops(plain, "attention", *backward)


def test_eight_bits_are_rounded_by_kernels_of_their_own() -> None:
    wide, narrow = layer(), layer(precision="fp8")
    assert moved(wide, "cast") == 0
    inputs = LLAMA.hidden + LLAMA.ffn  # of output projection and last matrix
    queries = LLAMA.hidden + 2 * LLAMA.kv * LLAMA.width
    gradients = 2 * LLAMA.hidden + queries + 2 * LLAMA.ffn
    assert moved(narrow, "cast") == pytest.approx(4096 * 4 * (inputs + gradients))
    assert flops(wide, "gemm", *Phase) == flops(narrow, "gemm", *Phase)


def test_the_head_keeps_sixteen_bits() -> None:
    work = describe(LLAMA, Layout(seq=4096, global_batch=8, precision="fp8"))
    ops = work.blocks[-1].operations
    products = ops.work.kind == KERNEL_CLASSES.index("gemm")
    assert set(ops.work.dtype[products].tolist()) == {"bf16"}


def test_steps_that_nothing_fuses_move_more() -> None:
    one, many = layer(), layer(fused=False)
    assert moved(many, "attention norm") == 9 * moved(one, "attention norm")
    assert moved(many, "rotary") == 5 * moved(one, "rotary")
    assert moved(many, "activation") == pytest.approx(5 / 3 * moved(one, "activation"))
    assert flops(one, "gemm", *Phase) == flops(many, "gemm", *Phase)


@pytest.mark.parametrize(("batch", "times"), [(1, 0), (8, 1)])
def test_gradients_are_added_up_where_there_are_several_micro_batches(
    batch: int, times: int
) -> None:
    block = layer(global_batch=batch, zero=1)
    assert moved(block, "gradients added") == times * block.parameters * (2 + 2 * 4)


def test_sharded_state_is_copied_out_of_and_into_buffers() -> None:
    block = layer(zero=3, dp=8, accumulate_bytes=2)
    assert moved(block, "copied") == block.parameters * (4 + 4 + 2 + 2)


def test_a_hidden_scatter_stands_beside_its_product() -> None:
    ops = layer(tp=8, overlap_tensor=True).operations
    rows = [k for k, name in enumerate(ops.name) if name in ("attention scatter", "mlp scatter")]
    assert ops.beside[rows].all()
    assert {ops.name[k - 1] for k in rows} == {"attention output", "mlp down"}
    assert not layer(tp=8).operations.beside[rows].any()
