"""``foretrace replay`` on a job worked out by hand, and how its result is shown."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretrace.cli import app
from foretrace.cli.replay_view import (
    AlignmentRow,
    InterferenceRow,
    RankRow,
    ReplayView,
    ScenarioRow,
    StepRow,
    print_view,
)
from foretrace.cli.terminal import duration, number_list, percent, print_table
from foretrace.traces.importers import import_paths

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``foretrace replay`` and gives exit code, stdout and stderr."""

    def call(*args: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            app.main(["replay", *map(str, args)])
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return call


def replayed(run: Run, *args: object) -> Any:
    code, out, err = run(*args, "--json")
    assert code == 0, err
    return json.loads(out)


def test_the_replay_fits_the_measured_steps(run: Run, small_job: Path) -> None:
    got = replayed(run, small_job)
    assert got["ranks"] == [0, 1]
    assert [step["step"] for step in got["steps"]] == [1, 2]
    for step in got["steps"]:
        assert step["measured_ns"] == 500_000
        assert abs(step["error"]) < 0.01
        assert abs(step["error"] - (step["replayed_ns"] / step["measured_ns"] - 1)) < 1e-9
        assert sum(step["critical_path"].values()) == pytest.approx(1)
        assert step["critical_path"]["communication"] == pytest.approx(0.1, abs=0.01)
        assert step["critical_path"]["compute"] == pytest.approx(0.6, abs=0.01)
    assert 0 <= got["alignment"]["residual_ns"] < 1000
    assert got["scenarios"] == []
    waits = {row["rank"]: row["replayed_waiting_ns"] for row in got["per_rank"]}
    assert waits[0] == pytest.approx(2 * 200_000, rel=0.03)
    assert waits[1] == pytest.approx(0, abs=5_000)


def test_what_ifs_follow_the_dependencies(run: Run, small_job: Path) -> None:
    scenarios = ["rank:0,gemm=0", "rank:1,gemm=x0.5", "all_reduce=+100us", "gemm=0; comm=0"]
    got = replayed(run, small_job, *(f"--what-if={text}" for text in scenarios))
    rows = {row["name"]: row for row in got["scenarios"]}
    assert list(rows) == scenarios
    base = sum(step["replayed_ns"] for step in got["steps"]) / 2
    saved = {name: base - row["step_ns"] for name, row in rows.items()}
    assert saved["rank:0,gemm=0"] == pytest.approx(0, abs=2_000), "it only waits longer"
    assert saved["rank:1,gemm=x0.5"] == pytest.approx(150_000, abs=5_000)
    assert saved["all_reduce=+100us"] == pytest.approx(-100_000, abs=5_000)
    assert saved["gemm=0; comm=0"] > 300_000
    halved = rows["rank:1,gemm=x0.5"]
    assert (halved["tasks"], halved["before_ns"], halved["after_ns"]) == (2, 600_000, 300_000)
    assert halved["change"] == pytest.approx(halved["step_ns"] / base - 1, abs=1e-6)
    assert round(sum(halved["steps_ns"]) / 2) == halved["step_ns"]


def test_some_ranks_only(run: Run, small_job: Path) -> None:
    assert replayed(run, small_job, "--ranks", "1")["ranks"] == [1]
    code, _, err = run(small_job, "--ranks", "0-3")
    assert code == 2
    assert "holds no rank 2-3; it holds 0-1" in err


def test_text_says_it_all(run: Run, small_job: Path) -> None:
    code, out, _ = run(small_job, "-w", "comm=0")
    assert code == 0
    for words in ("2 ranks (0-1)", "null replay", "critical path: ", "copied", "comm=0"):
        assert words in out
    assert "\x1b" not in out


def test_timelines_of_all_ranks_stand_side_by_side(
    run: Run, small_job: Path, tmp_path: Path
) -> None:
    path = tmp_path / "out.json.gz"
    code, _, err = run(small_job, "--perfetto", path, "-w", "comm=0")
    assert code == 0
    assert str(path) in err
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    labels = ("measured", "replayed", "comm=0")
    assert processes == [f"rank {rank} {label}" for rank in (0, 1) for label in labels]
    waits = [e for e in events if e["name"] == "waiting for rank 1"]
    assert [round(e["dur"]) for e in waits] == pytest.approx([200] * 6, abs=2)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-w", "rank:9=0"], "ranks in this trace: 0-1"),
        (["-w", "comm"], "expected SELECTOR=CHANGE"),
        (["--ranks", "x"], "expected numbers"),
        (["--perfetto", "no/such/folder/x.json"], "No such file"),
    ],
)
def test_errors_are_one_line(run: Run, small_job: Path, args: list[str], says: str) -> None:
    code, out, err = run(small_job, *args)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_no_trace_set(run: Run, tmp_path: Path) -> None:
    for path in (tmp_path / "missing.trace", tmp_path):
        code, _, err = run(path)
        assert code == 2
        assert err.startswith("foretrace: error: ")
        assert err.count("\n") == 1


STEP = StepRow(
    step=3,
    measured_ns=812_400_000,
    replayed_ns=811_900_000,
    error=-0.0006,
    null_error=0.0001,
    unexplained=0.0021,
    unexplained_early=0.0014,
    critical_path={"compute": 0.2, "communication": 0.1, "copy": 0.0, "host": 0.6, "stall": 0.1},
    copied_host=0.7,
)
VIEW = ReplayView(
    trace="run.trace",
    ranks=[0, 1, 2, 5],
    missing_ranks=[3, 4],
    tasks=12345,
    edges=23456,
    unmatched=7,
    steps=[STEP],
    alignment=AlignmentRow(3_200, 321),
    start_error_ns=142_000,
    span_ns=0,
    times="measured",
    per_rank=[
        RankRow(r, 100_000 + r, 900_000, 228_000_000, 228_700_000, r * 1_000_000, r / 800)
        for r in (0, 1, 2, 5)
    ],
    interference=InterferenceRow(
        used=False, reason="switched off", steps_ns=[], step_error=None, kernel_error=None
    ),
    scenarios=[ScenarioRow("kernel:*[x]*=x0.5", 10**8, [10**8], -0.21, 1234, 10**9, 5 * 10**8)],
)


def test_view_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    print_view(VIEW)
    out = capsys.readouterr().out
    for words in (
        "run.trace: 4 ranks (0-2, 5), 1 step, 12,345 tasks",
        "not recorded: 2 ranks (3-4)",
        "321 collectives, which agree within 3.2 µs",
        "812.4 ms",
        "-0.06%",
        "+0.01%",
        "compute 20.00%, communication 10.00%, host 60.00%, stall 10.00%",
        "70.00% of the critical path; a small error proves little",
        "start 142.0 µs off (median); 7 communication operations",
        "most on rank 5, 5.0 ms, 0.62% of the steps",
        "interference of overlapping work: not used (switched off)",
        "kernel:*[x]*=x0.5",
        "-21.00%",
    ):
        assert words in out


def test_laid_out_times_are_never_called_measured(capsys: pytest.CaptureFixture[str]) -> None:
    print_view(dataclasses.replace(VIEW, times="laid out"))
    out = capsys.readouterr().out
    assert "measured" not in out
    assert "times laid out: nobody recorded when tasks began" in out
    assert "waits laid out" in " ".join(out.split())


def test_a_chakra_graph_without_times_says_so(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [{"Id": 1, "Name": "a", "NodeType": 4, "runtime": 7, "is_cpu_op": True}]
    (tmp_path / "x.0.json").write_text(json.dumps({"workload_graph": nodes}))
    import_paths([tmp_path / "x.0.json"], tmp_path / "x.trace", jobs=1)
    got = replayed(run, tmp_path / "x.trace")
    assert got["times"] == "laid out"
    assert got["steps"][0]["measured_ns"] == 7_000
    timelines = tmp_path / "t.json.gz"
    code, out, err = run(tmp_path / "x.trace", "--perfetto", timelines)
    assert code == 0
    assert "measured" not in out + err
    assert b"measured" not in gzip.decompress(timelines.read_bytes())


def test_ranks_without_events_are_nothing_to_replay(run: Run, tmp_path: Path) -> None:
    """A dump may name operations and have seen none of them running."""
    line = {
        "header": {"id": "0x1", "rank": 0, "n_ranks": 2, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 10},
        "coll_perf": {
            "coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 8, "coll_exec_time_us": 0,
            "coll_algobw_gbs": 0.0, "coll_busbw_gbs": 0.0,
        },
    }  # fmt: skip
    (tmp_path / "x.jsonl").write_text(json.dumps(line) + "\n")
    import_paths([tmp_path / "x.jsonl"], tmp_path / "x.trace", jobs=1)
    code, _, err = run(tmp_path / "x.trace")
    assert code == 2
    assert "holds no events" in err


def test_many_ranks_show_the_worst(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [RankRow(r, r, r, 0, 0, 0, 0.0) for r in range(100)]
    print_view(dataclasses.replace(VIEW, per_rank=rows))
    out = capsys.readouterr().out
    assert "(84 ranks that fit better are left out)" in out
    assert "99 ns" in out


def test_one_rank_has_nothing_to_align(capsys: pytest.CaptureFixture[str]) -> None:
    one = dataclasses.replace(VIEW, ranks=[0], per_rank=VIEW.per_rank[:1])
    print_view(one)
    assert "one rank, nothing to align" in capsys.readouterr().out
    print_view(dataclasses.replace(VIEW, alignment=AlignmentRow(-1, 0)))
    assert "clocks: kept as recorded" in capsys.readouterr().out


def test_numbers_carry_their_unit() -> None:
    assert [duration(ns) for ns in (0, 999, 1_500, 31_000_000, 12_345_000_000)] == [
        "0 ns",
        "999 ns",
        "1.5 µs",
        "31.0 ms",
        "12.35 s",
    ]
    assert percent(0.0021) == "0.21%"
    assert percent(-0.0007, signed=True) == "-0.07%"
    assert number_list([0, 1, 2, 7]) == "0-2, 7"
    assert number_list(range(0, 40, 2), most=2) == "0, 2 and 18 more"


def test_tables_do_not_read_names_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "n"), [("void f<int>[bold]", "1")])
    assert "void f<int>[bold]" in capsys.readouterr().out
