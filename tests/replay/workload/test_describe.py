"""Workloads from descriptions: their work against the closed form that MFU uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foretrace.replay.costs.kernel_class import KERNEL_CLASSES
from foretrace.replay.layout import GROUP_KINDS, Layout
from foretrace.replay.model import load_model
from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.describe import describe, step_flops
from foretrace.replay.workload.operations import Block, Workload
from foretrace.traces.schema import COLLECTIVE_KINDS

LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("gpt3-175b", {"tp": 8, "pp": 4}),
    ("llama3-8b", {"dp": 4}),
    ("llama3-70b", {"tp": 8, "cp": 2, "dp": 2}),
    ("llama3-70b", {"tp": 4, "cp": 2, "context": "ulysses"}),
    ("mixtral-8x7b", {"tp": 2, "dp": 4, "ep": 8}),
    ("mixtral-8x7b", {"tp": 4, "dp": 2, "ep": 2, "etp": 4}),
    ("deepseek-v3", {"dp": 8, "ep": 8}),
]


def block_flops(block: Block, phases: tuple[Phase, ...], kind: str) -> float:
    ops = block.operations
    rows = np.isin(ops.phase, phases) & (ops.work.kind == KERNEL_CLASSES.index(kind))
    return float(ops.work.flops[rows].sum())


def job_flops(work: Workload, layout: Layout, phases: tuple[Phase, ...], kind: str) -> float:
    """All ranks of all stages, all micro-batches."""
    each = sum(block_flops(work.blocks[b], phases, kind) for b in work.sequence)
    return each * layout.stage_ranks * layout.micro_batches


@pytest.mark.parametrize(("name", "change"), LAYOUTS)
def test_work_of_all_ranks_is_the_models(name: str, change: dict[str, Any]) -> None:
    model = load_model(name)
    layout = Layout(seq=4096, global_batch=32, **change)
    work = describe(model, layout)
    forward = job_flops(work, layout, (Phase.FORWARD,), "gemm")
    backward = job_flops(work, layout, (Phase.INPUT, Phase.WEIGHT), "gemm")
    square = 6 * layout.seq * model.heads * (model.width + model.value_width) * model.layers
    products = step_flops(model, layout.seq, layout.global_batch) - square * work.tokens
    if model.kv >= layout.tp:
        assert forward == pytest.approx(products / 3, rel=1e-9)
        assert backward == pytest.approx(products * 2 / 3, rel=1e-9)
    attention = job_flops(work, layout, (Phase.FORWARD,), "attention")
    half = 2 * layout.seq * model.heads * model.width * model.layers * work.tokens
    assert attention == pytest.approx(half, rel=1e-9)


def communicated(block: Block, phases: tuple[Phase, ...]) -> dict[tuple[str, str], list[int]]:
    ops, found = block.operations, {}
    for row in np.flatnonzero(np.isin(ops.phase, phases) & (ops.collective >= 0)):
        key = (COLLECTIVE_KINDS[ops.collective[row]], GROUP_KINDS[ops.group[row]])
        found.setdefault(key, []).append(int(ops.bytes[row]))
    return found


def test_tensor_parallel_communication() -> None:
    """Forward: a gather and a scatter for each half; backward: two gathers and a scatter."""
    layout = Layout(seq=2048, global_batch=4, tp=8)
    layer = describe(load_model("gpt3-175b"), layout).blocks[1]
    stream = 2048 * 12288 * 2
    assert communicated(layer, (Phase.FORWARD,)) == {
        ("all_gather", "tp"): [stream] * 2, ("reduce_scatter", "tp"): [stream] * 2,
    }  # fmt: skip
    assert communicated(layer, (Phase.INPUT, Phase.WEIGHT)) == {
        ("all_gather", "tp"): [stream] * 4, ("reduce_scatter", "tp"): [stream] * 2,
    }  # fmt: skip
    plain = Layout(seq=2048, global_batch=4, tp=8, sequence_parallel=False)
    layer = describe(load_model("gpt3-175b"), plain).blocks[1]
    assert communicated(layer, (Phase.FORWARD,)) == {("all_reduce", "tp"): [stream] * 2}
    both = communicated(layer, (Phase.INPUT, Phase.WEIGHT))
    assert both == {("all_reduce", "tp"): [stream] * 2}


def test_experts_send_each_token_once_for_each_of_its_experts() -> None:
    layout = Layout(seq=4096, global_batch=64, tp=2, dp=8, ep=8)
    block = describe(load_model("mixtral-8x7b"), layout).blocks[1]
    own = 4096 // 2 * 2 * 4096 * 2  # tokens of the rank, two experts each, hidden, bytes
    assert communicated(block, (Phase.FORWARD,))["all_to_all", "ep"] == [own] * 2
    assert communicated(block, (Phase.INPUT, Phase.WEIGHT))["all_to_all", "ep"] == [own] * 2


def test_full_recomputation_runs_the_forward_again() -> None:
    model = load_model("llama3-8b")
    plain = describe(model, Layout(seq=4096, global_batch=8)).blocks[1]
    again = describe(model, Layout(seq=4096, global_batch=8, recompute="full")).blocks[1]
    back = (Phase.INPUT, Phase.WEIGHT)
    for kind in ("gemm", "attention"):
        more = block_flops(again, back, kind) - block_flops(plain, back, kind)
        assert more == block_flops(plain, (Phase.FORWARD,), kind)


@pytest.mark.parametrize(
    ("name", "billions"), [("mixtral-8x7b", 46.7), ("deepseek-v3", 671), ("llama3-405b", 405.9)]
)
def test_blocks_hold_the_models_parameters(name: str, billions: float) -> None:
    work = describe(load_model(name), Layout(seq=4096, global_batch=8))
    count = sum(work.blocks[b].parameters + work.blocks[b].expert_parameters for b in work.sequence)
    assert abs(count / (billions * 1e9) - 1) < 0.01
