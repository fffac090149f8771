"""Trace sets: round trip, half-written ones, versions, any file system, and opening many ranks."""

from __future__ import annotations

import json
import math
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.traces import arrow
from foretrace.traces.errors import IncompleteTraceError, TraceFormatError
from foretrace.traces.manifest import Dropped, GroupInfo, Index, RankInfo, StepInfo, pack, unpack
from foretrace.traces.schema import COLLECTIVES, EVENTS, FORMAT_VERSION, TABLES, arrow_schema
from foretrace.traces.storage import Folder
from foretrace.traces.store import RankTables, TraceSet, TraceSetWriter, describe_ranks


def make_table(name: str, rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    arrays = []
    for column in TABLES[name]:
        if pa.types.is_dictionary(column.type):
            arrays.append(arrow.texts([f"{column.name}-{i}" for i in rng.integers(0, 5, rows)]))
        elif pa.types.is_list(column.type):
            arrays.append(arrow.number_lists([list(range(i % 3)) for i in range(rows)]))
        elif pa.types.is_boolean(column.type):
            arrays.append(arrow.numbers(rng.integers(0, 2, rows), column.type))
        else:
            arrays.append(arrow.numbers(rng.integers(0, 100, rows), column.type))
    table = pa.Table.from_arrays(arrays, schema=arrow_schema(name))
    return table.sort_by("start_ns") if name == "events" else table


def make_rank(rank: int, rows: int = 6, memory: bool = False, **info: Any) -> RankTables:
    return RankTables(
        RankInfo(rank=rank, world_size=4, **info),
        make_table("events", rows, rank),
        make_table("collectives", rows // 2, rank),
        make_table("memory", rows, rank) if memory else None,
    )


def write_set(path: Any, ranks: tuple[int, ...] = (0, 1), **info: Any) -> TraceSetWriter:
    writer = TraceSetWriter(path)
    for rank in ranks:
        writer.write_rank(make_rank(rank, **info))
    writer.finish(model="tiny")
    return writer


@pytest.mark.parametrize("url", ["local", "memory"])
def test_round_trip(tmp_path: Path, url: str) -> None:
    path = f"memory://{uuid.uuid4()}/a.trace" if url == "memory" else str(tmp_path / "a.trace")
    writer = TraceSetWriter(path)
    given_tables = [make_rank(0, 9, memory=True), make_rank(3, 0)]
    for tables in given_tables:
        writer.write_rank(tables)
    writer.finish(model="tiny")
    traces = TraceSet.open(path)
    assert traces.ranks == [0, 3]
    assert traces.missing_ranks == [1, 2]
    assert traces.problems == []
    assert traces.manifest.job == {"model": "tiny"}
    for tables in given_tables:
        rank = tables.info.rank
        assert traces.events(rank).to_pylist() == tables.events.to_pylist()
        assert traces.events(rank).schema == arrow_schema("events")
        assert traces.collectives(rank).to_pylist() == tables.collectives.to_pylist()
    assert traces.memory(0).to_pylist() == given_tables[0].memory.to_pylist()  # type: ignore[union-attr]
    assert len(traces.memory(3)) == 0
    assert traces.memory(3).schema == arrow_schema("memory")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(
    names=st.lists(TEXT, min_size=1, max_size=20),
    starts=st.lists(st.integers(-(2**62), 2**62), min_size=20, max_size=20),
    info=st.builds(
        RankInfo,
        rank=st.integers(0, 10**6),
        host=TEXT,
        groups=st.lists(
            st.builds(GroupInfo, name=TEXT, ranks=st.lists(st.integers(0, 9), max_size=4)),
            max_size=3,
        ),
        steps=st.lists(
            st.builds(StepInfo, step=st.integers(0, 9), start_ns=st.integers(), end_ns=st.just(3)),
            max_size=2,
        ),
        dropped=st.lists(st.builds(Dropped, reason=TEXT, count=st.integers(0, 9)), max_size=2),
        versions=st.dictionaries(TEXT, TEXT, max_size=2),
    ),
)
def test_round_trip_of_anything(names: list[str], starts: list[int], info: RankInfo) -> None:
    path = f"memory://{uuid.uuid4()}/a.trace"
    table = make_table("events", len(names))
    table = table.set_column(1, EVENTS[1].name, arrow.texts(names))
    table = table.set_column(2, EVENTS[2].name, pa.array(sorted(starts[: len(names)])))
    table = table.cast(arrow_schema("events"))
    writer = TraceSetWriter(path)
    writer.write_rank(RankTables(info, table, make_table("collectives", 0)))
    writer.finish()
    traces = TraceSet.open(path)
    assert traces.events(info.rank).to_pylist() == table.to_pylist()
    assert msgspec.structs.replace(traces.info(info.rank), format_version=0) == info


def test_columns_and_pandas(tmp_path: Path) -> None:
    write_set(tmp_path / "a.trace")
    traces = TraceSet.open(tmp_path / "a.trace")
    table = traces.events(1, columns=["name", "start_ns"])
    assert table.column_names == ["name", "start_ns"]
    assert all(column.num_chunks == 1 for column in table.columns)
    frame = traces.events(1, columns=["start_ns"], pandas=True)
    assert isinstance(frame, pd.DataFrame)
    assert frame["start_ns"].tolist() == table["start_ns"].to_pylist()
    with pytest.raises(IncompleteTraceError, match="no column nonsense"):
        traces.events(1, columns=["nonsense"])
    with pytest.raises(IncompleteTraceError, match="no rank 9; it holds ranks 0-1"):
        traces.events(9)


def test_row_groups_are_joined_and_ordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretrace.traces.parquet.ROW_GROUP_ROWS", 4)
    write_set(tmp_path / "a.trace", (0,), rows=11)
    file = pq.ParquetFile(tmp_path / "a.trace/rank=00000/events.parquet")
    assert file.num_row_groups == math.ceil(11 / 4)
    column = file.schema_arrow.names.index("start_ns")
    spans = [file.metadata.row_group(i).column(column).statistics for i in range(3)]
    assert all(a.max <= b.min for a, b in pairwise(spans))
    events = TraceSet.open(tmp_path / "a.trace").events(0)
    assert events.to_pylist() == make_table("events", 11, 0).to_pylist()
    assert events["name"].num_chunks == 1


def test_columns_that_an_older_file_lacks_are_filled(tmp_path: Path) -> None:
    write_set(tmp_path / "a.trace", (0,))
    file = tmp_path / "a.trace/rank=00000/events.parquet"
    table = pq.read_table(file)
    pq.write_table(table.drop_columns(["rf_id", "grid"]), file)
    traces = TraceSet.open(tmp_path / "a.trace")
    assert traces.events(0)["rf_id"].to_pylist() == [-1] * 6
    assert traces.events(0, ["grid"])["grid"].to_pylist() == [""] * 6
    pq.write_table(table.drop_columns(["start_ns"]), file)
    with pytest.raises(IncompleteTraceError, match="start_ns"):
        traces.events(0)


def test_rewriting_a_rank_replaces_it(tmp_path: Path) -> None:
    writer = write_set(tmp_path / "a.trace")
    writer.write_rank(make_rank(1, 20))
    assert len(TraceSet.open(tmp_path / "a.trace").events(1)) == 20
    assert sorted(p.name for p in (tmp_path / "a.trace").iterdir()) == [
        "manifest.json", "rank=00000", "rank=00001",
    ]  # fmt: skip


@pytest.mark.parametrize("url", ["local", "memory"])
def test_writing_that_fails_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    path = f"memory://{uuid.uuid4()}/a.trace" if url == "memory" else str(tmp_path / "a.trace")
    write_set(path)
    real = pq.write_table
    calls = []

    def failing(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("disk full")
        real(*args, **kwargs)

    monkeypatch.setattr("pyarrow.parquet.write_table", failing)
    with pytest.raises(OSError, match="disk full"):
        TraceSetWriter(path).write_rank(make_rank(2))
    traces = TraceSet.open(path)
    assert traces.ranks == [0, 1]
    if url == "local":
        assert traces.problems == []
        assert not list(tmp_path.rglob("*.part"))


def test_half_written_set_opens_with_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    write_set(path, (0, 1, 2))
    (path / "manifest.json").unlink()
    (path / "rank=00001/manifest.json").unlink()
    (path / "rank=00002/manifest.json").write_text('{"rank": 2')
    traces = TraceSet.open(path)
    assert traces.ranks == [0]
    assert len(traces.events(0)) == 6
    assert traces.problems[0].startswith("no index: ")
    assert any("rank=00001 has no manifest" in p for p in traces.problems)
    assert any("rank=00002" in p and "damaged manifest" in p for p in traces.problems)


def test_index_and_folders_that_disagree(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    writer = write_set(path, (0, 1))
    writer.write_rank(make_rank(2))
    Folder.at(path).remove("rank=00000")
    traces = TraceSet.open(path)
    assert traces.ranks == [1, 2]
    assert traces.problems == [
        "rank 0: in the index, but the folder is gone",
        "rank 2: not in the index, written after it",
    ]


def test_missing_or_damaged_table(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    write_set(path)
    (path / "rank=00000/events.parquet").unlink()
    (path / "rank=00001/events.parquet").write_bytes(b"PAR1 no")
    traces = TraceSet.open(path)
    with pytest.raises(IncompleteTraceError, match=r"rank=00000/events\.parquet: the file is gone"):
        traces.events(0)
    with pytest.raises(TraceFormatError, match="not a readable Parquet file"):
        traces.events(1)


def test_nothing_whole_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.trace/rank=00000").mkdir(parents=True)
    with pytest.raises(IncompleteTraceError, match="no rank of this trace set is whole"):
        TraceSet.open(tmp_path / "a.trace")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceFormatError, match="an empty folder"):
        TraceSet.open(tmp_path / "empty")
    with pytest.raises(TraceFormatError, match="there is nothing"):
        TraceSet.open(tmp_path / "absent")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x.txt").write_text("x")
    with pytest.raises(TraceFormatError, match="no trace set"):
        TraceSet.open(tmp_path / "other")
    with pytest.raises(IncompleteTraceError, match="no whole rank"):
        TraceSetWriter(tmp_path / "new.trace").finish()


def test_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    write_set(path)
    for file in (path / "manifest.json", path / "rank=00000/manifest.json"):
        data = json.loads(file.read_text())
        assert data["format_version"] == FORMAT_VERSION
        file.write_text(json.dumps(data | {"format_version": FORMAT_VERSION + 1}))
    with pytest.raises(TraceFormatError, match="use a newer foretrace"):
        TraceSet.open(path)
    (path / "manifest.json").unlink()
    traces = TraceSet.open(path)  # the other rank still opens
    assert traces.ranks == [1]
    assert any("use a newer foretrace" in p for p in traces.problems)


def test_unknown_fields_of_a_manifest_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    write_set(path)
    data = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(data | {"later": {"x": 1}}))
    assert TraceSet.open(path).ranks == [0, 1]


def test_groups_and_steps(tmp_path: Path) -> None:
    groups = [
        GroupInfo(name="0", ranks=[0, 1, 2, 3], size=4),
        GroupInfo(name="1", ranks=[1, 0], size=2),
        GroupInfo(name="0x7f", size=8),
    ]
    steps = [StepInfo(step=4, start_ns=1, end_ns=2), StepInfo(step=3, start_ns=0, end_ns=1)]
    write_set(tmp_path / "a.trace", groups=groups, steps=steps)
    traces = TraceSet.open(tmp_path / "a.trace")
    assert traces.groups == [(0, 1, 2, 3), (1, 0)]
    assert traces.steps == [3, 4]
    assert traces.info(1).groups == groups


def test_opening_many_ranks_reads_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 ranks with a group of everybody: the index must hold that group once."""
    world = 10_000
    everybody = GroupInfo(name="0", ranks=list(range(world)), size=world)
    infos = [
        RankInfo(
            rank=rank,
            world_size=world,
            format_version=FORMAT_VERSION,
            groups=[everybody, GroupInfo(name="1", ranks=[rank - rank % 8 + i for i in range(8)])],
            steps=[StepInfo(step=s, start_ns=s, end_ns=s + 1) for s in range(3)],
        )
        for rank in range(world)
    ]
    index = pack(infos, {}, "test")
    assert len(index.members) == 1 + world // 8
    path = tmp_path / "big.trace"
    for rank in range(world):
        (path / f"rank={rank:05d}").mkdir(parents=True)
    data = msgspec.json.encode(index)
    assert len(data) < 10_000_000
    (path / "manifest.json").write_bytes(data)
    read: list[str] = []
    real = Folder.read

    def counting(self: Folder, *names: str) -> bytes:
        read.append("/".join(names))
        return real(self, *names)

    monkeypatch.setattr(Folder, "read", counting)
    traces = TraceSet.open(path)
    assert len(traces.ranks) == world
    assert read == ["manifest.json"]
    assert len(traces.info(9_999).groups[0].ranks) == world
    assert len(traces.groups) == 1 + world // 8


def test_pack_and_unpack_are_inverse() -> None:
    infos = [
        RankInfo(rank=r, groups=[GroupInfo(name="a", ranks=[0, 1]), GroupInfo(name="b")])
        for r in (1, 0)
    ]
    index = pack(infos, {"x": 1}, "t")
    assert isinstance(index, Index)
    assert [unpack(i, index.members) for i in index.ranks] == sorted(infos, key=lambda i: i.rank)


def test_describe_ranks() -> None:
    assert describe_ranks([]) == "no ranks"
    assert describe_ranks([3]) == "rank 3"
    assert describe_ranks([0, 1, 2, 5, 7, 8]) == "ranks 0-2, 5, 7-8"


def test_every_column_says_its_meaning() -> None:
    for column in (*EVENTS, *COLLECTIVES):
        assert column.doc.endswith(".")
        assert not column.name.endswith("_us")
