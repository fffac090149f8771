"""Matrix products against hand-counted tiles and waves, and properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.replay.cluster import load_gpu
from foretrace.replay.costs.gemm import (
    SPLITS,
    TILES,
    GemmModel,
    block_sparse_gemm_seconds,
    default_model,
    gemm_seconds,
    grouped_gemm_seconds,
    has_peak,
    peak_flops,
)
from foretrace.replay.costs.gemm_fit import fit_gemm
from foretrace.replay.costs.kernel_distinct import distinct_rows
from foretrace.traces.errors import LayoutError

GPU = load_gpu("a100")
BARE = GemmModel(share=1.0, tile_loss=0.0, prologue_k=0.0, fixed_s=0.0, memory_share=1.0)
sides = st.integers(1, 20_000)


def one_by_one(batch: int, m: int, n: int, k: int, model: GemmModel) -> float:
    """The same model as plain loops over tiles and splits."""
    best = float("inf")
    per_sm = peak_flops(GPU, "bf16") / GPU.sms
    for a, b in TILES:
        for s in SPLITS:
            if s > 1 and k / s < 64:
                continue
            blocks = batch * np.ceil(m / a) * np.ceil(n / b) * s
            waves = max(np.ceil(blocks / GPU.sms), 1)
            rate = per_sm * model.share * a * b / (a * b + model.tile_loss * (a + b))
            depth = np.ceil(k / s / 32) * 32 + model.prologue_k
            moved = 2 * batch * (m * k + k * n + m * n) + (8 * s * batch * m * n if s > 1 else 0)
            memory = moved / (GPU.hbm_bytes_per_s * model.memory_share)
            best = min(best, max(waves * 2 * a * b * depth / rate, memory))
    crooked = n % 8 != 0 or k % 8 != 0
    return best * (model.misaligned if crooked else 1.0) + model.fixed_s


@given(st.integers(1, 300), sides, sides, sides)
def test_equals_plain_loops(batch: int, m: int, n: int, k: int) -> None:
    model = default_model(GPU)
    got = gemm_seconds(batch, m, n, k, gpu=GPU, model=model)[0]
    assert got == pytest.approx(one_by_one(batch, m, n, k, model), rel=1e-12)


def test_a_product_of_whole_waves_runs_at_peak() -> None:
    # 108 tiles of 256 x 128 on 108 multiprocessors, deep enough that memory does not matter.
    got = gemm_seconds(1, 256 * 12, 128 * 9, 65536, gpu=GPU, model=BARE)[0]
    flops = 2 * 256 * 12 * 128 * 9 * 65536
    assert got == pytest.approx(flops / 312e12, rel=1e-9)


def test_one_tile_more_than_a_wave_costs_a_second_wave() -> None:
    # Too shallow to split, and no memory limit: only tiles and waves are left.
    free = replace(BARE, memory_share=1e3)
    full = gemm_seconds(1, 256 * 12, 128 * 9, 96, gpu=GPU, model=free)[0]
    more = gemm_seconds(1, 256 * 12, 128 * 9 + 8, 96, gpu=GPU, model=free)[0]
    # 32-wide tiles spread the rest: 96 x 37 of them in 33 waves, a sixteenth of a big one each.
    assert full == pytest.approx(2 * 256 * 128 * 96 / (312e12 / 108))
    assert more == pytest.approx(full * 33 / 32)


@given(st.integers(1, 64), sides, sides, sides)
def test_never_faster_than_the_datasheet(batch: int, m: int, n: int, k: int) -> None:
    got = gemm_seconds(batch, m, n, k, gpu=GPU, model=BARE)[0]
    moved = 2 * batch * (m * k + k * n + m * n)
    assert got >= 2 * batch * m * n * k / 312e12 * (1 - 1e-9)
    assert got >= moved / GPU.hbm_bytes_per_s * (1 - 1e-9)


@given(st.integers(1, 40), st.integers(1, 100), st.integers(1, 100), st.integers(1, 100))
def test_more_work_never_costs_less(batch: int, m: int, n: int, k: int) -> None:
    small = gemm_seconds(batch, 64 * m, 64 * n, 64 * k, gpu=GPU)[0]
    for grown in ((batch + 1, m, n, k), (batch, m + 1, n, k), (batch, m, n + 1, k)):
        b, x, y, z = grown
        assert gemm_seconds(b, 64 * x, 64 * y, 64 * z, gpu=GPU)[0] >= small * (1 - 1e-12)


def test_arrays_repeat_and_broadcast() -> None:
    many = gemm_seconds(1, np.array([512, 1024, 512]), 2048, 4096, gpu=GPU)
    assert many.shape == (3,)
    assert many[0] == many[2]
    assert many[1] == gemm_seconds(1, 1024, 2048, 4096, gpu=GPU)[0]


def test_groups_of_equal_size_cost_a_batched_product() -> None:
    grouped = grouped_gemm_seconds([512] * 16, 2048, 1024, gpu=GPU)
    assert grouped == pytest.approx(gemm_seconds(16, 512, 2048, 1024, gpu=GPU)[0], rel=1e-9)


def test_a_group_pays_whole_tiles_and_empty_groups_pay_nothing() -> None:
    even = grouped_gemm_seconds([4096] * 8, 4096, 4096, gpu=GPU)
    assert grouped_gemm_seconds([4096] * 8 + [0] * 50, 4096, 4096, gpu=GPU) == even
    ragged = grouped_gemm_seconds([4096 * 8 - 7 * 129, *[129] * 7], 4096, 4096, gpu=GPU)
    assert ragged > even
    assert grouped_gemm_seconds([0, 0], 64, 64, gpu=GPU) == 0.0


def test_block_sparse_grows_with_its_blocks() -> None:
    few = block_sparse_gemm_seconds(500, 128, 4096, gpu=GPU)
    many = block_sparse_gemm_seconds(5000, 128, 4096, gpu=GPU)
    assert 5 < many / few < 12


def test_types_without_a_peak() -> None:
    v100 = load_gpu("v100")
    assert peak_flops(v100, "bf16") == v100.flops["fp16"]
    assert not has_peak(v100, "int8")
    with pytest.raises(LayoutError, match="no peak for 'int8'"):
        peak_flops(v100, "int8")


def test_fit_recovers_constants_it_was_given() -> None:
    truth = GemmModel(
        share=0.85,
        tile_loss=20.0,
        prologue_k=150.0,
        fixed_s=2e-6,
        memory_share=0.75,
        misaligned=1.6,
    )
    rng = np.random.default_rng(5)
    shapes = np.stack([
        rng.integers(1, 3, 40), *(64 * rng.integers(1, 80, 40) for _ in range(3))
    ], axis=1).astype(float)  # fmt: skip
    seconds = gemm_seconds(*shapes.T, gpu=GPU, dtype="fp16", model=truth)
    half = np.arange(40) % 2 == 0
    found = fit_gemm(shapes[half], seconds[half], GPU, "fp16")
    again = gemm_seconds(*shapes[~half].T, gpu=GPU, dtype="fp16", model=found)
    assert np.median(np.abs(again / seconds[~half] - 1)) < 0.02


def test_few_shapes_fit_the_share_alone() -> None:
    shapes = np.array([[1.0, 4096, 4096, 4096]])
    slow = gemm_seconds(*shapes.T, gpu=GPU) * 2
    found = fit_gemm(shapes, slow, GPU, "bf16")
    assert found.share == pytest.approx(default_model(GPU).share / 2)
    assert found.tile_loss == default_model(GPU).tile_loss


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_distinct_rows_rebuild_the_matrix(rows: list[tuple[int, int]]) -> None:
    matrix = np.array(rows, np.float64)
    first, kind = distinct_rows(matrix)
    assert len(first) == len(set(rows))
    assert (matrix[first][kind] == matrix).all()
