"""``foretrace replay`` on a recording that counts as large: other form, same numbers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.cli import app
from foretrace.replay.contract import assess


def call(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        app.main(["replay", *map(str, args)])
    assert isinstance(end.value.code, int)
    return end.value.code, *capsys.readouterr()


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every recording of more than one rank counts as large."""
    monkeypatch.setattr(assess, "POOL_RANKS", 1)
    monkeypatch.setattr(assess, "LARGE_EVENTS", 0)


def read(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    code, out, err = call(capsys, *args, "--json")
    assert code == 0, err
    return json.loads(out)


def test_the_numbers_are_those_of_the_plain_replay(
    small_job: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    plain = read(capsys, small_job)
    request.getfixturevalue("large")
    found = read(capsys, small_job, "--expand", "1")
    assert found["reduced"]
    for key in ("trace", "ranks", "missing_ranks", "tasks", "edges", "unmatched", "stood_in"):
        assert found[key] == plain[key]
    assert found["kept_tasks"] < found["tasks"]
    assert {"residual_ns": found["residual_ns"], "anchors": found["anchors"]} == plain["alignment"]
    for own, row in zip(found["steps"], plain["steps"], strict=True):
        assert own == {key: row[key] for key in own}
    for own, row in zip(found["per_rank"], plain["per_rank"], strict=True):
        for key in ("rank", "waiting_ns", "replayed_waiting_ns", "stall_ns"):
            assert own[key] == row[key]
    errors = [row["start_error_ns"] for row in found["per_rank"]]
    assert errors == [-1, plain["per_rank"][1]["start_error_ns"]]


@pytest.mark.usefixtures("large")
def test_it_says_what_it_leaves_out(small_job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, small_job)
    assert code == 0, err
    assert "too large for one piece" in out
    assert "critical path" in out.splitlines()[-1]


@pytest.mark.usefixtures("large")
def test_timelines_of_the_expanded_ranks(
    small_job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json.gz"
    code, _, err = call(capsys, small_job, "--perfetto", path)
    assert code == 2
    assert "--expand" in err
    code, _, err = call(capsys, small_job, "--perfetto", path, "--expand", "0")
    assert code == 0, err
    assert "gemm" in gzip.decompress(path.read_bytes()).decode()


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("asked", [("--what-if", "comm=x0.5"), ("--interference", "on")])
def test_what_it_cannot_answer_is_refused(
    small_job: Path, asked: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, small_job, *asked)
    assert code == 2
    assert asked[0] in err
    assert "--ranks" in err
