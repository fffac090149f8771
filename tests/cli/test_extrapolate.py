"""``foretrace extrapolate`` as people and scripts call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.test_cost import run

MODEL = ["extrapolate", "llama3-8b", "--cluster", "h100-8x400g", "--seq", "4096"]


def test_json_has_the_keys_that_scripts_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--gpus", "64", "--tp", "4", "--pp", "2", "--global-batch", "256", "--json"]
    code, out, err = run([*MODEL, *options], capsys)
    made = json.loads(out)
    assert (code, err) == (0, "")
    assert set(made) == {
        "step_ns", "low_ns", "high_ns", "tokens_per_s_per_gpu", "mfu", "bubble", "exposed_ns",
        "memory_bytes", "fits", "origin",
    }  # fmt: skip
    assert made["low_ns"] < made["step_ns"] < made["high_ns"]
    tokens = 256 * 4096 / 64 / (made["step_ns"] / 1e9)
    assert made["tokens_per_s_per_gpu"] == pytest.approx(tokens, rel=1e-6)
    assert sum(made["origin"].values()) == pytest.approx(1.0)
    assert {"tp", "pp", "shard"} <= set(made["exposed_ns"])


def test_for_people_the_parts_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([*MODEL, "--gpus", "8", "--zero", "3"], capsys)
    assert code == 0
    shares = [float(line.rsplit(None, 1)[1].rstrip("%")) for line in out.splitlines()
              if line.rstrip().endswith("%") and "MFU" not in line]  # fmt: skip
    assert sum(shares) == pytest.approx(100.0, abs=0.3)
    assert max(map(len, out.splitlines())) <= 100


def test_a_layout_file_and_a_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seq = 4096\nglobal_batch = 32\ntp = 2\ndp = 4\n")
    timeline = tmp_path / "t.json"
    argv = [*MODEL[:4], "--layout", str(file), "--perfetto", str(timeline), "--json"]
    code, out, _ = run(argv, capsys)
    assert code == 0
    events = json.loads(timeline.read_text())["traceEvents"]
    longest = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    first = min(e["ts"] for e in events if e["ph"] == "X")
    assert longest - first == pytest.approx(json.loads(out)["step_ns"] / 1000, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "16", "--tp", "3"], "no multiple of tp x cp x pp = 3"),
        (["--gpus", "16", "--dp", "4"], "tp x cp x pp x dp = 4"),
        (["--tp", "5"], "does not divide heads=32"),
        (["--layout", "nowhere.toml"], "nowhere.toml: cannot be read as a layout"),
        (["--recompute", "some"], "recompute"),
        (["--schedule", "2f2b"], "no schedule '2f2b'"),
        (["--precision", "fp3"], "no peak known on h100"),
    ],
)
def test_one_clear_error(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run([*MODEL, *options], capsys)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
