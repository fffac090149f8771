"""``foretrace memory``: plans and recordings, as text and as JSON, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.replay.costs import literal_sets as sets

from foretrace.cli.app import main
from foretrace.replay.cluster import load_gpu
from foretrace.replay.costs.memory import GIB, RESERVE_BYTES, visible_bytes

MODEL = [
    "--layers", "32", "--hidden", "4096", "--heads", "32", "--kv-heads", "8", "--ffn", "14336",
    "--vocab", "128256",
]  # fmt: skip


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["memory", *arguments])
    return int(ended.value.code or 0)


def test_a_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*MODEL, "--tp", "2", "--pp", "4", "--accumulation", "8", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["limit_bytes"] == visible_bytes(load_gpu("h100")) - RESERVE_BYTES
    assert [s["stage"] for s in found["stages"]] == [0, 1, 2, 3]
    for stage in found["stages"]:
        terms = [v for k, v in stage.items() if k.endswith("_bytes") and k != "peak_bytes"]
        assert sum(terms) == pytest.approx(stage["peak_bytes"])
    assert found["peak_bytes"] == max(s["peak_bytes"] for s in found["stages"])


def test_a_plan_as_text_says_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*MODEL, "--gpu", "a100-40g") == 0
    assert capsys.readouterr().out.startswith("does not fit: stage 0 peaks at")


def test_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = int(GIB)
    rows = [
        {"time_ns": 5, "thread": 1, "device_type": 1, "device": 0, "address": 1, "bytes": size,
         "allocated_bytes": size, "reserved_bytes": 2 * size}
    ]  # fmt: skip
    events = [sets.operator("aten::empty", 0, 10, "", "")]
    path = tmp_path / "r.trace"
    sets.trace_set(path, events, memory=rows)
    assert run(str(path), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["holders"] == [{"operator": "aten::empty", "bytes": size}]
    assert found["unused_share"] == 0.5
    assert run(str(path)) == 0
    assert "peak 1.00 GiB allocated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "3"], "a model needs --hidden, --heads, --ffn, --vocab"),
        ([*MODEL, "--recompute", "some"], "expected none, selective or full"),
        ([*MODEL, "--tp", "3"], "32 heads do not split over tp=3"),
        ([*MODEL, "--gpu", "h1000"], "no GPU type 'h1000'"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err
