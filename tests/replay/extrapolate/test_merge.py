"""Merged templates give the same times and the same account from fewer tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replay.extrapolate.jobs import DENSE, MIXTURE, job

from foretrace.replay.engine import replay
from foretrace.replay.extrapolate.account import account


def check_alike(model: Any, layout: dict[str, Any]) -> tuple[int, int]:
    full, brief = job(model, **layout), job(model, brief=True, **layout)
    wanted = account(full, replay(full.graph))
    found = account(brief, replay(brief.graph))
    assert found.step_ns == wanted.step_ns
    assert found.compute_ns == pytest.approx(wanted.compute_ns, abs=1)
    assert found.exposed_ns == pytest.approx(wanted.exposed_ns, abs=1)
    return len(brief.graph), len(full.graph)


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_same_step_and_same_account(data: st.DataObject) -> None:
    draw = data.draw
    model = draw(st.sampled_from([DENSE, MIXTURE]))
    layout: dict[str, Any] = {
        "tp": draw(st.sampled_from([1, 2, 4])),
        "cp": draw(st.sampled_from([1, 2])),
        "dp": draw(st.sampled_from([1, 2, 4])),
        "pp": draw(st.sampled_from([1, 2, 4])),
        "zero": draw(st.sampled_from([0, 1, 3])),
        "overlap_tensor": draw(st.booleans()),
        "overlap_pipeline": draw(st.booleans()),
        "schedule": draw(st.sampled_from(["1f1b", "gpipe", "zb-h1"])),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "launch_ns": draw(st.sampled_from([0.0, 3000.0])),
    }
    if model is MIXTURE:
        layout["ep"] = layout["tp"] * layout["cp"] * layout["dp"]
        layout["ep"] = min(layout["ep"], 8)
    few, many = check_alike(model, layout)
    assert few <= many


@pytest.mark.parametrize("split", [{"virtual": 2, "pp": 4}, {"schedule": "dualpipe", "pp": 4}])
def test_several_stages_a_rank(split: dict[str, Any]) -> None:
    few, many = check_alike(DENSE, {"tp": 2, "dp": 4, **split})
    assert few < many / 3


def test_stages_with_stragglers_are_left_as_they_are() -> None:
    slow = np.ones(32)
    slow[3] = 1.5
    layout = {"tp": 2, "dp": 4, "pp": 4, "slow": slow}
    assert check_alike(DENSE, layout)[0] > 0
