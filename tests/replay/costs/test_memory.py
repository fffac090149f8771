"""Memory of a training step: hand-computed cases, properties, and the public runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.costs import literal_sets as sets

from foretrace.replay.cluster import load_gpu
from foretrace.replay.costs.memory import (
    BASE_BYTES,
    FRAGMENTATION,
    GIB,
    MARGIN,
    in_flight,
    layer_bytes_per_token,
    stage_memory,
    stage_parameters,
    verdict,
    visible_bytes,
)
from foretrace.replay.costs.memory_events import live_at, read_timeline, summarise
from foretrace.replay.costs.memory_layout import (
    Placement,
    Precision,
    Split,
    Transformer,
    even_layers,
    stages_by_cost,
)
from foretrace.traces.errors import IncompleteTraceError, LayoutError

LLAMA8 = Transformer(
    layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, gated=True
)
SMALL = Transformer(layers=2, hidden=8, heads=2, kv_heads=2, ffn=16, vocab=32)


def test_llama_3_8b_has_8_03_billion_parameters() -> None:
    own = stage_parameters(LLAMA8, Split(seq=1), np.array([32.0]), 0)
    assert own[0] == pytest.approx(8.03e9, rel=1e-3)


def test_a_small_model_by_hand() -> None:
    split = Split(seq=10, micro_batch=1)
    memory = stage_memory(SMALL, split)
    layer = 4 * 8 * 8 + 2 * 8 + 3 * 8 * 16  # projections, norms, MLP
    own = 2 * layer + 2 * 32 * 8
    assert memory.parameters[0] == 2 * own
    assert memory.gradients[0] == (2 + 4) * own
    assert memory.optimizer[0] == 12 * own
    # residuals 2h, norms 2h, q and output 2h, k and v 2h, MLP 4 ffn; 2 bytes each
    kept = 2 * 10 * 2 * (8 * 8 + 4 * 16)
    assert memory.activations[0] == kept
    assert memory.logits[0] == 10 * 32 * 10
    assert memory.buffers[0] == 0
    assert memory.overhead[0] == pytest.approx((FRAGMENTATION - 1) * kept + BASE_BYTES)
    assert memory.peak[0] == pytest.approx(20 * own + FRAGMENTATION * kept + 3200 + BASE_BYTES)


def test_without_flash_attention_it_is_korthikanti_for_scores() -> None:
    split = Split(seq=2048)
    flash = layer_bytes_per_token(LLAMA8, split, Precision())
    plain = layer_bytes_per_token(LLAMA8, split, Precision(flash=False))
    assert plain - flash == 5 * LLAMA8.heads * 2048  # 5 a s bytes a token
    again = layer_bytes_per_token(LLAMA8, split, Precision(flash=False, recompute="selective"))
    assert again == flash


def test_zero_divides_what_it_says() -> None:
    by_stage = [stage_memory(LLAMA8, Split(seq=1, dp=8, zero=z)) for z in range(4)]
    none, one, two, three = by_stage
    assert one.optimizer[0] == none.optimizer[0] / 8
    assert one.gradients[0] == none.gradients[0]
    assert two.gradients[0] == pytest.approx(none.gradients[0] * (2 + 4 / 8) / 6)
    assert two.parameters[0] == none.parameters[0]
    assert three.parameters[0] == none.parameters[0] / 8
    assert three.gradients[0] == none.gradients[0] / 8


def test_micro_batches_in_flight() -> None:
    one = in_flight(Split(seq=1, pp=4, accumulation=16))
    assert one.tolist() == [4, 3, 2, 1]
    assert in_flight(Split(seq=1, pp=4, accumulation=2)).tolist() == [2, 2, 2, 1]
    assert in_flight(Split(seq=1, pp=4, accumulation=9, schedule="gpipe")).tolist() == [9] * 4
    two = in_flight(Split(seq=1, pp=4, accumulation=16, virtual=2))
    assert two[0] == (2 * 3 + 4 + 1) / 2  # eleven chunks of half a stage
    assert two[3] == (0 + 4 + 1) / 2


def test_gathered_inputs_that_stay() -> None:
    """By hand: 2 x 4096 elements of 2 bytes a token and layer, less this rank's eighth."""
    plain = Split(seq=1024, tp=8, pp=1, accumulation=8)
    kept = replace(plain, regather=False)
    byte = 2 * 2 * 4096 * 7 / 8
    more = stage_memory(LLAMA8, kept).activations - stage_memory(LLAMA8, plain).activations
    assert more[0] == pytest.approx(byte * 1024 * 32)
    wide = stage_memory(LLAMA8, replace(kept, pp=4)).activations
    wide = wide - stage_memory(LLAMA8, replace(plain, pp=4)).activations
    assert wide == pytest.approx(np.array([2, 1, 0, 0]) * byte * 1024 * 8)


def test_placement_by_cost_closes_with_the_block_that_passes_the_share() -> None:
    assert stages_by_cost([0, 1, 1, 1, 1, 0], 2).tolist() == [0, 0, 0, 0, 1, 1]
    assert stages_by_cost([0, *[1] * 16, 0, 4, 0, 0], 8).tolist() == [
        0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5, 5, 6, 6, 7, 7,
    ]  # fmt: skip
    assert even_layers(10, 4) == [3, 3, 2, 2]


def test_logits_where_head_and_loss_part() -> None:
    split = Split(seq=4, pp=2, accumulation=8)
    apart = stage_memory(SMALL, split, placement=Placement((1, 1), 0, 1)).logits
    assert apart.tolist() == [4 * 32 * 2 * 2, 4 * 32 * 10]


@given(
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.integers(0, 3),
    st.sampled_from([1, 2, 8]), st.integers(1, 4), st.booleans(),
)  # fmt: skip
def test_more_ranks_never_hold_more_each(
    tp: int, pp: int, zero: int, dp: int, micro: int, regather: bool
) -> None:
    split = Split(
        seq=512, tp=tp, pp=pp, dp=dp, zero=zero, micro_batch=micro, accumulation=8,
        regather=regather,
    )  # fmt: skip
    memory = stage_memory(LLAMA8, split)
    for term in ("parameters", "gradients", "optimizer"):
        now = getattr(memory, term).max()
        wider = stage_memory(LLAMA8, replace(split, dp=2 * dp))
        assert getattr(wider, term).max() <= now
        assert getattr(stage_memory(LLAMA8, replace(split, tp=2 * tp)), term).max() <= now
    bigger = stage_memory(LLAMA8, replace(split, micro_batch=micro + 1))
    assert bigger.peak.max() > memory.peak.max()
    full = stage_memory(LLAMA8, split, Precision(recompute="full"))
    assert full.peak.max() <= memory.peak.max() + 1


def test_experts_split_over_their_ranks() -> None:
    moe = replace(LLAMA8, experts=8, topk=2)
    alone = stage_parameters(moe, Split(seq=1), np.array([32.0]), 0)[0]
    spread = stage_parameters(moe, Split(seq=1, ep=8, dp=8), np.array([32.0]), 0)[0]
    assert alone - spread == pytest.approx(7 * 32 * moe.mlp_parameters)


def test_verdict_names_the_worst_stage() -> None:
    memory = stage_memory(LLAMA8, Split(seq=8192, pp=4, accumulation=8))
    answer = verdict(memory, visible_bytes(load_gpu("h100")))
    assert answer.stage == int(np.argmax(memory.peak))
    assert answer.fits == (memory.peak.max() * (1 + MARGIN) <= answer.limit_bytes)
    assert not verdict(memory, 20 * GIB).fits
    assert visible_bytes(load_gpu("mi325x")) == load_gpu("mi325x").hbm_bytes


def test_layouts_that_cannot_be() -> None:
    with pytest.raises(LayoutError, match="64 pipeline stages for 32 layers"):
        stage_memory(LLAMA8, Split(seq=1, pp=64))
    with pytest.raises(LayoutError, match="32 heads do not split over tp=3"):
        stage_memory(LLAMA8, Split(seq=1, tp=3))
    with pytest.raises(LayoutError, match="expected 2 numbers that sum to 32"):
        stage_memory(LLAMA8, Split(seq=1, pp=2), placement=Placement((16, 15), 1, 1))


def rows() -> list[dict[str, object]]:
    def event(at: int, address: int, size: int, total: int, reserved: int) -> dict[str, object]:
        return {
            "time_ns": at, "thread": 1, "device_type": 1, "device": 0, "address": address,
            "bytes": size, "allocated_bytes": total, "reserved_bytes": reserved,
        }  # fmt: skip

    return [
        event(5, 1, 100, 1100, 2000),
        event(15, 2, 50, 1150, 2000),
        event(20, 1, -100, 1050, 2000),
        event(25, 1, 300, 1350, 2000),
        event(30, 9, -200, 1150, 2000),  # allocated before the recording
        event(40, 2, -50, 1100, 2000),
    ]


def test_a_recorded_peak_and_who_holds_it(tmp_path: Path) -> None:
    events = [
        sets.operator("aten::first", 0, 10, "", ""),
        sets.operator("aten::outer", 11, 20, "", ""),
        sets.operator("aten::inner", 24, 2, "", ""),
    ]
    trace = sets.trace_set(tmp_path / "m.trace", events, memory=rows())
    line = read_timeline(trace, 0)
    assert line.allocated_bytes.tolist() == [1100, 1150, 1050, 1350, 1150, 1100]
    assert line.peak == 3
    found = summarise(trace, 0)
    assert (found.peak_bytes, found.peak_ns, found.start_bytes) == (1350, 25, 1000)
    assert found.holders == (
        ("(before the recording)", 1000), ("aten::inner", 300), ("aten::outer", 50),
    )  # fmt: skip
    assert found.unused_share == pytest.approx(1 - 1350 / 2000)
    assert found.growth_bytes == 100


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=40))
def test_living_blocks_equal_a_dictionary(steps: list[tuple[int, int]]) -> None:
    held: dict[int, tuple[int, int]] = {}
    address, change = [], []
    for position, (block, size) in enumerate(steps):
        address.append(block)
        if block in held:
            change.append(-held.pop(block)[1])
        else:
            held[block] = (position, size)
            change.append(size)
    got = live_at(np.array(address, np.uint64), np.array(change), len(steps) - 1)
    assert got.tolist() == sorted(position for position, _ in held.values())


def test_a_rank_without_memory_events(tmp_path: Path) -> None:
    trace = sets.trace_set(tmp_path / "n.trace", [sets.launch(0, 1)])
    with pytest.raises(IncompleteTraceError, match="rank 0: no memory events"):
        read_timeline(trace, 0)


def test_public_runs(shared_data: Path) -> None:
    """The benchmark's numbers do not get worse than they were when written down."""
    import importlib.util

    path = Path(__file__).resolve().parents[3] / "benchmarks" / "memory_verdict.py"
    spec = importlib.util.spec_from_file_location("memory_verdict", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    runs = benchmark.predict(benchmark.load(shared_data / "validation"))
    told = runs[runs["mem_gib"].notna() & ~runs["fit"]]
    assert (told["first"] / told["mem_gib"] - 1).abs().median() < 0.07
    limit = (visible_bytes(load_gpu("h100")) - 3 * GIB) / GIB / 1.05
    found, crashed = runs["worst"] > limit, runs["status"] != "ok"
    assert (found[crashed].mean() + (~found[~crashed]).mean()) / 2 > 0.92
