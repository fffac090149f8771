"""Slowdown beside communication: hand-counted waves, pairs of a literal trace, fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.costs import literal_sets as sets

from foretrace.replay.cluster import load_gpu
from foretrace.replay.costs.interference import (
    DEFAULT,
    Interference,
    Load,
    joining_share,
    overlapped_time,
    slowdown,
)
from foretrace.replay.costs.interference_fit import fit, held_out, median_error
from foretrace.replay.costs.interference_pairs import Pairs, find_pairs, join, read_pairs
from foretrace.replay.costs.kernel_table import read_kernels

A100, H100 = load_gpu("a100"), load_gpu("h100")


def load(
    blocks: float, channels: float, *, matrix: bool, bus: float = 0.0, alone: float = 1e5,
    threads: float = 128,
) -> Load:  # fmt: skip
    one = np.ones(1)
    return Load(
        alone * one, blocks * one, threads * one, channels * one, bus * one, np.array([matrix])
    )


@pytest.mark.parametrize(
    ("blocks", "channels", "expected"),
    [
        (132, 24, 2.0),  # one full wave becomes two
        (108, 24, 1.0),  # still one wave on the 108 left
        (264, 24, 1.5),  # two waves become three
        (1, 131, 1.0),
    ],
)
def test_waves_counted_by_hand(blocks: float, channels: float, expected: float) -> None:
    bare = replace(DEFAULT, epsilon=0.0)
    got = slowdown(load(blocks, channels, matrix=True), H100, bare)
    assert got[0] == pytest.approx(expected)


def test_memory_share_by_hand() -> None:
    # f = 2.5 * 200e9 / 2039e9; 100 µs at full rate move 203.9 MB, cache 40 MB.
    share, cached = 2.5 * 200e9 / 2039e9, 40e6 / (100e-6 * 2039e9)
    expected = (1 + 3.3 * share * cached) / (1 - share)
    got = slowdown(load(5000, 1, matrix=False, bus=200e9), A100)
    assert got[0] == pytest.approx(expected)


def test_registers_decide_what_joins_a_collective() -> None:
    assert joining_share(128) == 2 / 16  # two blocks of 128 threads of sixteen
    assert joining_share(1024) == 0
    assert joining_share(32) == 8 / 64


@given(
    st.integers(1, 5000), st.integers(1, 100), st.floats(0, 1e12), st.booleans(),
    st.floats(1e4, 1e8),
)  # fmt: skip
def test_never_faster_and_no_channels_no_slowdown(
    blocks: int, channels: int, bus: float, matrix: bool, alone: float
) -> None:
    beside = load(blocks, channels, matrix=matrix, bus=bus, alone=alone)
    more = load(blocks, min(channels + 5, 107), matrix=matrix, bus=bus, alone=alone)
    got = slowdown(beside, A100)[0]
    assert got >= 1
    if channels + 5 <= 107:
        assert slowdown(more, A100)[0] >= got * (1 - 1e-12)
    assert slowdown(load(blocks, 0, matrix=matrix), A100)[0] == 1


@given(st.floats(1, 1e6), st.floats(0, 1e7), st.floats(1, 5))
def test_partly_overlapped_work_is_conserved(alone: float, window: float, factor: float) -> None:
    total = float(overlapped_time(alone, window, factor))
    inside = min(total, window)
    assert inside / factor + (total - inside) == pytest.approx(alone)
    assert alone * (1 - 1e-12) <= total <= alone * factor * (1 + 1e-12)


def trace(tmp_path: Path) -> object:
    """A product three times alone and once wholly beside a collective of 24 blocks."""
    gemm = "ampere_bf16_s16816gemm_bf16_128x128_tn"
    grid = {"grid": "[108, 1, 1]"}
    rows = [sets.kernel(gemm, at, 20_000, **grid) for at in (0, 30_000, 60_000)]
    rows += [sets.kernel(gemm, 110_000, 40_000, **grid)]
    rows += [
        sets.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100_000, 60_000, stream=9,
                    grid="[24, 1, 1]", block="[544, 1, 1]")
    ]  # fmt: skip
    work = sorted(r["start_ns"] for r in rows).index(100_000)
    operation = {
        "kind": "all_reduce", "work_event": work, "bytes_in": 6_000_000, "bytes_out": 6_000_000,
        "group_size": 4, "p2p": False, "in_splits": [], "out_splits": [],
    }  # fmt: skip
    return sets.trace_set(tmp_path / "i.trace", rows, collectives=[operation])


def test_pairs_of_a_literal_trace(tmp_path: Path) -> None:
    pairs = read_pairs(trace(tmp_path), 0)  # type: ignore[arg-type]
    assert len(pairs) == 1
    assert pairs.measured[0] == pytest.approx(2.0)
    assert pairs.load.channels[0] == 24
    assert pairs.load.bus_bytes_per_s[0] == pytest.approx(2 * 0.75 * 6e6 / 60e-6)
    assert pairs.load.matrix[0]
    assert slowdown(pairs.load, A100)[0] == pytest.approx(2.0 * 1.03)


def test_kernels_partly_under_communication_are_no_pairs(tmp_path: Path) -> None:
    table = read_kernels(trace(tmp_path), 0)  # type: ignore[arg-type]
    shifted = table.end_ns.copy()
    shifted[-2:] = [130_000, 130_000]
    moved = type(table)(**{
        f: getattr(table, f) if f != "end_ns" else shifted for f in type(table).__slots__
    })  # fmt: skip
    assert len(find_pairs(moved, np.zeros(5))) <= 1


def synthetic(truth: Interference, rng: np.random.Generator, n: int = 120) -> Pairs:
    matrix = np.arange(n) % 2 == 0
    beside = Load(
        rng.uniform(2e4, 1e6, n), rng.integers(20, 3000, n).astype(float), np.full(n, 128.0),
        rng.integers(4, 32, n).astype(float), rng.uniform(0, 200e9, n), matrix,
    )  # fmt: skip
    noise = np.exp(rng.normal(0, 0.01, n))
    return Pairs(np.arange(n), np.arange(n) // 2, beside, slowdown(beside, A100, truth) * noise)


def test_a_fit_is_used_where_it_helps_and_only_there() -> None:
    rng = np.random.default_rng(2)
    other = fit(synthetic(Interference(kappa=5.0, lam=8.0, beta=1.0, epsilon=0.2), rng), A100)
    assert other.matrix.used
    assert other.memory.used
    assert other.model.epsilon == pytest.approx(0.2, abs=0.02)
    assert other.model.origin == "fitted"
    assert other.memory.held_out_error < other.memory.default_error
    few = synthetic(Interference(epsilon=0.5), rng, n=8)
    assert fit(few, A100).model == DEFAULT


def test_folds_never_see_their_own_kernel() -> None:
    rng = np.random.default_rng(3)
    pairs = synthetic(DEFAULT, rng)
    mine = pairs.only(pairs.load.matrix)
    lone = mine.identity == mine.identity[0]
    spoiled = Pairs(mine.event, mine.identity, mine.load, np.where(lone, 100.0, mine.measured))
    assert np.allclose(
        held_out(spoiled, A100, DEFAULT, matrix=True)[lone],
        held_out(mine, A100, DEFAULT, matrix=True)[lone],
    )


def test_joined_ranks_keep_their_kernels_apart() -> None:
    rng = np.random.default_rng(4)
    one = synthetic(DEFAULT, rng, n=10)
    both = join([one, one])
    assert len(both) == 20
    assert len(np.unique(both.identity)) == 2 * len(np.unique(one.identity))


def test_public_traces_beat_both_baselines(shared_data: Path, tmp_path: Path) -> None:
    from foretrace.replay.costs.device import gpu_of_device
    from foretrace.traces.importers import import_paths
    from foretrace.traces.store import TraceSet

    source = shared_data / "traces" / "single-rank" / "liplus-amp-0.json.gz"
    import_paths([str(source)], str(tmp_path / "amp.trace"))
    opened = TraceSet.open(str(tmp_path / "amp.trace"))
    pairs = read_pairs(opened, opened.ranks[0])
    gpu = gpu_of_device(opened.info(opened.ranks[0]).device_name)
    for matrix in (True, False):
        mine = pairs.only(pairs.load.matrix == matrix)
        assert len(mine) > 50
        error = median_error(slowdown(mine.load, gpu), mine.measured)
        assert error < median_error(np.ones(len(mine)), mine.measured)
        assert error < median_error(np.full(len(mine), 1.3), mine.measured)
