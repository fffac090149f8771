"""``foretrace whatif`` on the job worked out by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretrace.cli import app

Run = Callable[..., tuple[int, str, str]]

SCENARIOS = """
[[scenario]]
name = "rank 1 like rank 0"
change = [{ transform = "scale", select = "rank:1,gemm", factor = 0.3333333333 }]

[[scenario]]
name = "nobody waits"
change = [
    { transform = "dependency", edge = "rendezvous", select = "comm,rank:0" },
    { transform = "set", select = "comm", to = "10us" },
]
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``foretrace whatif`` and gives exit code, stdout and stderr."""

    def call(*args: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            app.main(["whatif", *map(str, args)])
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scenarios.toml"
    path.write_text(SCENARIOS)
    return path


def asked(run: Run, *args: object) -> Any:
    code, out, err = run(*args, "--json")
    assert code == 0, err
    return json.loads(out)


def test_steps_and_what_bounds_them(run: Run, small_job: Path, file: Path) -> None:
    got = asked(run, small_job, "-s", file, "-w", "gemm=x2; comm=0")
    rows = {row["name"]: row for row in [got["replayed"], *got["scenarios"]]}
    assert list(rows) == [
        "(as recorded)", "rank 1 like rank 0", "nobody waits", "gemm=x2; comm=0",
    ]  # fmt: skip
    assert got["measured_ns"] == pytest.approx(500_000, rel=0.01)
    base = rows["(as recorded)"]
    assert (base["bound_by"], base["bound_rank"]) == ("compute", 1)
    assert base["bound_share"] == pytest.approx(0.6, abs=0.02)
    like = rows["rank 1 like rank 0"]
    assert base["step_ns"] - like["step_ns"] == pytest.approx(200_000, abs=5_000)
    assert like["change"] == pytest.approx(like["step_ns"] / base["step_ns"] - 1, abs=1e-4)
    assert like["bound_share"] < base["bound_share"]
    assert rows["gemm=x2; comm=0"]["step_ns"] > base["step_ns"] + 200_000
    assert got["ranks"] == [0, 1]


def test_text_has_a_row_for_each(run: Run, small_job: Path, file: Path) -> None:
    code, out, err = run(small_job, "-s", file)
    assert (code, err) == (0, "")
    for words in ("(as recorded)", "rank 1 like rank 0", "nobody waits", "bound by", "compute 6"):
        assert words in out
    assert "\x1b" not in out


def test_what_the_step_hangs_on(run: Run, small_job: Path) -> None:
    got = asked(run, small_job, "--sensitivity", "kind")
    rows = {row["name"]: row for row in got["sensitivity"]}
    assert next(iter(rows)) == "compute"
    assert rows["compute"]["grows_ns"] == pytest.approx(300_000, rel=0.02)
    assert rows["compute"]["share"] == pytest.approx(0.6, abs=0.02)
    assert got["scenarios"] == []
    _, out, _ = run(small_job, "--sensitivity", "collective", "-w", "comm=0")
    assert "all_reduce 0-1" in out
    code, _, err = run(small_job, "--sensitivity", "colour")
    assert code == 2
    assert "sorted by kind, rank, layer, collective" in err


def test_a_transform_on_the_command_line(run: Run, small_job: Path, tmp_path: Path) -> None:
    text = "scale: select = 'rank:1,gemm', factor = 0.3333333333"
    got = asked(run, small_job, "-t", text, "-w", "comm=0")
    (tmp_path / "s.toml").write_text(SCENARIOS)
    file = asked(run, small_job, "-s", tmp_path / "s.toml")
    names = [row["name"] for row in got["scenarios"]]
    assert names == ["comm=0", text]
    assert got["scenarios"][1]["steps_ns"] == file["scenarios"][0]["steps_ns"]
    code, _, err = run(small_job, "-t", "scale: factor")
    assert (code, err.count("\n")) == (2, 1)


def test_what_the_critical_path_is_made_of(run: Run, small_job: Path) -> None:
    got = asked(run, small_job, "--critical-path", "rank", "--critical-path", "collective")
    assert list(got["critical_path"]) == ["rank", "collective"]
    rows = {row["name"]: row for row in got["critical_path"]["rank"]}
    # Two steps: rank 1 computes 300 us and is waited for; rank 0's kernel has 200 us of room.
    assert rows["rank 1"]["path_ns"] > 2 * 300_000
    assert rows["rank 1"]["slack_ns"] == 0
    meetings = {row["name"]: row for row in got["critical_path"]["collective"]}
    assert meetings["all_reduce 0-1"]["path_ns"] == pytest.approx(2 * 50_000, rel=0.02)
    for table in got["critical_path"].values():
        assert sum(row["share"] for row in table) == pytest.approx(1)
    _, out, _ = run(small_job, "--critical-path", "kind")
    assert "The critical path by kind" in out
    code, _, err = run(small_job, "--critical-path", "colour")
    assert code == 2
    assert "sorted by kind, rank, layer, collective" in err


def test_timelines_are_written_one_file_each(
    run: Run, small_job: Path, file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "timelines"
    got = asked(run, small_job, "-s", file, "-w", "comm=0", "-w", "comm=+0us", "--perfetto-dir",
                folder)  # fmt: skip
    names = ["rank-1-like-rank-0", "nobody-waits", "comm-0", "comm-0us"]
    assert [row["timeline"] for row in got["scenarios"]] == [
        str(folder / f"{name}.json.gz") for name in names
    ]
    events = json.loads(gzip.decompress((folder / "nobody-waits.json.gz").read_bytes()))
    processes = [
        e["args"]["name"] for e in events["traceEvents"] if e["name"] == "process_name"
    ]  # fmt: skip
    assert processes == [
        f"rank {rank} {label}" for rank in (0, 1) for label in ("replayed", "nobody waits")
    ]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "nothing to ask"),
        (["-s", "none.toml"], "cannot be read"),
        (["-w", "rank:9=0"], "ranks in this trace: 0-1"),
        (["-w", "comm=0", "--ranks", "7"], "holds no rank 7"),
    ],
)
def test_errors_are_one_line(run: Run, small_job: Path, args: list[str], says: str) -> None:
    code, out, err = run(small_job, *args)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_what_the_trace_lacks_is_one_line(run: Run, small_job: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        "[[scenario]]\nname='a'\n[[scenario.change]]\ntransform='network'\nbandwidth=2.0\n"
    )
    code, _, err = run(small_job, "-s", path)
    assert code == 2
    assert "all communication has one size" in err
    assert err.count("\n") == 1
