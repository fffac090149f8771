"""Sweeps over layouts: what is tried, what is left out, what comes first; scaling curves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import msgspec
import pytest
from tests.replay.extrapolate.jobs import H100

from foretrace.replay.extrapolate.candidates import SEARCHED, candidates, choices
from foretrace.replay.extrapolate.predict import memory_verdict, predict
from foretrace.replay.extrapolate.scaling import curve, first_break, path_parts, scaled, sizes
from foretrace.replay.extrapolate.sweep import Outcome, Target, pareto, predicted, sweep
from foretrace.replay.layout import Layout, stage_layers
from foretrace.replay.model import load_model
from foretrace.replay.workload.describe import describe
from foretrace.traces.errors import LayoutError

LLAMA = load_model("llama3-8b")
TARGET = Target(LLAMA, H100)
BASE: dict[str, Any] = {"seq": 4096, "global_batch": 64}


def tried(**changes: Any) -> dict[str, Any]:
    return {**choices(LLAMA, H100, 16, BASE), "micro_batch": (1, 4), "virtual": (1, 2), **changes}


def test_every_layout_is_found_once_and_fits() -> None:
    values = tried()
    found = candidates(LLAMA, H100, 16, BASE, values)
    assert len({msgspec.json.encode(one) for one in found.layouts}) == len(found.layouts)
    for one in found.layouts:
        verdict = memory_verdict(LLAMA, one, stage_layers(LLAMA, one), H100)
        assert one.gpus == 16
        assert verdict is not None
        assert verdict.fits
    # Counted by hand: all combinations that use 16 GPUs are predicted, pruned or invalid.
    whole = 0
    for combination in product(*(values[name] for name in SEARCHED)):
        one = dict(zip(SEARCHED, combination, strict=True))
        rest = 16 % (one["tp"] * one["cp"] * one["pp"]) == 0
        whole += rest and (one["pp"] > 1 or one["virtual"] == 1)
    assert len(found.layouts) + sum(found.pruned.values()) + found.invalid == whole
    assert found.pruned


def test_the_best_comes_first_and_is_what_predict_says() -> None:
    layouts = candidates(LLAMA, H100, 16, BASE, tried(zero=(1,), recompute=("none",))).layouts[:12]
    outcomes = sweep(TARGET, layouts, jobs=1)
    steps = [one.step_ns for one in outcomes]
    assert steps == sorted(steps)
    best = outcomes[0]
    alone = predict(LLAMA, describe(LLAMA, best.layout), best.layout, H100)
    assert alone.step_ns == best.step_ns
    assert alone.account.exposed_ns == pytest.approx(best.exposed_ns, abs=1)


def test_an_executor_gives_the_same_and_tells_how_far_it_is() -> None:
    layouts = candidates(LLAMA, H100, 16, BASE, tried(zero=(1,), recompute=("none",))).layouts[:20]
    told: list[tuple[int, int]] = []
    with ThreadPoolExecutor(2) as pool:
        spread = sweep(TARGET, layouts, executor=pool, watch=lambda *now: told.append(now))
    assert spread == sweep(TARGET, layouts, jobs=1)
    assert told[-1] == (20, 20)


def test_nobody_beats_the_front() -> None:
    places = [(3.0, 10.0), (1.0, 30.0), (2.0, 20.0), (2.0, 25.0), (4.0, 10.0), (1.5, 40.0)]
    outcomes = [
        Outcome(Layout(seq=1, global_batch=1), t, 0.0, 0.0, 0.0, 0.0, {}, 0.0, m) for t, m in places
    ]
    assert [(o.step_ns, o.memory_bytes) for o in pareto(outcomes)] == [(1, 30), (2, 20), (3, 10)]


def test_sizes_double_or_are_listed() -> None:
    assert sizes("8..64") == [8, 16, 32, 64]
    assert sizes("8..100") == [8, 16, 32, 64, 100]
    assert sizes("96,8,24") == [8, 24, 96]
    for wrong in ("8..", "x", "0..8", ""):
        with pytest.raises(LayoutError, match="--scale"):
            sizes(wrong)


def test_weak_scaling_keeps_the_batch_of_a_replica_and_strong_scaling_the_whole() -> None:
    layout = Layout(seq=4096, global_batch=64, tp=4, dp=2)
    weak = scaled(layout, [8, 12, 14, 32], strong=False)
    assert [(one.dp, one.global_batch) for one in weak] == [(2, 64), (3, 96), (8, 256)]
    strong = scaled(layout, [8, 12, 32, 1024], strong=True)
    assert [(one.dp, one.global_batch) for one in strong] == [(2, 64), (8, 64)]
    with pytest.raises(LayoutError, match="multiple of tp x cp x pp = 4"):
        scaled(layout, [6, 7], strong=False)


def test_the_parts_of_the_critical_path_add_up_and_gradients_break_strong_scaling() -> None:
    layout = Layout(seq=4096, global_batch=256, tp=4, dp=2)
    found = predicted(TARGET, layout)
    parts = path_parts(found.job, found.timeline)
    assert sum(parts.values()) == pytest.approx(found.step_ns, rel=1e-9)
    points = curve(TARGET, scaled(layout, [8, 128, 1024], strong=True))
    assert points[0].efficiency == 1.0
    assert [p.efficiency for p in points] == sorted((p.efficiency for p in points), reverse=True)
    broken = first_break(points)
    assert broken is not None
    assert broken.cause == "shard"
