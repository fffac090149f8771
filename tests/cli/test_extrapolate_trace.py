"""``foretrace extrapolate`` with a recorded job as its source."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.cli.test_cost import run

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.replay.workload.recorded_pipeline import simulate, trace_of  # noqa: E402
from tests.replay.workload.recorded_step import Step  # noqa: E402

CLUSTER = ["--cluster", "a100-8x200g"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recorded") / "run.trace"
    Step(tp=2, pp=2, batches=4).write(path)
    return str(path)


def test_own_layout_by_default(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["extrapolate", trace, *CLUSTER, "--json"], capsys)
    made = json.loads(out)
    assert (code, err) == (0, "")
    found = made["recognised"]
    assert (found["layers"], found["micro_batches"]) == ([4, 4], 4)
    assert found["layout"]["tp"] == found["layout"]["pp"] == 2
    assert made["step_ns"] == found["own_layout_step_ns"]
    assert made["step_ns"] == pytest.approx(found["measured_step_ns"], rel=0.005)
    assert made["origin"]["measured"] == pytest.approx(1.0)


def test_for_people(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["extrapolate", trace, *CLUSTER], capsys)
    assert code == 0
    assert "8 layers, on pipeline ranks: 4, 4" in out
    assert "the workload under this layout gives" in out
    assert max(map(len, out.splitlines())) <= 100


def test_options_change_the_recorded_layout(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--gpus", "16", "--pp", "1", "--json"]
    code, out, err = run(["extrapolate", trace, *CLUSTER, *options], capsys)
    made = json.loads(out)
    assert (code, err) == (0, "")
    assert "pp" not in made["exposed_ns"]
    assert made["bubble"] < 0.01
    # dp = 8, and each of them keeps its 4 micro-batches of 2 x 256 tokens.
    tokens = 8 * 4 * 2 * 256 / 16 / (made["step_ns"] / 1e9)
    assert made["tokens_per_s_per_gpu"] == pytest.approx(tokens, rel=1e-6)


def test_another_gpu_type_takes_nothing_as_measured(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(["extrapolate", trace, "--cluster", "h100-8x400g", "--json"], capsys)
    made = json.loads(out)
    assert code == 0
    assert made["origin"]["measured"] == 0.0
    assert made["recognised"]["own_layout_step_ns"] is None


def test_layouts_that_cannot_be(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["extrapolate", trace, *CLUSTER, "--tp", "3"], capsys)
    assert code == 2
    assert "tp=3 does not divide heads=8" in err


def test_a_pipeline_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace_of(simulate(8, "1f1b", 3), tmp_path)
    source = ["extrapolate", str(tmp_path / "x.trace"), *CLUSTER]
    code, out, err = run([*source, "--virtual", "2", "--json"], capsys)
    made = json.loads(out)
    assert (code, err, made["schedule"], made["micro_batches"]) == (0, "", "1f1b", 8)
    assert made["replayed_ns"] == pytest.approx(made["measured_ns"], rel=0.01)
    assert max(made["predicted_ns"]) < max(made["replayed_ns"])
    code, out, _ = run(source, capsys)
    assert code == 0
    assert "4 pipeline ranks, 8 micro-batches, 1f1b" in out
    code, _, err = run([*source, "--tp", "2"], capsys)
    assert code == 2
    assert "--tp: the recording holds passes and nothing inside them" in err
