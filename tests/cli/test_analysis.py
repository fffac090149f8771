"""``foretrace analyze`` and ``foretrace report`` as people and scripts call them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from foretrace.cli.app import main

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

BREAKDOWN = {
    "rank",
    "step",
    "total_ns",
    "compute_ns",
    "exposed_communication_ns",
    "hidden_communication_ns",
    "copy_ns",
    "idle_ns",
}
COMMUNICATION = {
    "kind",
    "group",
    "ranks",
    "count",
    "bytes",
    "wait_ns",
    "exec_ns",
    "busbw_GBps",
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.analysis.tiny_traces import write_trace_set

    return write_trace_set(tmp_path_factory.mktemp("analysis") / "tiny.trace", ranks=3)


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_analyze_json(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["analyze", str(trace), "--json"], capsys)
    data = json.loads(out)
    assert code == 0
    assert list(data) == ["breakdown", "communication", "findings"]
    assert len(data["breakdown"]) == 3 * 2
    assert set(data["breakdown"][0]) >= BREAKDOWN
    for row in data["breakdown"]:
        parts = ("compute_ns", "exposed_communication_ns", "copy_ns", "idle_ns")
        assert sum(row[p] for p in parts) == row["total_ns"]
    (comm,) = data["communication"]
    assert set(comm) == COMMUNICATION
    assert (comm["kind"], comm["ranks"], comm["count"]) == ("all_reduce", [0, 1, 2], 2)
    assert comm["busbw_GBps"] == pytest.approx(2 * 2 / 3 * (1 << 20) / 40_000, rel=0.01)
    savings = [f["saving_ns"] for f in data["findings"]]
    assert savings == sorted(savings, reverse=True)
    for finding in data["findings"]:
        assert {"kind", "title", "ranks", "saving_ns", "confidence"} <= set(finding)


def test_analyze_for_people(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["analyze", str(trace)], capsys)
    assert code == 0
    assert max(len(line.rstrip()) for line in out.splitlines()[1:]) <= 100
    assert "\x1b" not in out
    assert "Where the time goes" in out
    assert "all_reduce" in out
    assert "What holds the step back" in out


def test_analyze_some_ranks(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["analyze", str(trace), "--ranks", "0,2", "--json"], capsys)
    assert code == 0
    assert {row["rank"] for row in json.loads(out)["breakdown"]} == {0, 2}


def test_unknown_rank_and_bad_path_are_one_line(
    trace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for argv in (
        ["analyze", str(trace), "--ranks", "9"],
        ["report", str(tmp_path / "no.trace"), "-o", str(tmp_path / "r.html")],
    ):
        code, out, err = run(argv, capsys)
        assert (code, out) == (2, "")
        assert len(err.strip().splitlines()) == 1


def test_report(trace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out_path = tmp_path / "r.html"
    code, out, _ = run(["report", str(trace), "-o", str(out_path), "--json"], capsys)
    data = json.loads(out)
    assert code == 0
    assert data["report"] == str(out_path)
    assert data["bytes"] == out_path.stat().st_size
    assert data["bytes"] < 3_000_000
    assert data["seconds"] > 0


def test_report_where_no_folder_is(
    trace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = run(["report", str(trace), "-o", str(tmp_path / "no" / "r.html")], capsys)
    assert code == 2
    assert "no" in err
    assert len(err.strip().splitlines()) == 1
