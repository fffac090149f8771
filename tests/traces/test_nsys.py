"""Nsight Systems exports in both forms and two versions of the schema, made by hand."""

from __future__ import annotations

import gzip
import random
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.traces.kineto import write_tar
from tests.traces.nsys import (
    NEW,
    OLD,
    Export,
    example,
    pid_of,
    read_parquet,
    read_sqlite,
    tid_of,
    write_parquet,
    write_sqlite,
)

from foretrace.traces.errors import ForetraceError, TraceFormatError
from foretrace.traces.importers import nsys_sqlite
from foretrace.traces.importers.job import import_paths
from foretrace.traces.importers.nsys_names import mark_style, operator_of
from foretrace.traces.store import RankTables, TraceSet

SESSION = 1_700_000_000_000_000_000
Reader = Callable[[Path, Export, dict[str, str]], list[RankTables]]


def by_sqlite(path: Path, export: Export, schema: dict[str, str] = NEW) -> list[RankTables]:
    return read_sqlite(write_sqlite(path / "report.sqlite", export, schema))


def by_parquet(path: Path, export: Export, schema: dict[str, str] = NEW) -> list[RankTables]:
    return read_parquet(write_parquet(path / "report_pqtdir", export, schema))


both = pytest.mark.parametrize("read", [by_sqlite, by_parquet])


def losses(tables: RankTables) -> dict[str, int]:
    return {d.reason: d.count for d in tables.info.dropped}


@both
@pytest.mark.parametrize("schema", [OLD, NEW], ids=["old", "new"])
def test_every_table_is_read(tmp_path: Path, read: Reader, schema: dict[str, str]) -> None:
    (tables,) = read(tmp_path, example(), schema)
    columns = ("kind", "name", "start_ns", "dur_ns", "thread", "device", "stream", "correlation")
    rows = [
        (r["start_ns"] - SESSION, *(r[c] for c in columns if c != "start_ns"))
        for r in tables.events.to_pylist()
    ]
    host = (4001, -1, -1)
    assert rows == [
        (100, "annotation", "ProfilerStep#5", 1500, *host, -1),
        (150, "annotation", "forward", 150, *host, -1),
        (160, "host_op", "aten::mm", 130, *host, -1),
        (200, "runtime", "cudaLaunchKernel", 20, *host, 11),
        (230, "runtime", "cudaLaunchKernel", 20, *host, 12),
        (260, "runtime", "cudaMemcpyAsync", 10, *host, 13),
        (271, "runtime", "cudaMemsetAsync", 9, *host, 14),
        (300, "kernel", "void gemm_kernel<float>(int)", 500, -1, 0, 7, 11),
        (820, "memset", "Memset (Device)", 10, -1, 0, 7, 14),
        (850, "memcpy", "Memcpy HtoD", 30, -1, 0, 7, 13),
        (900, "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", 600, -1, 0, 9, 12),
        (1390, "runtime", "cudaStreamSynchronize", 130, *host, 15),
        (1400, "sync", "Stream Sync", 110, -1, 0, 9, 15),
    ]
    assert set(tables.events["step"].to_pylist()) == {5}
    operator, gemm, copy = (tables.events.slice(i, 1).to_pylist()[0] for i in (2, 7, 9))
    assert (operator["sequence"], operator["shapes"]) == (12, "[[4,2],[2,8]]")
    assert (gemm["grid"], gemm["block"], copy["bytes"]) == ("[4,1,1]", "[128,1,1]", 4096)
    (collective,) = tables.collectives.to_pylist()
    assert (collective["kind"], collective["work_event"]) == ("all_reduce", 10)
    info = tables.info
    assert (info.rank, info.host, info.device_name, info.device_count) == (
        *(-1, "node7", "NVIDIA H000", 2),
    )
    assert [(s.step, s.start_ns - SESSION, s.end_ns - SESSION) for s in info.steps] == [
        (5, 100, 1600)
    ]
    assert info.versions == {"nsys_schema": "3.11.0"}
    assert losses(tables) == {"step mark renamed to ProfilerStep#N": 1}


@both
def test_tables_may_be_missing(tmp_path: Path, read: Reader) -> None:
    """Exports leave out what has no rows; a kernel without its name keeps its number."""
    wanted = ("CUPTI_ACTIVITY_KIND_KERNEL",)
    (tables,) = read(tmp_path, {k: v for k, v in example().items() if k in wanted}, NEW)
    assert tables.events["name"].to_pylist() == ["kernel 1", "kernel 3"]
    assert tables.events["start_ns"].to_pylist() == [300, 900]
    assert losses(tables) == {"start of the session unknown: times count from it": 1}


@both
def test_ranges_only(tmp_path: Path, read: Reader) -> None:
    export = {k: v for k, v in example().items() if not k.startswith("CUPTI")}
    (tables,) = read(tmp_path, export, NEW)
    assert tables.info.counts == {"host_op": 1, "annotation": 2}
    assert tables.info.labels["process"] == "4000"


@both
def test_an_export_without_events_is_one_clear_error(tmp_path: Path, read: Reader) -> None:
    export = {k: v for k, v in example().items() if k in ("StringIds", "TARGET_INFO_GPU")}
    with pytest.raises(TraceFormatError, match=r"no events of CUDA or NVTX.*--trace=cuda,nvtx"):
        read(tmp_path, export, NEW)


def merged(*exports: Export) -> Export:
    whole = {k: list(v) for k, v in exports[0].items()}
    for export in exports[1:]:
        for table, rows in export.items():
            if table.startswith(("CUPTI", "NVTX")):
                whole[table] += rows
    return whole


@both
def test_each_process_with_a_device_is_a_rank(tmp_path: Path, read: Reader) -> None:
    """Process ids say nothing of the order; devices do. A launcher used none."""
    export = merged(example(5000, 0), example(4000, 1))
    row = {"start": 10, "end": 20, "eventType": 59, "text": "torchrun"}
    export["NVTX_EVENTS"].append(row | {"globalTid": tid_of(3999, 3999)})
    zero, one = read(tmp_path, export, NEW)
    assert [(t.info.rank, t.info.labels["process"]) for t in (zero, one)] == [
        (0, "5000"),
        (1, "4000"),
    ]
    assert len(zero.events) == len(one.events) == 13
    assert set(one.events["device"].to_pylist()) == {-1, 1}
    assert losses(zero)["events of processes that used no device (left out)"] == 1


@both
def test_damaged_rows(tmp_path: Path, read: Reader) -> None:
    export = example()
    kernels = export["CUPTI_ACTIVITY_KIND_KERNEL"]
    kernels += [
        kernels[0] | {"start": 5000, "end": 4000, "correlationId": 30},
        kernels[0] | {"start": 6000, "end": None, "correlationId": 31},
    ]
    export["NVTX_EVENTS"][1]["end"] = None  # still open when the recording stopped
    (tables,) = read(tmp_path, export, NEW)
    assert tables.info.counts["kernel"] == 3
    durations = [r["dur_ns"] for r in tables.events.to_pylist() if r["kind"] == "kernel"]
    assert durations == [500, 600, 0]
    found = losses(tables)
    assert found["negative duration set to 0 (kept)"] == 1
    key = "rows of CUPTI_ACTIVITY_KIND_KERNEL without a start or an end (left out)"
    assert found[key] == 1
    assert found["rows of NVTX_EVENTS without a start or an end (left out)"] == 1


@both
def test_a_duration_that_runs_over_the_next_kernel_is_cut(tmp_path: Path, read: Reader) -> None:
    export = example()
    kernel = export["CUPTI_ACTIVITY_KIND_KERNEL"][0]
    many = [
        kernel | {"start": t, "end": t + 50, "correlationId": t} for t in range(10_000, 10_500, 100)
    ]
    many[2]["end"] = 10_200 + 7_000_000_000
    export["CUPTI_ACTIVITY_KIND_KERNEL"] = many
    (tables,) = read(tmp_path, export, NEW)
    durations = [r["dur_ns"] for r in tables.events.to_pylist() if r["kind"] == "kernel"]
    assert durations == [50, 50, 100, 50, 50]
    reason = "duration runs over the next work of its stream (cut to its start)"
    assert losses(tables)[reason] == 1


@both
def test_a_kernel_before_its_launch_is_told(tmp_path: Path, read: Reader) -> None:
    export = example()
    export["CUPTI_ACTIVITY_KIND_RUNTIME"][0] |= {"start": 90_000, "end": 90_010}
    (tables,) = read(tmp_path, export, NEW)
    assert losses(tables)["device work starts before its launch (kept as it is)"] == 1


def test_a_damaged_table_of_a_parquet_export(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "x", example())
    data = (folder / "NVTX_EVENTS.parquet").read_bytes()
    (folder / "NVTX_EVENTS.parquet").write_bytes(data[:40] + b"\xff" * 60 + data[100:])
    (folder / "StringIds.parquet").write_bytes(data[: len(data) // 2])
    (tables,) = read_parquet(folder)
    assert tables.info.counts["kernel"] == 2
    assert losses(tables)["file of table StringIds is damaged (left out)"] == 1


@both
def test_a_graph_launch_has_many_kernels(tmp_path: Path, read: Reader) -> None:
    export = example()
    kernel = export["CUPTI_ACTIVITY_KIND_KERNEL"][0]
    nodes = [kernel | {"start": 2000 + i, "end": 2001 + i, "graphNodeId": 70 + i} for i in range(5)]
    export["CUPTI_ACTIVITY_KIND_KERNEL"] = [kernel, *nodes]
    (tables,) = read(tmp_path, export, NEW)
    shown = [r["graph_node"] for r in tables.events.to_pylist() if r["kind"] == "kernel"]
    assert shown == [-1, 70, 71, 72, 73, 74]


def test_both_forms_and_the_whole_import(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write_sqlite(tmp_path / "a" / "rank0.sqlite", example())
    write_parquet(tmp_path / "b" / "rank0_pqtdir", example())
    (tmp_path / "b" / "rank0_pqtdir" / "notes.txt").write_text("x")
    for name in "ab":
        import_paths([str(tmp_path / name)], tmp_path / f"{name}.trace", jobs=1)
    one, two = (TraceSet.open(tmp_path / f"{n}.trace") for n in "ab")
    assert one.ranks == two.ranks == [0]
    assert one.events(0).equals(two.events(0))
    assert one.collectives(0).equals(two.collectives(0))
    assert one.info(0).rank_from == "file name"


def test_several_parquet_exports_in_one_folder_of_folders(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_parquet(tmp_path / f"rank{rank}", example(4000 + rank, rank))
    import_paths([str(tmp_path)], tmp_path / "x.trace", jobs=1)
    traces = TraceSet.open(tmp_path / "x.trace")
    assert traces.ranks == [0, 1]
    assert [traces.info(r).labels["process"] for r in (0, 1)] == ["4000", "4001"]


def two_processes(first: int) -> Export:
    """Two processes on the devices 0 and 1 of one node."""
    one, two = example(first, 0), example(first + 1, 1)
    once = ("StringIds", "META_DATA_EXPORT", "ANALYSIS_FILE")
    shared = {t: rows for t, rows in one.items() if t.startswith("TARGET_") or t in once}
    return {t: [*rows, *two[t]] for t, rows in one.items()} | shared


@pytest.mark.parametrize("last", [1, 2])
def test_processes_of_several_nodes_are_numbered_on(tmp_path: Path, last: int) -> None:
    """All of the first node, then all of the second and of the tenth; a copy is a copy."""
    names = ("node1.sqlite", "node2.sqlite", "node10.sqlite")
    exports = (two_processes(4000), two_processes(5000), two_processes(6000))
    if last == 1:
        exports = (*exports[:2], example(6000, 0))
    for name, export in zip(names, exports, strict=True):
        write_sqlite(tmp_path / name, export)
    (tmp_path / "node3.sqlite").write_bytes((tmp_path / "node2.sqlite").read_bytes())
    report = import_paths([str(tmp_path)], tmp_path / "x.trace", jobs=1)
    traces = TraceSet.open(tmp_path / "x.trace")
    expected = ["4000", "4001", "5000", "5001", "6000", "6001"][: 4 + last]
    assert [traces.info(r).labels["process"] for r in traces.ranks] == expected
    assert [f.rank for f in report.files] == traces.ranks == list(range(4 + last))
    assert any("in the order of the exports' names" in note for note in report.notes)
    assert sorted(p.name for p in (tmp_path / "x.trace").iterdir() if p.is_dir()) == [
        f"rank={r:05d}" for r in traces.ranks
    ]


def test_an_export_in_an_archive(tmp_path: Path) -> None:
    """Parquet files of a folder stay together inside an archive, and so do gzipped databases."""
    folder = write_parquet(tmp_path / "x", example())
    files = {f"rank3/{p.name}": p.read_bytes() for p in folder.iterdir()}
    write_tar(tmp_path / "one.tar.gz", files)
    data = write_sqlite(tmp_path / "r.sqlite", example()).read_bytes()
    (tmp_path / "rank4.sqlite.gz").write_bytes(gzip.compress(data))
    names = [str(tmp_path / n) for n in ("one.tar.gz", "rank4.sqlite.gz")]
    import_paths(names, tmp_path / "x.trace", jobs=1)
    traces = TraceSet.open(tmp_path / "x.trace")
    assert traces.ranks == [3, 4]
    assert traces.events(3).equals(traces.events(4))


def test_a_cut_off_database_gives_rows_or_one_clear_error(tmp_path: Path) -> None:
    data = write_sqlite(tmp_path / "x.sqlite", example()).read_bytes()
    for end in range(100, len(data), 1500):
        with suppress(ForetraceError):
            nsys_sqlite.read([data[:end]])


def test_changed_bytes_give_rows_or_one_clear_error(tmp_path: Path) -> None:
    data = write_sqlite(tmp_path / "x.sqlite", example()).read_bytes()
    chosen = random.Random(3)  # noqa: S311
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(chosen.randint(1, 40)):
            damaged[chosen.randrange(16, len(data))] = chosen.randrange(256)
        with suppress(ForetraceError):
            nsys_sqlite.read([bytes(damaged)])


def test_a_view_in_place_of_a_table_is_not_used(tmp_path: Path) -> None:
    path = write_sqlite(tmp_path / "x.sqlite", example())
    db = sqlite3.connect(path)
    db.execute("DROP TABLE NVTX_EVENTS")
    db.execute("CREATE VIEW NVTX_EVENTS AS SELECT load_extension('/nowhere') AS text")
    db.commit()
    db.close()
    (tables,) = read_sqlite(path)
    assert "annotation" not in tables.info.counts
    assert tables.info.counts["kernel"] == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ProfilerStep#12", (0, 12)),
        ("step 5", (1, 5)),
        ("Step: 5", (1, 5)),
        ("iteration_7", (1, 7)),
        ("iter=7", (1, 7)),
        ("train_step_3", (1, 3)),
        ("global step 12", (1, 12)),
        ("batch 4", (2, 4)),
        ("optimizer.step", (-1, -1)),
        ("layer 5", (-1, -1)),
        ("step", (-1, -1)),
        ("substep 4", (-1, -1)),
        ("step 99999999999", (-1, -1)),
    ],
)
def test_step_marks(name: str, expected: tuple[int, int]) -> None:
    assert mark_style(name) == expected


def test_operators_of_emit_nvtx() -> None:
    assert operator_of("aten::t, op_id = 40") == ("aten::t", -1, "")
    assert operator_of("AddmmBackward0, seq = 3, op_id = 9") == ("AddmmBackward0", 3, "")
    assert operator_of("forward, first half") is None


def test_packed_ids() -> None:
    assert tid_of(4000, 4001) >> 24 == pid_of(4000) >> 24
