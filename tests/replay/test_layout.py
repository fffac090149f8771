"""Layouts: groups against coordinates written out, and one clear error for what cannot be."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.replay.layout import (
    GROUP_KINDS,
    Layout,
    check_layout,
    group_of,
    group_size,
    stage_layers,
)
from foretrace.replay.model import load_model, model_names
from foretrace.traces.errors import LayoutError

small = st.sampled_from([1, 2, 3, 4])


def members(layout: Layout, kind: str) -> set[tuple[int, ...]]:
    group = group_of(layout, kind)
    return {tuple(np.flatnonzero(group == g).tolist()) for g in np.unique(group)}


@given(tp=small, cp=small, dp=small, pp=small)
def test_groups_are_those_of_the_coordinates(tp: int, cp: int, dp: int, pp: int) -> None:
    layout = Layout(seq=12, global_batch=12, tp=tp, cp=cp, dp=dp, pp=pp)
    grid = np.arange(tp * cp * dp * pp).reshape(pp, dp, cp, tp)
    wanted = {
        "tp": {tuple(grid[p, d, c]) for p, d, c in np.ndindex(pp, dp, cp)},
        "cp": {tuple(grid[p, d, :, t]) for p, d, t in np.ndindex(pp, dp, tp)},
        "dp": {tuple(grid[p, :, :, t].reshape(-1)) for p, t in np.ndindex(pp, tp)},
        "pp": {tuple(grid[:, d, c, t]) for d, c, t in np.ndindex(dp, cp, tp)},
    }
    for kind, groups in wanted.items():
        assert members(layout, kind) == groups
        assert {len(g) for g in groups} == {group_size(layout, kind)}


def test_experts_fold_over_tensor_and_data_ranks() -> None:
    layout = Layout(seq=8, global_batch=8, tp=4, dp=4, ep=8)
    assert members(layout, "ep") == {tuple(range(8)), tuple(range(8, 16))}
    assert members(layout, "edp") == {(k, k + 8) for k in range(8)}
    layout = Layout(seq=8, global_batch=8, tp=4, dp=4, ep=4, etp=2)
    assert (0, 2, 4, 6) in members(layout, "ep")
    assert (0, 1) in members(layout, "etp")
    assert (0, 8) in members(layout, "edp")


def test_shards_and_their_copies() -> None:
    layout = Layout(seq=8, global_batch=8, tp=2, dp=4, zero=3, shard=2)
    assert members(layout, "shard") == {(0, 2), (4, 6), (1, 3), (5, 7)}
    assert members(layout, "replica") == {(0, 4), (2, 6), (1, 5), (3, 7)}


@given(
    tp=small, cp=small, dp=small, pp=small,
    ep=st.sampled_from([1, 2, 4, 8]), etp=st.sampled_from([1, 2]),
)  # fmt: skip
def test_every_kind_cuts_the_ranks_into_groups_of_one_size(
    tp: int, cp: int, dp: int, pp: int, ep: int, etp: int
) -> None:
    layout = Layout(seq=24, global_batch=24, tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp)
    if layout.stage_ranks % (ep * etp):
        return
    for kind in GROUP_KINDS:
        count = np.bincount(group_of(layout, kind))
        assert (count == group_size(layout, kind)).all()
        assert count.sum() == layout.gpus


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tp": 3}, "tp=3 does not divide heads=64; the nearest that does is 2"),
        ({"tp": 0}, "tp=0: must be at least 1"),
        ({"cp": 3}, "cp=3 does not divide seq=8192"),
        ({"dp": 3}, "does not divide global_batch=64"),
        ({"ep": 2}, "llama3-70b has no experts"),
        ({"pp": 96}, "96 pipeline stages"),
        ({"pp": 2, "layers": (40, 41)}, "sum to 80"),
        ({"dp": 4, "shard": 3}, "shard=3 does not divide dp x cp=4"),
        ({"tp": 16, "context": "ulysses", "cp": 8}, "tensor-parallel rank=4"),
    ],
)
def test_layouts_that_cannot_be(change: dict[str, Any], text: str) -> None:
    layout = Layout(**{"seq": 8192, "global_batch": 64, **change})
    with pytest.raises(LayoutError, match=text):
        check_layout(load_model("llama3-70b"), layout)


def test_layers_are_spread_evenly_unless_said() -> None:
    model = load_model("llama3-405b")
    assert stage_layers(model, Layout(seq=8, global_batch=8, pp=4)) == (32, 32, 31, 31)
    assert stage_layers(model, Layout(seq=8, global_batch=8, pp=2, layers=(64, 62))) == (64, 62)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt3-175b", 175), ("llama2-7b", 6.74), ("llama3-8b", 8.03), ("llama3-70b", 70.6),
     ("llama3-405b", 405.9), ("mixtral-8x7b", 46.7), ("gpt-1t", 1008)],
)  # fmt: skip
def test_bundled_models_have_their_published_size(name: str, billions: float) -> None:
    model = load_model(name)
    shape = model.transformer()
    both = 1 if model.tied else 2
    count = shape.layers * shape.layer_parameters + both * shape.embedding_parameters
    assert abs(count / (billions * 1e9) - 1) < 0.01


def test_every_bundled_model_loads_and_names_its_source() -> None:
    assert all(load_model(name).source for name in model_names())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers = 2\n", "missing required field"),
        ("layers = 2\nhidden = 8\nheads = 3\nffn = 8\nvocab = 9\n", "does not split over 3 heads"),
        ("layers = 0\nhidden = 8\nheads = 2\nffn = 8\nvocab = 9\n", "layers must be positive"),
        ("layers == 2", "not a TOML file"),
        ("layers = 2\nhidden = 8\nheads = 4\nkv_heads = 3\nffn = 8\nvocab = 9\n", "do not share"),
    ],
)
def test_model_files_that_are_none(tmp_path: Any, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(LayoutError, match=message):
        load_model(path)
    with pytest.raises(LayoutError, match="did you mean 'llama3-70b'"):
        load_model("lama3-70b")


def test_coordinates_follow_the_documented_order() -> None:
    layout = Layout(seq=8, global_batch=8, tp=2, cp=2, dp=2, pp=2)
    for rank, (pp, dp, cp, tp) in enumerate(itertools.product(range(2), repeat=4)):
        assert rank == ((pp * 2 + dp) * 2 + cp) * 2 + tp
        assert group_of(layout, "dp")[rank] == pp * 2 + tp
