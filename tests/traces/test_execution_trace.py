"""PyTorch execution traces: all schemas, groups, collectives, damage, and beside Kineto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.traces.kineto import document, kernel, lasting, launch, write

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers import execution_trace, import_paths, kineto
from foretrace.traces.store import RankTables, TraceSet

GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 4, "group_count": 2},
    {"pg_name": "7", "pg_desc": "tp", "ranks": [2, 3], "group_size": 2, "group_count": 2},
]


def tensor(storage: int, elements: int = 8, width: int = 4) -> list[Any]:
    return [storage, storage, 0, elements, width, "cuda:0"]


def node(number: int, name: str, parent: int = 1, **more: Any) -> dict[str, Any]:
    """A node in the words of schema 1.1.0."""
    attrs = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0}
    attrs |= more.pop("attrs", {})
    values, types = more.pop("values", []), more.pop("types", [])
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {"values": values, "shapes": more.pop("shapes", []), "types": types},
        "outputs": {"values": more.pop("outputs", []), "shapes": [], "types": []},
        "attrs": [{"name": k, "type": "uint64", "value": v} for k, v in attrs.items()],
    }


def comm(number: int, name: str, seq: int, rank: int, group: str = "7", **attrs: Any) -> Any:
    values = [[tensor(5)], seq, [group, ""], rank, name, [], []]
    return node(
        number,
        "record_param_comms",
        values=values,
        outputs=[[tensor(5)]],
        types=["GenericList[Tensor(c10::BFloat16)]"],
        attrs=attrs,
    )


def trace(nodes: list[dict[str, Any]], schema: str = "1.1.0-chakra.0.0.4") -> bytes:
    root = node(1, "[pytorch|profiler|execution_trace|process]")
    head = {"schema": schema, "pid": 1, "time": "now", "start_ts": 1, "finish_ts": 2}
    return json.dumps({**head, "nodes": [root, *nodes]}).encode()


def init(number: int = 2) -> dict[str, Any]:
    return node(number, "## process_group:init ##", values=[json.dumps(GROUPS)])


def read(data: bytes) -> RankTables:
    assert execution_trace.sniff(data[:4096], "x.json")
    assert not kineto.sniff(data[:4096], "x.json")
    return execution_trace.read([data[:50], data[50:]])


def reasons(tables: RankTables) -> dict[str, int]:
    return {d.reason.split(":")[0]: d.count for d in tables.info.dropped}


@pytest.mark.parametrize(
    "schema",
    [
        "1.0.2-chakra.0.0.4",
        "1.0.3-chakra.0.0.4",
        "1.1.0-chakra.0.0.4",
        "1.1.1-chakra.0.0.4",
        "1.1.1-chakra.1.0.0",
    ],
)
def test_nested_schemas(schema: str) -> None:
    tables = read(
        trace(
            [
                node(3, "aten::add", values=[tensor(5), 2], types=["Tensor(float)", "Int"]),
                node(4, "step", attrs={"scope": 7, "tid": 2, "fw_tid": 1, "seq_id": 9}),
            ],
            schema,
        )
    )
    rows = tables.events.to_pylist()
    assert [r["name"] for r in rows] == ["aten::add", "step"]
    assert [r["kind"] for r in rows] == ["host_op", "annotation"]
    assert [r["thread"] for r in rows] == [1, 2]
    assert [r["rf_id"] for r in rows] == [3, 4]
    assert rows[1]["sequence"] == 9
    assert rows[1]["fwd_thread"] == 1
    assert rows[0]["inputs"] == '["","2"]'
    assert tables.info.versions == {"execution_trace_schema": schema}


def test_flat_schema() -> None:
    flat = {
        "name": "record_param_comms",
        "id": 5,
        "rf_id": 3,
        "parent": 2,
        "fw_parent": 0,
        "seq_id": -1,
        "scope": 0,
        "tid": 1,
        "fw_tid": 0,
        "op_schema": "",
        "inputs": [[tensor(9, 100, 2)], 337, 93825133356096, 3, "allreduce", [], [], 8],
        "input_shapes": [[[100]], [], [], [], [], [], [], []],
        "input_types": ["GenericList[Tensor(c10::Half)]", *["Int"] * 7],
        "outputs": [[tensor(9, 100, 2)]],
        "output_shapes": [],
        "output_types": [],
    }
    wait = {**flat, "id": 6, "rf_id": 4, "inputs": [337, 0, 3, "wait", [], [], 1], "outputs": []}
    tables = read(trace([flat, wait], "1.0.1"))
    (row,) = tables.collectives.to_pylist()
    assert (row["kind"], row["seq"], row["group_rank"]) == ("all_reduce", 337, 3)
    assert (row["group_key"], row["group_size"], row["dtype"]) == ("93825133356096", 8, "Half")
    assert (row["bytes_in"], row["bytes_out"]) == (200, 200)
    assert (row["call_event"], row["wait_event"]) == (0, 1)
    assert tables.info.rank == -1  # a number within a group whose members nobody wrote


def test_times_are_called_an_order() -> None:
    tables = read(trace([node(9, "b"), node(3, "a")]))
    assert tables.events["name"].to_pylist() == ["a", "b"]
    assert tables.events["start_ns"].to_pylist() == [0, 1]
    assert tables.events["dur_ns"].to_pylist() == [0, 0]
    assert tables.info.labels["times"] == "order"
    assert reasons(tables)["no times in an execution trace"] == 2


def test_groups_and_rank() -> None:
    tables = read(
        trace([init(), comm(3, "allreduce", 1, rank=1), comm(4, "_allgather_base", 2, 1)])
    )
    assert [(g.name, g.ranks) for g in tables.info.groups] == [("0", [0, 1, 2, 3]), ("7", [2, 3])]
    assert (tables.info.rank, tables.info.rank_from) == (3, "collectives")
    assert tables.info.world_size == 4
    first, second = tables.collectives.to_pylist()
    assert (first["group"], first["group_size"], first["group_rank"]) == (1, 2, 1)
    assert second["kind"] == "all_gather"


def test_number_in_a_rooted_call_is_the_root() -> None:
    tables = read(trace([init(), comm(3, "broadcast", 1, rank=0), comm(4, "allreduce", 2, rank=1)]))
    broadcast, _ = tables.collectives.to_pylist()
    assert broadcast["peer"] == 2  # number 0 of ranks 2 and 3
    assert tables.info.rank == 3


def test_ranks_that_disagree_are_no_rank() -> None:
    tables = read(trace([init(), comm(3, "allreduce", 1, rank=0), comm(4, "allreduce", 2, rank=1)]))
    assert tables.info.rank == -1


def test_attributes_overrule_inputs() -> None:
    attrs = {
        "collective_name": "all_to_allv",
        "dtype": "Float",
        "in_msg_nelems": 10,
        "out_msg_nelems": 30,
        "in_split_size": "[4, 6]",
        "out_split_size": "[10, 20]",
        "pg_name": "12",
        "pg_desc": "ep",
        "pg_size": 2,
        "global_rank_start": 1,
        "global_rank_stride": 4,
    }
    tables = read(trace([comm(3, "x", 5, rank=0, **attrs)]))
    (row,) = tables.collectives.to_pylist()
    assert (row["kind"], row["bytes_in"], row["bytes_out"]) == ("all_to_all", 40, 120)
    assert (row["in_splits"], row["out_splits"]) == ([4, 6], [10, 20])
    assert tables.info.groups[row["group"]].ranks == [1, 5]
    assert tables.info.groups[row["group"]].description == "ep"


def test_data_goes_from_the_last_writer_to_its_readers() -> None:
    tables = read(
        trace(
            [
                node(3, "outer", values=[tensor(5)], outputs=[tensor(6)]),
                node(4, "write", parent=3, outputs=[tensor(6)]),
                node(5, "again", outputs=[tensor(6)], values=[[tensor(6)]]),
                node(6, "read", values=[tensor(6), tensor(8)]),
            ]
        )
    )
    assert tables.dependencies is not None
    edges = tables.dependencies.to_pylist()
    assert [(e["source"], e["target"], e["kind"]) for e in edges] == [
        (1, 2, "data"),
        (2, 3, "data"),
    ]


def test_missing_callers_are_counted() -> None:
    tables = read(trace([node(3, "a", parent=99), node(4, "b", parent=3)]))
    assert reasons(tables)["caller missing in the file (calls kept)"] == 1
    assert len(tables.events) == 2


def test_missing_comma_and_brace_cost_no_other_node() -> None:
    data = trace([node(3, "a"), node(4, "b"), node(5, "c")])
    at = data.index(b', {"id": 4')
    tables = read(data[:at] + data[at + 1 :])  # the comma between two nodes
    assert tables.events["name"].to_pylist() == ["a", "b", "c"]
    broken = data.replace(b'"name": "b", "ctrl_deps"', b'"name": "b" "ctrl_deps"')
    tables = read(broken)
    assert tables.events["name"].to_pylist() == ["a", "c"]
    assert reasons(tables)["damaged node"] == 1


def test_every_cut_gives_whole_nodes_or_an_error() -> None:
    data = trace([init(), comm(3, "allreduce", 1, 1), node(4, "b")])
    for stop in range(100, len(data)):
        try:
            tables = execution_trace.read([data[:stop]])
        except TraceFormatError:
            continue
        names = tables.events["name"].to_pylist()
        assert names == ["## process_group:init ##", "record_param_comms", "b"][: len(names)]
        assert stop == len(data) or reasons(tables)


def test_no_calls_is_an_error() -> None:
    with pytest.raises(TraceFormatError, match="holds no calls"):
        execution_trace.read([trace([])])
    with pytest.raises(TraceFormatError, match="no list of nodes"):
        execution_trace.read([b'{"schema": "1.0.1"}'])


def profiled(rf_ids: bool = True) -> dict[str, Any]:
    """A profiler trace of rank 3 with one collective, whose size it does not tell."""
    args: dict[str, Any] = {"External id": 1}
    if rf_ids:
        args["Record function id"] = 3
    result = document(
        [
            lasting("cpu_op", "record_param_comms", 10, 5, args=args),
            launch(11, 77),
            kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 20, 8, 77),
        ],
        rank=3,
    )
    result["distributedInfo"]["world_size"] = 4
    return result


def test_beside_a_profiler_trace(tmp_path: Path) -> None:
    write(tmp_path / "job/kineto.json", profiled())
    write(tmp_path / "job/et.json", trace([init(), comm(3, "allreduce", 6, rank=1)]))
    report = import_paths([tmp_path / "job"], tmp_path / "o.trace", jobs=1)
    assert report.ranks == [3]
    traces = TraceSet.open(tmp_path / "o.trace")
    (row,) = traces.collectives(3).to_pylist()
    assert (row["seq"], row["bytes_in"], row["dtype"]) == (6, 32, "BFloat16")
    assert (row["group_size"], row["group_rank"], row["work_event"]) == (2, 1, 2)
    info = traces.info(3)
    assert info.groups[row["group"]].ranks == [2, 3]
    assert "kineto.json + " in info.source
    assert "times" not in info.labels
    assert not any(d.reason.startswith("no times") for d in info.dropped)
    assert traces.events(3)["start_ns"].to_pylist() == [10_000, 11_000, 20_000]
    assert not [p for p in (tmp_path / "o.trace").iterdir() if p.name.startswith("part=")]


def test_conflicts_are_reported_and_the_profiler_is_right(tmp_path: Path) -> None:
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 100,
        "Out msg nelems": 100,
        "Group size": 2,
        "dtype": "BFloat16",
        "Record function id": 3,
    }
    data = profiled()
    data["traceEvents"][0]["args"] |= args
    write(tmp_path / "job/kineto.json", data)
    write(tmp_path / "job/et.json", trace([init(), comm(3, "allreduce", 6, rank=1)]))
    import_paths([tmp_path / "job"], tmp_path / "o.trace", jobs=1)
    traces = TraceSet.open(tmp_path / "o.trace")
    assert traces.collectives(3)["bytes_in"].to_pylist() == [200]
    told = {d.reason: d.example for d in traces.info(3).dropped}
    assert "200 against 32" in told["bytes_in differs from et.json (the first source's kept)"]


def test_without_ids_threads_are_told_by_their_operators(tmp_path: Path) -> None:
    names = [f"aten::op{i % 7}" for i in range(40)]
    rows = [lasting("cpu_op", n, 10 * i, 5) for i, n in enumerate(names)]
    write(tmp_path / "job/kineto.json", document(rows, rank=0))
    nodes = [
        node(i + 3, n, shapes=[[i]], values=[tensor(i)], outputs=[tensor(i + 1)])
        for i, n in enumerate(names)
    ]
    write(tmp_path / "job/et_rank0.json", trace(nodes))
    import_paths([tmp_path / "job"], tmp_path / "o.trace", jobs=1)
    traces = TraceSet.open(tmp_path / "o.trace")
    assert traces.events(0)["shapes"].to_pylist() == [f"[[{i}]]" for i in range(40)]
    assert len(traces.dependencies(0)) == 39


def test_two_execution_traces_of_a_rank_are_an_error(tmp_path: Path) -> None:
    from foretrace.traces.errors import IncompleteTraceError

    write(tmp_path / "a/rank0.json", trace([node(3, "a")]))
    write(tmp_path / "b/rank0.json", trace([node(3, "b")]))
    with pytest.raises(IncompleteTraceError, match="two files of rank 0"):
        import_paths([tmp_path], tmp_path / "o.trace", jobs=1)


REAL = [
    ("et/resnet_et.json.gz", 1, 1310, 0),
    ("et/resnet_2gpu_et.json.gz", 1, 14389, 21),
    ("et/triosim-vgg13-h100-et.json.gz", 1, 900, 0),
    ("megatron-tp8-a100/et", 8, 43376, 680),
    ("dlrm-8xv100/dlrm_pytorch_et.tar.gz", 8, 13376, 64),
    ("chakra/1.0.2-chakra.0.0.4.tgz", 1, 261, 10),
]


@pytest.mark.parametrize(("path", "ranks", "events", "collectives"), REAL)
def test_real_files(
    shared_data: Path, tmp_path: Path, path: str, ranks: int, events: int, collectives: int
) -> None:
    report = import_paths([shared_data / "traces" / path], tmp_path / "o.trace", jobs=1)
    traces = TraceSet.open(tmp_path / "o.trace")
    assert (len(report.ranks), report.events) == (ranks, events)
    assert sum(len(traces.collectives(r)) for r in traces.ranks) == collectives
    for rank in traces.ranks:
        known = traces.collectives(rank).to_pylist()
        assert all(row["bytes_in"] >= 0 and row["dtype"] for row in known)
        assert [d.reason for d in traces.info(rank).dropped] == [execution_trace._NO_TIMES]


def test_real_pair_without_ids(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "traces/megatron-tp8-a100"
    import_paths([folder / "kineto/rank5.json.gz", folder / "et/rank5.json.gz"], tmp_path / "o")
    both = TraceSet.open(tmp_path / "o")
    import_paths([folder / "kineto/rank5.json.gz"], tmp_path / "p")
    alone = TraceSet.open(tmp_path / "p")
    unchanged = ["kind", "name", "start_ns", "dur_ns", "stream", "correlation"]
    assert both.events(5, unchanged).equals(alone.events(5, unchanged))
    assert len(both.dependencies(5)) > 1000
    ours, theirs = both.collectives(5), alone.collectives(5)
    assert ours.select(["kind", "seq", "bytes_in"]).equals(
        theirs.select(["kind", "seq", "bytes_in"])
    )
    assert not any("differs" in d.reason for d in both.info(5).dropped)


@pytest.mark.torch
def test_pair_of_the_installed_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

    observer = ExecutionTraceObserver().register_callback(str(tmp_path / "et.json"))
    layer = torch.nn.Linear(8, 8)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=False, execution_trace_observer=observer
    ) as recorded:
        layer(torch.ones(4, 8)).sum().backward()
    observer.unregister_callback()
    recorded.export_chrome_trace(str(tmp_path / "kineto.json"))
    report = import_paths([tmp_path / "et.json", tmp_path / "kineto.json"], tmp_path / "o", jobs=1)
    assert report.ranks == [0]
    events = TraceSet.open(tmp_path / "o").events(0).to_pylist()
    linear = next(e for e in events if e["name"] == "aten::linear")
    assert json.loads(linear["shapes"])[:2] == [[4, 8], [8, 8]]
    assert linear["dur_ns"] > 0
    ids = [e for e in events if e["kind"] == "host_op" and e["rf_id"] > 0]
    assert sum(bool(e["shapes"]) for e in ids) > 0.8 * len(ids)
