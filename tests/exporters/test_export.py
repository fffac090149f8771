"""What ``foretrace export`` writes, read back by readers that share nothing with the writers."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.exporters.pftrace_reader import read_pftrace
from tests.traces.kineto import document, kernel, lasting, launch, write

from foretrace.cli.app import main
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.exporters.tables import export_tables
from foretrace.traces.importers.job import import_paths
from foretrace.traces.store import TraceSet


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks: a step, operators, launches, kernels, an all-reduce, a GPU annotation."""
    folder = tmp_path_factory.mktemp("export")
    for rank in range(2):
        events = [
            lasting("user_annotation", "ProfilerStep#3", 100, 50),
            lasting("cpu_op", "aten::mm", 105, 20, args={"External id": 1}),
            launch(110, 1),
            launch(120, 2),
            kernel("gemm", 112 + rank, 10, 1),
            kernel("ncclDevKernel_AllReduce_Sum_f32", 125, 8, 2, stream=20),
            lasting("gpu_user_annotation", "forward", 111, 12, pid=0, tid=7),
        ]
        write(folder / f"rank{rank}.json", document(events, rank))
    import_paths([str(folder)], folder / "run.trace", jobs=1)
    return folder / "run.trace"


def run(*args: Any) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in args])
    return int(ended.value.code or 0)


def of_rank(trace: Path, rank: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = TraceSet.open(trace).events(rank).to_pylist()
    return rows


def test_parquet_tables(trace: Path, tmp_path: Path) -> None:
    assert run("export", trace, tmp_path / "out", "--to", "parquet") == 0
    rows = pq.read_table(tmp_path / "out" / "events.parquet").to_pylist()
    expected = [{"rank": r, **row} for r in (0, 1) for row in of_rank(trace, r)]
    assert rows == expected
    collectives = pq.read_table(tmp_path / "out" / "collectives.parquet").to_pylist()
    assert [(c["rank"], c["kind"]) for c in collectives] == [(0, "all_reduce"), (1, "all_reduce")]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "collectives.parquet",
        "events.parquet",  # memory and dependencies were not recorded
    ]


def test_csv_tables(trace: Path, tmp_path: Path) -> None:
    assert run("export", trace, tmp_path, "--to", "csv", "--ranks", "1") == 0
    with (tmp_path / "events.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = of_rank(trace, 1)
    assert {row.pop("rank") for row in rows} == {"1"}
    assert [{k: str(v) for k, v in row.items()} for row in expected] == rows
    with (tmp_path / "collectives.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["kind"], row["in_splits"]) == ("all_reduce", "")


def check_chrome_trace(events: list[dict[str, Any]]) -> None:
    """What the Chrome trace format asks for, and that bars of a thread nest."""
    flows: dict[Any, list[str]] = defaultdict(list)
    bars: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] in ("X", "M", "s", "f")
        if event["ph"] == "M":
            assert event["name"].startswith(("process_", "thread_"))
            assert isinstance(event["args"], dict)
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            bars[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        else:
            flows[event["id"]].append(event["ph"])
            inside = bars[event["pid"], event["tid"]]
            assert any(a - 1e-3 <= event["ts"] <= b + 1e-3 for a, b in inside)
            assert event["ph"] == "s" or event["bp"] == "e"
    assert all(phases == ["s", "f"] for phases in flows.values())
    for spans in bars.values():
        ends: list[float] = []
        for start, end in sorted(spans, key=lambda s: (s[0], -s[1])):
            while ends and ends[-1] <= start + 1e-3:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-3
            ends.append(end)


def test_perfetto_json(trace: Path, tmp_path: Path) -> None:
    assert run("export", trace, tmp_path / "x.json", "--to", "perfetto") == 0
    events = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    check_chrome_trace(events)
    shown = Counter((e["name"], e["cat"], e["ts"], e["dur"]) for e in events if e["ph"] == "X")
    rows = [*of_rank(trace, 0), *of_rank(trace, 1)]
    base = min(r["start_ns"] for r in rows)
    wanted = Counter(
        (
            r["name"],
            r["kind"],
            (r["start_ns"] - base + 0.2) / 1000,
            (r["dur_ns"] + 0.2) / 1000,
        )
        for r in rows
    )
    assert shown == wanted
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert names == {
        *("thread 100", "GPU 0 stream 7", "GPU 0 stream 20", "GPU 0 stream 7 annotations")
    }
    assert sum(e["ph"] == "s" for e in events) == 4  # two launches of each rank


def test_pftrace_shows_the_same(trace: Path, tmp_path: Path) -> None:
    assert run("export", trace, tmp_path / "x.pftrace", "--to", "pftrace") == 0
    found = read_pftrace((tmp_path / "x.pftrace").read_bytes())
    shown = Counter((b.name, b.category, b.start, b.end - b.start) for b in found.bars)
    rows = [*of_rank(trace, 0), *of_rank(trace, 1)]
    assert shown == Counter((r["name"], r["kind"], r["start_ns"], r["dur_ns"]) for r in rows)
    by_flow = {n: b for b in found.bars for n in b.leaving}
    arrived = {n: b for b in found.bars for n in b.arriving}
    assert {(by_flow[n].name, arrived[n].category) for n in by_flow} == {
        ("cudaLaunchKernel", "kernel")
    }
    for number, call in by_flow.items():
        assert call.args["correlation"] == arrived[number].args["correlation"]
    assert {found.processes[found.tracks[b.track][1]] for b in found.bars} == {"rank 0", "rank 1"}


def test_chakra_graphs(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", trace, tmp_path / "out", "--to", "chakra", "--json") == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [Path(f).name for f in files] == ["run.0.et", "run.1.et", "run.groups.json"]


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("--to", "xlsx"), "'xlsx'; expected csv, parquet, perfetto, pftrace, chakra"),
        (("--to", "csv", "--ranks", "x"), "expected numbers such as 3 or 0-3,7, found 'x'"),
        (("--to", "csv", "--ranks", "²"), "found '²'"),
        (("--to", "csv", "--ranks", "1-0"), "found '1-0'"),
        (("--to", "csv", "--ranks", "0-9"), "holds no rank 2-9; it holds 0-1"),
        (("--to", "chakra", "--ranks", "0"), "need all ranks"),
    ],
)
def test_one_clear_error(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], args: Any, what: str
) -> None:
    assert run("export", trace, tmp_path / "out", *args) == 2
    assert what in capsys.readouterr().err


def test_a_rank_named_twice_is_written_once(trace: Path, tmp_path: Path) -> None:
    assert run("export", trace, tmp_path, "--to", "csv", "--ranks", "0,0-1,1") == 0
    rows = (tmp_path / "events.csv").read_text().splitlines()[1:]
    assert len(rows) == len(of_rank(trace, 0)) + len(of_rank(trace, 1))


def test_what_must_not_be_written_over(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p: p.read_bytes() for p in trace.rglob("*.parquet")}
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for kind, out, why in (
        ("parquet", trace / "rank=00000", "lies in the trace set"),
        ("csv", trace, "lies in the trace set"),
        ("perfetto", pipe, "is a pipe or a device"),
        ("pftrace", tmp_path, "is a folder"),
    ):
        assert run("export", trace, out, "--to", kind) == 2
        assert f"{out}: {why}" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in trace.rglob("*.parquet")} == before
    assert pipe.is_fifo()


def test_names_with_brackets_and_odd_bytes(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(trace, tmp_path / "run[1].trace")
    assert run("export", copy, tmp_path / "graphs", "--to", "chakra", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == 3
    odd = tmp_path / os.fsdecode(b"odd\xff.json")
    assert run("export", trace, odd, "--to", "perfetto", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"] == [str(tmp_path / "odd\ufffd.json")]


def test_an_unknown_kind_of_table(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="expected csv or parquet"):
        export_tables(TraceSet.open(trace), tmp_path, "xml")


def test_a_real_trace_in_every_form(tmp_path: Path, shared_data: Path) -> None:
    source = shared_data / "traces" / "single-rank" / "tracelens-qwen-h100.json.gz"
    import_paths([str(source)], tmp_path / "x.trace", jobs=1)
    rows = of_rank(tmp_path / "x.trace", TraceSet.open(tmp_path / "x.trace").ranks[0])
    wanted = sum(r["dur_ns"] for r in rows)
    for kind in ("perfetto", "pftrace"):
        assert run("export", tmp_path / "x.trace", tmp_path / kind, "--to", kind) == 0
    events = json.loads((tmp_path / "perfetto").read_bytes())["traceEvents"]
    check_chrome_trace(events)
    bars = read_pftrace((tmp_path / "pftrace").read_bytes()).bars
    assert len(bars) == len(rows) == sum(e["ph"] == "X" for e in events)
    assert sum(b.end - b.start for b in bars) == wanted
    total_us = sum(e["dur"] for e in events if e["ph"] == "X")
    assert total_us * 1000 == pytest.approx(wanted, abs=len(rows))


def test_times_that_nobody_measured_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [{"id": i, "name": "op", "ctrl_deps": 1, "inputs": {}} for i in (1, 2)]
    write(tmp_path / "rank0.json", {"schema": "1.1.1-chakra.0.0.4", "nodes": nodes})
    import_paths([tmp_path / "rank0.json"], tmp_path / "o.trace", jobs=1)
    for kind in ("perfetto", "pftrace"):
        assert run("export", tmp_path / "o.trace", tmp_path / kind, "--to", kind) == 0
        assert "nobody measured the times; a start counts" in capsys.readouterr().err
