"""``--interference`` of ``foretrace replay`` and ``foretrace whatif``: what was used, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.replay.costs.test_interference_job import ALONE_US, BESIDE_US, KERNELS, recorded

from foretrace.cli import app

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``foretrace`` and gives exit code, stdout and stderr."""

    def call(*args: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            app.main([*map(str, args)])
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of four beside a collective, where each product takes twice as long."""
    path = tmp_path_factory.mktemp("slowed") / "run.trace"
    recorded(path, [True, False, True, False])
    return path


def asked(run: Run, *args: object) -> Any:
    code, out, err = run(*args, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize("command", ["replay", "whatif"])
def test_without_the_collective_its_neighbours_are_faster(
    run: Run, slowed: Path, command: str
) -> None:
    got = {
        mode: asked(run, command, slowed, "-w", "comm=0", "--interference", mode)
        for mode in ("auto", "on", "off")
    }
    assert got["off"]["interference"] == {
        "used": False, "reason": "switched off", "steps_ns": [], "step_error": None,
        "kernel_error": None,
    }  # fmt: skip
    row = got["auto"]["interference"]
    assert row["used"]
    assert row["step_error"][1] < row["step_error"][0]
    assert row["kernel_error"][1] < row["kernel_error"][0]
    assert len(row["steps_ns"]) == 4
    assert got["on"]["interference"]["reason"] == "asked for"
    assert got["on"]["scenarios"] == got["auto"]["scenarios"]
    shorter = [
        off - auto
        for off, auto in zip(*(got[m]["scenarios"][0]["steps_ns"] for m in ("off", "auto")),
                             strict=True)
    ]  # fmt: skip
    saved = round(1_000 * KERNELS * (BESIDE_US - ALONE_US))
    assert shorter == pytest.approx([saved, 0, saved, 0], abs=2 * KERNELS)


@pytest.mark.parametrize("command", ["replay", "whatif"])
def test_the_line_says_what_was_used(run: Run, slowed: Path, small_job: Path, command: str) -> None:
    _, out, _ = run(command, slowed, "-w", "comm=0")
    assert "interference of overlapping work: used (on held-out steps the step error is" in out
    _, out, _ = run(command, small_job, "-w", "comm=0")
    assert "not used (kernels that ran wholly beside communication: 0, too few to tell)" in out
    code, _, err = run(command, small_job, "-w", "comm=0", "--interference", "maybe")
    assert (code, err.count("\n")) == (2, 1)
    assert "auto, on or off, not 'maybe'" in err
