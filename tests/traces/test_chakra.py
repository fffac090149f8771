"""Chakra graphs: read, written, damaged, and there and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.traces.kineto import document, kernel, lasting, launch, write

from foretrace.traces.chakra_messages import NODE_TYPES, messages, read_varint, varint
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.exporters.chakra import (
    Edges,
    RankFacts,
    Tasks,
    encode_rank,
    export_chakra,
    whole_micros,
)
from foretrace.traces.importers import chakra, import_paths
from foretrace.traces.store import RankTables, TraceSet

COMP, COLL = NODE_TYPES.index("COMP_NODE"), NODE_TYPES.index("COMM_COLL_NODE")
SEND, RECV = NODE_TYPES.index("COMM_SEND_NODE"), NODE_TYPES.index("COMM_RECV_NODE")


def raw_field(number: int, value: int | bytes | str) -> bytes:
    """One protobuf field, put together by hand."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def attribute(name: str, number: int, value: int | str) -> bytes:
    return raw_field(10, raw_field(1, name) + raw_field(number, value))


INT64, BOOL, TEXT = 9, 27, 29  # numbers of an attribute's values


def node(number: int, name: str, kind: int, micros: int, *rest: bytes) -> bytes:
    fields = [raw_field(1, number), raw_field(2, name), raw_field(3, kind), raw_field(7, micros)]
    return b"".join([*fields, *rest])


def on_cpu(cpu: bool) -> bytes:
    return attribute("is_cpu_op", BOOL, int(cpu))


def graph(*nodes: bytes, version: str = "0.0.4") -> bytes:
    return b"".join(varint(len(m)) + m for m in (raw_field(1, version), *nodes))


def read(data: bytes) -> RankTables:
    assert chakra.sniff(data[:4096], "x.et")
    return chakra.read([data[:7], data[7:]])


def reasons(tables: RankTables) -> dict[str, int]:
    return {d.reason.split(":")[0].split(" (")[0]: d.count for d in tables.info.dropped}


def edges_of(tables: RankTables) -> set[tuple[str, str, str]]:
    """Edges by the names of their ends."""
    assert tables.dependencies is not None
    names = tables.events["name"].to_pylist()
    return {
        (names[e["source"]], names[e["target"]], e["kind"]) for e in tables.dependencies.to_pylist()
    }


def test_hand_made_bytes() -> None:
    tables = read(
        graph(
            node(1, "op", COMP, 10, on_cpu(True), attribute("tid", INT64, 3)),
            node(
                2, "gemm", COMP, 30, on_cpu(False), raw_field(5, 1), attribute("stream", INT64, 7)
            ),
            node(
                *(3, "ncclKernel_AllReduce", COLL, 5),
                on_cpu(False),
                raw_field(4, varint(1) + varint(2)),  # packed
                attribute("comm_type", INT64, 0),
                attribute("comm_size", INT64, 4096),
                attribute("pg_name", TEXT, "2"),
                attribute("stream", INT64, 20),
            ),
        )
    )
    rows = tables.events.to_pylist()
    assert [(r["name"], r["kind"], r["start_ns"], r["dur_ns"]) for r in rows] == [
        ("op", "host_op", 0, 10_000),
        ("gemm", "kernel", 10_000, 30_000),
        ("ncclKernel_AllReduce", "kernel", 40_000, 5_000),
    ]
    assert [(r["thread"], r["stream"]) for r in rows] == [(3, -1), (-1, 7), (-1, 20)]
    assert edges_of(tables) == {
        ("op", "gemm", "data"),
        ("op", "ncclKernel_AllReduce", "ctrl"),
        ("gemm", "ncclKernel_AllReduce", "ctrl"),
    }
    (row,) = tables.collectives.to_pylist()
    assert (row["kind"], row["bytes_in"], row["group_key"]) == ("all_reduce", 4096, "2")
    assert (row["work_event"], row["call_event"]) == (2, 0)
    assert tables.info.labels["times"] == "laid out"
    assert reasons(tables) == {"no times in a Chakra graph": 3}


def test_recorded_times_are_kept() -> None:
    tables = read(graph(node(1, "a", COMP, 4, raw_field(6, 100)), node(2, "b", COMP, 4)))
    assert sorted(tables.events["start_ns"].to_pylist()) == [0, 100_000]
    assert "times" not in tables.info.labels


def test_messages_know_their_peers() -> None:
    ends = [attribute("comm_src", 7, 1), attribute("comm_dst", 7, 2), attribute("comm_tag", 7, 9)]
    size = attribute("comm_size", INT64, 64)
    tables = read(graph(node(1, "s", SEND, 4, *ends, size), node(2, "r", RECV, 4, *ends, size)))
    send, recv = tables.collectives.to_pylist()
    assert (send["kind"], send["peer"], send["bytes_in"], send["bytes_out"]) == ("send", 2, 64, 0)
    assert (recv["kind"], recv["peer"], recv["bytes_in"], recv["bytes_out"]) == ("recv", 1, 0, 64)
    assert send["p2p"]
    assert send["seq"] == 9


def test_groups_out_of_a_metadata_node() -> None:
    entry = {"pg_name": "3", "pg_desc": "dp", "ranks": [0, 2], "group_size": 2}
    listed = raw_field(8, raw_field(1, f"['[{json.dumps(entry)}]']"))
    tables = read(
        graph(
            node(1, "## process_group:init ##", 1, 0, listed),
            node(2, "ar", COLL, 1, attribute("pg_name", TEXT, "3"), attribute("comm_type", 9, 2)),
        )
    )
    (row,) = tables.collectives.to_pylist()
    assert tables.info.groups[row["group"]].ranks == [0, 2]
    assert (row["kind"], row["group_size"]) == ("all_gather", 2)


def test_missing_nodes_cycles_and_doubles_are_counted() -> None:
    tables = read(
        graph(
            node(1, "a", COMP, 1, raw_field(4, 2), raw_field(5, 99)),
            node(2, "b", COMP, 1, raw_field(5, 1)),
            node(2, "c", COMP, 1),
        )
    )
    assert edges_of(tables) == {("a", "b", "data")}
    told = reasons(tables)
    assert told["dependency on a node that is not in the file"] == 1
    assert told["dependency that closes a cycle"] == 1
    assert told["second node of the same id"] == 1


def test_every_cut_gives_whole_nodes_or_an_error() -> None:
    data = graph(*(node(i, f"n{i}", COMP, i) for i in range(1, 9)))
    for stop in range(len(data)):
        try:
            tables = chakra.read([data[:stop]])
        except TraceFormatError:
            continue
        names = tables.events["name"].to_pylist()
        assert set(names) == {f"n{i + 1}" for i in range(len(names))}


@settings(max_examples=200)
@given(st.data())
def test_changed_bytes_give_data_or_an_error(data: st.DataObject) -> None:
    text = bytearray(graph(*(node(i, f"n{i}", COMP, i, raw_field(5, i - 1)) for i in range(1, 9))))
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    if chakra.sniff(bytes(text[:4096]), "x.et"):
        try:
            tables = chakra.read([bytes(text)])
        except TraceFormatError:
            return
        assert len(tables.events)


def test_json_of_the_feeder() -> None:
    nodes = [
        {"Id": 1, "Name": "a", "NodeType": 4, "runtime": 7, "is_cpu_op": True, "data_deps": []},
        {"Id": 2, "Name": "b", "NodeType": 7, "runtime": 5, "is_cpu_op": False, "ctrlDeps": [1]},
        {"Name": "no id"},
    ]
    tables = read(json.dumps({"workload_graph": nodes, "ngpus": 8}).encode())
    assert tables.events["dur_ns"].to_pylist() == [7000, 5000]
    assert edges_of(tables) == {("a", "b", "ctrl")}
    assert reasons(tables)["damaged node"] == 1


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 1)), max_size=40))
def test_whole_microseconds_keep_the_total_of_each_lane(tasks: list[tuple[int, int]]) -> None:
    dur = np.array([d for d, _ in tasks], np.int64)
    thread = np.array([t for _, t in tasks], np.int64)
    none = np.full(len(tasks), -1, np.int64)
    names = [""] * len(tasks)
    micros = whole_micros(Tasks(names, names, dur, thread, none, none))
    assert (abs(micros * 1000 - dur) <= 1000).all()
    for lane in (0, 1):
        total = int(dur[thread == lane].sum())
        assert abs(int(micros[thread == lane].sum()) * 1000 - total) <= 500


def tasks_and_edges() -> tuple[Tasks, Edges, RankFacts]:
    absent = -1
    tasks = Tasks(
        name=["op", "gemm", "all-reduce", "send"],
        kind=["host_op", "kernel", "kernel", "kernel"],
        dur_ns=np.array([1_234, 56_789, 700, 10]),
        thread=np.array([4, absent, absent, absent]),
        device=np.array([absent, 1, 1, 1]),
        stream=np.array([absent, 7, 20, 21]),
        communication={
            2: {"kind": "all_reduce", "bytes_in": 64, "bytes_out": 64, "group": 0, "seq": 5},
            3: {"kind": "send", "bytes_in": 8, "bytes_out": 0, "peer": 0, "seq": 1, "group": 0},
        },
    )
    edges = Edges(np.array([0, 1, 1]), np.array([1, 2, 3]), np.array([True, True, False], np.bool_))
    return tasks, edges, RankFacts(1, 2, "", [[0, 1]], ["all"])


def test_plain_arrays_there_and_back() -> None:
    tables = read(encode_rank(*tasks_and_edges()))
    rows = {r["name"]: r for r in tables.events.to_pylist()}
    assert {n: r["dur_ns"] for n, r in rows.items() if r["kind"] != "annotation"} == {
        "op": 1_234,
        "gemm": 56_789,
        "all-reduce": 700,
        "send": 10,
    }
    assert rows["gemm"]["device"] == 1
    assert edges_of(tables) == {
        ("op", "gemm", "data"),
        ("gemm", "all-reduce", "data"),
        ("gemm", "send", "ctrl"),
    }
    by_kind = {r["kind"]: r for r in tables.collectives.to_pylist()}
    assert by_kind["all_reduce"]["seq"] == 5
    assert by_kind["send"]["peer"] == 0
    assert (tables.info.rank, tables.info.world_size) == (1, 2)
    assert tables.info.groups[by_kind["all_reduce"]["group"]].ranks == [0, 1]


def test_simulators_find_the_types_that_they_insist_on() -> None:
    data = encode_rank(*tasks_and_edges())
    size, at = read_varint(data, 0)
    at += size
    kinds: dict[str, dict[str, str]] = {}
    while at < len(data):
        size, at = read_varint(data, at)
        message = messages()["Node"]()
        message.ParseFromString(data[at : at + size])
        at += size
        kinds[message.name] = {a.name: a.WhichOneof("value") for a in message.attr}
    assert kinds["op"]["is_cpu_op"] == "bool_val"
    assert kinds["all-reduce"]["comm_type"] == "int64_val"
    assert kinds["all-reduce"]["comm_size"] == "int64_val"
    assert kinds["all-reduce"]["pg_name"] == "string_val"
    for name in ("comm_src", "comm_dst", "comm_tag"):
        assert kinds["send"][name] == "int32_val"


def test_operations_of_unknown_size_stay_computation() -> None:
    tasks, edges, facts = tasks_and_edges()
    row = {"kind": "all_reduce", "bytes_in": -1, "bytes_out": -1, "group": -1, "seq": -1}
    sizeless = Tasks(
        *(tasks.name, tasks.kind, tasks.dur_ns, tasks.thread, tasks.device, tasks.stream),
        communication={2: row},
    )
    tables = read(encode_rank(sizeless, edges, facts))
    (back,) = tables.collectives.to_pylist()
    assert (back["kind"], back["bytes_in"], back["group"]) == ("all_reduce", -1, -1)


def same(one: TraceSet, other: TraceSet, rank: int) -> None:
    """Tasks, durations and edges are the same."""
    columns = ["kind", "name", "dur_ns", "thread", "device", "stream", "rf_id", "shapes"]
    ours, theirs = (t.events(rank, columns).to_pylist() for t in (one, other))
    assert ours == [r for r in theirs if r["kind"] != "annotation"]
    edges = [
        sorted((e["source"], e["target"], e["kind"]) for e in t.dependencies(rank).to_pylist())
        for t in (one, other)
    ]
    assert edges[0] == edges[1]
    kept: list[Any] = ["kind", "work_event", "bytes_in", "bytes_out", "dtype", "seq", "p2p"]
    assert one.collectives(rank, kept).to_pylist() == other.collectives(rank, kept).to_pylist()


def there_and_back(path: Path, folder: Path) -> tuple[TraceSet, TraceSet]:
    import_paths([path], folder / "one.trace", jobs=1)
    one = TraceSet.open(folder / "one.trace")
    export_chakra(one, folder / "et")
    import_paths([folder / "et"], folder / "other.trace", jobs=1)
    return one, TraceSet.open(folder / "other.trace")


REAL = [
    ("chakra/chakra.0.et", 3664, 7),
    ("chakra/feeder_tests_trace.tar.gz", 11347, 14),
]


@pytest.mark.parametrize(("path", "nodes", "operations"), REAL)
def test_real_graphs_there_and_back(
    shared_data: Path, tmp_path: Path, path: str, nodes: int, operations: int
) -> None:
    one, other = there_and_back(shared_data / "traces" / path, tmp_path)
    assert len(one.events(0)) == nodes
    assert len(one.collectives(0)) == operations
    same(one, other, 0)


def test_real_json(shared_data: Path, tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(shared_data / "traces/chakra/json_trace.tar.gz") as tar:
        for member in ("chakra.0.json", "small_chakra.0.json"):
            file = tar.extractfile(f"jsonData/{member}")
            assert file is not None
            write(tmp_path / member, file.read())
    import_paths([tmp_path / "small_chakra.0.json"], tmp_path / "s.trace", jobs=1)
    small = TraceSet.open(tmp_path / "s.trace")
    assert len(small.events(0)) == 7
    assert sum(small.events(0)["dur_ns"].to_pylist()) == 695_000  # added up by hand
    import_paths([tmp_path / "chakra.0.json"], tmp_path / "b.trace", jobs=1)
    assert len(TraceSet.open(tmp_path / "b.trace").events(0)) > 3000


def profiled(rank: int) -> dict[str, Any]:
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 8,
        "Out msg nelems": 8,
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Seq": 3,
    }
    return document(
        [
            launch(10, 1),
            launch(15, 2),
            lasting("cpu_op", "record_param_comms", 14, 4, args=args),
            kernel("gemm", 12, 9, 1),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30, 5, 2, stream=20, **args),
        ],
        rank=rank,
    )


def test_a_profiled_job_there_and_back(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / f"job/rank{rank}.json", profiled(rank))
    one, other = there_and_back(tmp_path / "job", tmp_path)
    assert other.ranks == [0, 1]
    for rank in other.ranks:
        rows = other.events(rank).to_pylist()
        work = {r["name"]: r for r in rows if r["kind"] == "kernel"}
        assert {n: (r["start_ns"], r["dur_ns"]) for n, r in work.items()} == {
            "gemm": (12_000, 9_000),
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL": (30_000, 5_000),
        }
        (gap,) = [r for r in rows if r["kind"] == "host_op"]
        assert (gap["start_ns"], gap["dur_ns"]) == (11_000, 4_000)
        assert len(other.dependencies(rank)) == 4  # call, gap, call; two launches
        (row,) = other.collectives(rank).to_pylist()
        assert (row["kind"], row["seq"], row["bytes_in"]) == ("all_reduce", 3, 32)
        assert other.info(rank).groups[row["group"]].ranks == [0, 1]
    assert json.loads((tmp_path / "et/foretrace.groups.json").read_text()) == {"1": [0, 1]}
    assert one.ranks == other.ranks
