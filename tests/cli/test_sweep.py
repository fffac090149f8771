"""``foretrace sweep`` and ``foretrace extrapolate --scale`` as people and scripts call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.test_cost import run

SWEEP = [
    "sweep", "llama3-8b", "--cluster", "h100-8x400g", "--gpus", "16", "--seq", "4096",
    "--global-batch", "64", "--zero", "1", "--recompute", "none", "--micro-batch", "1",
    "--virtual", "1", "--jobs", "1",
]  # fmt: skip
SCALE = [
    "extrapolate", "llama3-8b", "--cluster", "h100-8x400g", "--gpus", "8", "--tp", "4", "--seq",
    "4096", "--global-batch", "32",
]  # fmt: skip


def test_a_sweep_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "front.png"
    code, out, err = run([*SWEEP, "--top", "3", "--figure", str(figure)], capsys)
    assert (code, err) == (0, "")
    assert "do not fit the memory" in out
    assert sum(line.rstrip().endswith("%") for line in out.splitlines()) == 3
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_sweep_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([*SWEEP, "--tp", "4,8", "--json"], capsys)
    made = json.loads(out)
    assert code == 0
    assert set(made) == {"invalid", "pruned", "layouts"}
    steps = [one["step_ns"] for one in made["layouts"]]
    assert steps == sorted(steps)
    assert {one["layout"]["tp"] for one in made["layouts"]} <= {4, 8}
    assert made["layouts"][0]["pareto"]
    assert set(made["layouts"][0]) == {
        "layout", "step_ns", "tokens_per_s_per_gpu", "mfu", "bubble", "compute_ns", "exposed_ns",
        "memory_bytes", "pareto",
    }  # fmt: skip


def test_a_scaling_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "curve.png"
    code, out, _ = run([*SCALE, "--scale", "8..64", "--figure", str(figure)], capsys)
    assert code == 0
    assert "weak scaling" in out.splitlines()[-1]
    assert figure.read_bytes().startswith(b"\x89PNG")
    _, out, _ = run([*SCALE, "--scale", "8..64", "--strong", "--json"], capsys)
    made = json.loads(out)
    assert [point["gpus"] for point in made["points"]] == [8, 16, 32, 64]
    assert {point["global_batch"] for point in made["points"]} == {32}


def test_jitter_and_uneven_experts_are_lines_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mixture = ["extrapolate", "mixtral-8x7b", "--cluster", "h100-8x400g", "--gpus", "64", "--ep",
               "8", "--pp", "4", "--global-batch", "64"]  # fmt: skip
    plain = json.loads(run([*mixture, "--json"], capsys)[1])
    loud = json.loads(run([*mixture, "--json", "--jitter", "0.05"], capsys)[1])
    uneven = json.loads(run([*mixture, "--json", "--loads", "1.0"], capsys)[1])
    assert loud["step_ns"] == plain["step_ns"]
    assert 0 < loud["jitter_ns"] < 0.1 * plain["step_ns"]
    assert "jitter_ns" not in plain
    assert uneven["step_ns"] > 1.05 * plain["step_ns"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([*SWEEP[:6], "--tp", "2"], "--global-batch"),
        ([*SWEEP, "--tp", "two"], "--tp two: expected numbers"),
        ([*SWEEP, "--executor", "spark://x"], "expected dask://HOST:PORT"),
        ([*SWEEP, "--recompute", "some"], "recompute"),
        ([*SCALE, "--strong"], "go with --scale"),
        ([*SCALE, "--scale", "many"], "--scale many"),
        ([*SCALE, "--jitter", "nowhere.json"], "--jitter nowhere.json"),
        ([*SCALE, "--loads", "1.0"], "has no experts"),
    ],
)
def test_one_clear_error(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(argv, capsys)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
