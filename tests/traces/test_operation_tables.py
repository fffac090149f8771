"""Operation tables and pipeline recordings: by hand, by a simulator of its own, and real ones."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.replay.op_tables import Job

from foretrace.replay.build import build
from foretrace.replay.engine import replay
from foretrace.replay.timeline import measured, step_windows
from foretrace.traces.errors import ForetraceError, IncompleteTraceError, TraceFormatError
from foretrace.traces.importers import operation_table, pipeline_json
from foretrace.traces.importers.job import import_paths
from foretrace.traces.importers.operation_ranks import one_clock
from foretrace.traces.importers.sources import ends_of
from foretrace.traces.store import RankTables, TraceSet

ROWS = [  # (stage, step, operation, start s, duration s, micro-batch), two stages, one step
    (0, 4, "forward-compute", 0.0, 1.0, 0),
    (0, 4, "forward-send", 1.0, 0.5, -1),
    (1, 4, "forward-recv", 0.0, 1.5, -1),
    (1, 4, "forward-compute", 1.5, 1.0, 0),
    (1, 4, "backward-compute", 2.5, 2.0, 0),
    (1, 4, "backward-send", 4.5, 0.25, -1),
    (0, 4, "backward-recv", 1.5, 3.25, -1),
    (0, 4, "backward-compute", 4.75, 2.0, 0),
    (0, 4, "optimizer-clip-main-grad", 6.75, 0.25, -1),
    (1, 4, "optimizer-clip-main-grad", 4.75, 2.25, -1),
]


def table(rows: list[tuple[Any, ...]] = ROWS, **more: Any) -> pa.Table:
    stage, step, op, start, duration, mb = zip(*rows, strict=True)
    columns = {
        "dp_rank": [0] * len(rows),
        "stage": stage,
        "step": step,
        "optype": op,
        "start_ts": start,
        "duration": duration,
        "mb_id": mb,
    }
    return pa.table(columns | more)


def parquet(value: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(value, file)
    return file.getvalue()


def csv(value: pa.Table, delimiter: str = ",") -> bytes:
    file = io.BytesIO()
    pa.csv.write_csv(value, file, pa.csv.WriteOptions(delimiter=delimiter))
    return file.getvalue()


def shown(tables: RankTables) -> list[tuple[Any, ...]]:
    return [
        (r["kind"], r["name"], r["start_ns"] / 1e9, r["dur_ns"] / 1e9, r["thread"])
        for r in tables.events.to_pylist()
    ]


def test_rows_become_events() -> None:
    first, second = operation_table.read([parquet(table())])
    assert shown(first) == [
        ("annotation", "ProfilerStep#4", 0.0, 7.0, 1),
        ("host_op", "forward-compute", 0.0, 1.0, 1),
        ("annotation", "forward-send", 1.0, 0.5, 2),
        ("host_op", "forward-send", 1.0, 0.5, 1),
        ("annotation", "backward-recv", 1.5, 3.25, 5),
        ("host_op", "backward-recv", 1.5, 3.25, 1),
        ("host_op", "backward-compute", 4.75, 2.0, 1),
        ("annotation", "optimizer-clip-main-grad", 6.75, 0.25, 6),
        ("host_op", "optimizer-clip-main-grad", 6.75, 0.25, 1),
    ]
    assert first.events["inputs"].to_pylist()[1] == '{"micro_batch":0}'
    assert set(first.events["step"].to_pylist()) == {4}
    columns = ("kind", "p2p", "peer", "group", "group_rank", "seq", "call_event", "work_event")
    assert [tuple(r[c] for c in columns) for r in first.collectives.to_pylist()] == [
        ("send", True, 1, 0, 0, 0, 3, 2),
        ("recv", True, 1, 0, 0, 0, 5, 4),
        ("all_reduce", False, -1, 0, 0, 0, 8, 7),
    ]
    assert [g.ranks for g in second.info.groups] == [[0, 1]]
    assert (first.info.rank, second.info.rank, first.info.world_size) == (0, 1, 2)
    assert first.info.layout == {"dp": 1, "pp": 2}


@pytest.mark.parametrize("content", [csv(table()), csv(table(), "\t")], ids=["csv", "tsv"])
def test_text_reads_as_parquet_does(content: bytes) -> None:
    assert operation_table.sniff(content[:65536], "x")
    for one, two in zip(
        operation_table.read([content]), operation_table.read([parquet(table())]), strict=True
    ):
        assert one.events.equals(two.events)
        assert one.collectives.equals(two.collectives)


def test_stated_ranks_are_kept() -> None:
    rank = [8 if stage else 4 for stage, *_ in ROWS]
    first, second = operation_table.read([parquet(table(rank=rank))])
    assert (first.info.rank, second.info.rank) == (4, 8)
    assert first.info.world_size == 0  # who the others are is not known
    assert first.collectives["peer"].to_pylist()[0] == 8


LAYOUT = "dp_size: 2\npp_size: 2\ntp_size: 4\nworld_size: 16\n"


def test_the_layout_beside_a_table_is_read(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "trace-run.parquet")
    (tmp_path / "meta-run.yaml").write_text(LAYOUT)
    import_paths([tmp_path / "trace-run.parquet"], tmp_path / "x.trace", jobs=1)
    got = TraceSet.open(tmp_path / "x.trace").info(0)
    assert got.layout == {"dp": 2, "pp": 2, "tp": 4}
    assert any("1 of 2 dp ranks recorded" in d.reason for d in got.dropped)


def test_the_layout_beside_a_table_in_an_archive_is_read(tmp_path: Path) -> None:
    files = {
        "job/run.csv": csv(table()),
        "job/meta-run.yaml": LAYOUT.encode(),
        "meta-run.yaml": b"dp_size: 9\n",  # of another table
    }
    with tarfile.open(tmp_path / "job.tar.gz", "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    import_paths([tmp_path / "job.tar.gz"], tmp_path / "x.trace", jobs=1)
    assert TraceSet.open(tmp_path / "x.trace").info(2).layout == {"dp": 2, "pp": 2, "tp": 4}


def test_a_layout_that_contradicts_its_table_is_one_clear_error(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "run.parquet")
    (tmp_path / "meta-run.yaml").write_text("pp_size: 1\n")
    with pytest.raises(TraceFormatError, match=r"goes up to 1, but the layout states pp_size 1"):
        import_paths([tmp_path / "run.parquet"], tmp_path / "x.trace", jobs=1)


def test_the_real_layouts(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "traces" / "megatron-straggler" / "trace-ST.parquet"
    import_paths([source], tmp_path / "x.trace", jobs=1)
    traces = TraceSet.open(tmp_path / "x.trace")
    assert traces.info(0).layout == {"dp": 2, "pp": 4}
    assert len(traces.ranks) == 8


def test_what_is_no_table_is_not_taken_for_one() -> None:
    other = parquet(pa.table({"a": [1]}))
    assert not operation_table.sniff(ends_of(other), "a.parquet")
    assert not operation_table.sniff(b'{"optype": "start_ts, duration, step"}', "a.json")
    assert operation_table.sniff(ends_of(parquet(table())), "a.parquet")


def test_a_long_table_is_known_by_its_end(tmp_path: Path) -> None:
    rows = [(s, n, o, a + float(np.sin(n)) * 1e-3, b, m) for n in range(3000)
            for s, _, o, a, b, m in ROWS]  # fmt: skip
    pq.write_table(table(rows), tmp_path / "run.parquet", compression="none")
    assert (tmp_path / "run.parquet").stat().st_size > 3 * 65536
    report = import_paths([str(tmp_path)], tmp_path / "x.trace", jobs=1)
    assert report.ranks == [0, 1]


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        ({"duration": [-1.0] * 10}, TraceFormatError, "duration of row 0 is negative"),
        ({"start_ts": [float("nan")] * 10}, TraceFormatError, "not finite"),
        ({"optype": [None] * 10}, TraceFormatError, "empty rows"),
    ],
)
def test_damaged_tables(change: dict[str, Any], error: type[ForetraceError], what: str) -> None:
    with pytest.raises(error, match=what):
        operation_table.read([parquet(pa.table({**table().to_pydict(), **change}))])


def test_missing_columns_are_named() -> None:
    with pytest.raises(IncompleteTraceError, match="column dp_rank missing"):
        operation_table.read([parquet(table().drop_columns("dp_rank"))])


def test_steps_follow_each_other_where_each_has_its_own_clock() -> None:
    step = np.array([7, 7, 9, 9])
    offset, laid_out = one_clock(step, np.array([5, 6, 2, 3]), np.array([10, 25, 4, 8]))
    assert laid_out
    assert offset.tolist() == [-5, -5, 18, 18]  # 0 to 20, then 20 to 26
    offset, laid_out = one_clock(step, np.array([5, 6, 30, 31]), np.array([10, 25, 40, 50]))
    assert not laid_out
    assert offset.tolist() == [0] * 4


def test_the_recorded_steps_replay_exactly(tmp_path: Path) -> None:
    """A simulated job, whose waits are known: sends and receives meet, so steps do not change."""
    job = Job(dp=2, pp=3, micro_batches=4, steps=3, duration=lambda op, s, d, p, m: 1000 + 137 * p)
    rows = job.simulate()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "run.parquet")
    import_paths([str(tmp_path / "run.parquet")], tmp_path / "x.trace", jobs=1)
    traces = TraceSet.open(tmp_path / "x.trace")
    assert len(traces.ranks) == 6
    built = build(traces)
    assert sum(built.unmatched.values()) == 0
    before = step_windows(measured(built.graph))
    after = step_windows(replay(built.graph))
    spans = [np.asarray(w.end_ns) - np.asarray(w.start_ns) for w in (before, after)]
    assert np.abs(spans[1] / spans[0] - 1).max() < 0.01


def test_real_tables(tmp_path: Path, shared_data: Path) -> None:
    source = shared_data / "traces" / "megatron-straggler" / "trace-ST.parquet"
    report = import_paths([str(source)], tmp_path / "x.trace", jobs=1)
    assert report.ranks == list(range(8))
    rows = pq.read_table(source).to_pandas()
    traces = TraceSet.open(tmp_path / "x.trace")
    for rank in traces.ranks:
        events = traces.events(rank, pandas=True)
        mine = rows[rows["rank"] == rank]
        work = events[~events.name.str.startswith("ProfilerStep")].drop_duplicates(
            ["name", "start_ns", "dur_ns"]
        )
        assert len(work) == len(mine)
        # float32 seconds against ns: both sums are of the same numbers
        total = work.dur_ns.sum() / 1e9
        assert total == pytest.approx(float(mine.duration.astype(float).sum()), rel=1e-7)
        assert set(events.step) == set(mine.step)
        sends = mine.optype.isin(["forward-send", "backward-send"]).sum()
        kinds = traces.collectives(rank)["kind"].to_pylist()
        assert kinds.count("send") == sends


def recording(rank: int) -> dict[str, Any]:
    return {
        str(step): {
            "total": 10.0,
            "memory": 1.5,
            "fwd_start": [0.5 + rank, 2.0 + rank],
            "fwd_end": [1.5 + rank, 3.0 + rank],
            "bwd_start": [4.0 + rank, 6.0 + rank],
            "bwd_end": [5.5 + rank, 7.25 + rank],
        }
        for step in (1, 2)
    }


CONFIG = {"world_size": 2, "dp_size": 1, "tp_size": 1, "pp_size": 2, "num_mbs": 2}


def write_recordings(folder: Path) -> None:
    folder.mkdir()
    for rank in range(2):
        (folder / f"pp_rank_{rank}.json").write_text(json.dumps(recording(rank)))
    (folder / "config.json").write_text(json.dumps(CONFIG))


def test_pipeline_recordings_share_one_clock(tmp_path: Path) -> None:
    """A step lasts from 0.5 ms (rank 0) to 8.25 ms (rank 1): the second begins 7.75 ms later."""
    write_recordings(tmp_path / "run")
    import_paths([str(tmp_path / "run")], tmp_path / "x.trace", jobs=1)
    traces = TraceSet.open(tmp_path / "x.trace")
    assert traces.ranks == [0, 1]
    assert traces.info(1).layout == {"pp": 2}
    assert traces.info(1).source.endswith("run (3 files)")
    rows = traces.events(1, pandas=True)
    passes = rows[rows.kind == "host_op"]
    assert passes.name.tolist() == ["forward", "forward", "backward", "backward"] * 2
    starts = [1.0, 2.5, 4.5, 6.5]
    assert passes.start_ns.tolist() == [round(1e6 * (s + k)) for k in (0, 7.75) for s in starts]
    assert passes.dur_ns.tolist() == [1_000_000, 1_000_000, 1_500_000, 1_250_000] * 2
    assert passes.inputs.tolist() == [f'{{"micro_batch":{m}}}' for m in (0, 1, 0, 1)] * 2
    steps = [(s.step, s.start_ns, s.end_ns) for s in traces.info(1).steps]
    assert steps == [(1, 1_000_000, 7_750_000), (2, 8_750_000, 15_500_000)]


def test_damaged_pipeline_recordings() -> None:
    whole = recording(0)
    whole["1"]["fwd_end"].pop()
    whole["1"]["bwd_start"][0] = 99.0
    whole["2"]["fwd_start"][0] = None
    whole["notes"] = {}
    files = {"a/pp_rank_0.json": json.dumps(whole).encode(), "a/pp_rank_1.json": b'{"1": {'}
    (tables,) = pipeline_json.read_bundle(files)
    assert {d.reason: d.count for d in tables.info.dropped} == {
        "pass without its end (left out)": 1,
        "pass that ends before it begins (left out)": 2,
        "entry that is no step (left out)": 1,
        "file is damaged JSON (left out)": 1,
        "step mark made from the rows of the step": 2,
        "steps laid out one after the other: the time between them is not known": 2,
    }
    assert tables.info.counts["host_op"] == 5
    two = {f"a/{n}/rank0.json": json.dumps(recording(0)).encode() for n in "xy"}
    with pytest.raises(IncompleteTraceError, match="two files of rank 0"):
        pipeline_json.read_bundle(two)
    with pytest.raises(TraceFormatError, match="no passes"):
        pipeline_json.read_bundle({"a/pp_rank_0.json": b"{}"})


def test_real_pipeline_recordings(tmp_path: Path, shared_data: Path) -> None:
    folder = shared_data / "traces" / "primus-pp8"
    report = import_paths([str(folder)], tmp_path / "x.trace", jobs=1)
    assert report.ranks == list(range(8))
    traces = TraceSet.open(tmp_path / "x.trace")
    for rank in traces.ranks:
        source = json.loads((folder / f"pp_rank_{rank}.json").read_text())
        rows = traces.events(rank, pandas=True)
        work = rows[rows.kind == "host_op"].dur_ns.sum() / 1e6
        total = sum(
            end - start
            for step in source.values()
            for word in ("fwd", "bwd")
            for start, end in zip(step[f"{word}_start"], step[f"{word}_end"], strict=True)
        )
        assert work == pytest.approx(total, rel=1e-9)
        assert len(traces.info(rank).steps) == len(source) == 20
