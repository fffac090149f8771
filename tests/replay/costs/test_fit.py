"""Calibration: known parameters are found again, and files come back as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from foretrace.replay.cluster import load_cluster
from foretrace.replay.costs.collectives.cost import Collectives, collective_costs, take
from foretrace.replay.costs.collectives.fit import beyond_measured, fit_machine, fitted_costs
from foretrace.replay.costs.collectives.fit_file import read_fit, write_fit
from foretrace.replay.costs.collectives.shared import DEFAULT
from foretrace.traces.errors import LayoutError

H100 = load_cluster("h100-8x400g")
SIZES = 2.0 ** np.arange(8, 33, 1.0)


def measured(
    nodes: tuple[int, ...], overhead: float = 4.0, rate: float = 0.8, cap: float = 1.0
) -> tuple:
    """All-reduces of a machine whose parameters are known."""
    grid = [(s, n) for n in nodes for s in SIZES]
    ops = Collectives.of(0, [s for s, _ in grid], [8 * n for _, n in grid], [n for _, n in grid])
    shared = replace(DEFAULT, hop_us={"rdma": 11.0}, ll_hop_us={"rdma": 15.0}, ll_cap=cap)
    parts = collective_costs(ops, H100, shared).parts
    time = parts.latency + overhead + parts.hops + parts.protocol
    return ops, time + (parts.wire + parts.pipeline) / rate


def test_known_parameters_are_found() -> None:
    ops, time = measured((2, 4, 8))
    scope = fit_machine(ops, time, H100).scopes["several nodes"]
    assert scope.overhead_us == pytest.approx(4.0, abs=1.5)
    assert scope.hop_us == pytest.approx(11.0, abs=0.7)
    assert scope.rate == pytest.approx(0.8, rel=0.02)
    assert scope.ll_hop_us == pytest.approx(15.0, rel=0.1)
    assert scope.ll_cap == 1.0
    assert scope.median_error < 0.01


def test_one_hop_count_leaves_the_hop_at_its_default() -> None:
    ops, time = measured((2,))
    scope = fit_machine(ops, time, H100).scopes["several nodes"]
    assert scope.hop_us == DEFAULT.hop_us["rdma"]
    assert scope.overhead_us == pytest.approx(4 + 2 * (11 - DEFAULT.hop_us["rdma"]), abs=2)


def test_structure_carries_the_fit_to_larger_scale() -> None:
    ops, time = measured((2, 4))
    many, truth = measured((32,))
    fit = fit_machine(ops, time, H100)
    made = fitted_costs(many, H100, fit).time_us
    assert np.abs(made / truth - 1).max() < 0.05
    assert beyond_measured(many, fit).all()
    assert not beyond_measured(ops, fit).any()


def test_an_odd_point_is_followed_near_it_and_not_far_away() -> None:
    ops, time = measured((2, 4))
    odd = time.copy()
    place = int(np.flatnonzero((ops.size_bytes == 2**20) & (ops.nodes == 2))[0])
    odd[place] *= 5
    fit = fit_machine(ops, odd, H100)
    made = fitted_costs(ops, H100, fit).time_us
    assert made[place] > 2 * time[place]
    far = np.abs(np.log2(ops.size_bytes / 2**20)) > 5
    assert np.abs(made[far] / time[far] - 1).max() < 0.1


def test_a_fabric_unlike_the_model_is_named() -> None:
    ops, time = measured((2, 4))
    assert fit_machine(ops, time, H100).warnings == []
    band = (ops.size_bytes >= 65536) & (ops.size_bytes < 2**20)
    odd = time * np.where(band, np.where(np.arange(len(time)) % 2, 6.0, 1.0), 1.0)
    warnings = fit_machine(ops, odd, H100).warnings
    assert any("several nodes, 64 KB-1 MB" in w and "unlike" in w for w in warnings)


def test_slower_times_do_not_change_the_choice() -> None:
    ops, time = measured((2, 4))
    fit = fit_machine(ops, time * 3, H100)
    plain, fitted = collective_costs(ops, H100), fitted_costs(ops, H100, fit)
    assert np.array_equal(plain.pick, fitted.pick)
    assert fitted.parts.total() == pytest.approx(fitted.time_us)


def test_a_library_that_leaves_ll_earlier_is_found() -> None:
    """Its measurements show where LL gives way; the fit then chooses as it does at any scale."""
    ops, time = measured((2, 4), cap=0.5)
    fit = fit_machine(ops, time, H100)
    assert fit.scopes["several nodes"].ll_cap < 0.8
    many, _ = measured((8,), cap=0.5)
    truth = collective_costs(many, H100, replace(DEFAULT, ll_cap=0.5)).pick
    wrong = (collective_costs(many, H100).pick != truth).sum()
    assert (fitted_costs(many, H100, fit).pick != truth).sum() < wrong


def test_file_round_trip(tmp_path: Path) -> None:
    fit = fit_machine(*measured((1, 2)), H100)
    path = tmp_path / "fit.json"
    write_fit(fit, path)
    assert read_fit(path) == fit
    assert [p.name for p in tmp_path.iterdir()] == ["fit.json"]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": "x"}'])
def test_wrong_files(tmp_path: Path, content: str) -> None:
    path = tmp_path / "fit.json"
    path.write_text(content)
    with pytest.raises(LayoutError, match="not a fit written by"):
        read_fit(path)


def test_newer_files_and_too_few_rows(tmp_path: Path) -> None:
    ops, time = measured((1,))
    newer = msgspec.structs.replace(fit_machine(ops, time, H100), format=99)
    write_fit(newer, tmp_path / "fit.json")
    with pytest.raises(LayoutError, match="form 99"):
        read_fit(tmp_path / "fit.json")
    with pytest.raises(LayoutError, match="at least 4 measurements"):
        fit_machine(take(ops, np.arange(3)), time[:3], H100)
