"""Files of the NCCL profiler plugins and of the NCCL Inspector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.traces.kineto import document, kernel, lasting, launch, write

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers import import_paths, nccl_inspector, nccl_plugin
from foretrace.traces.importers.registry import format_of
from foretrace.traces.store import RankTables, TraceSet

WORLD, PAIR = "0x7f8c496ae9f661", "0xaabbccdd11223344"


def lines(*objects: Any) -> bytes:
    return b"\n".join(o if isinstance(o, bytes) else json.dumps(o).encode() for o in objects)


def told(tables: RankTables) -> dict[str, int]:
    return {d.reason: d.count for d in tables.info.dropped}


def inspect(*objects: Any) -> dict[int, RankTables]:
    data = lines(*objects)
    assert format_of(data[:4096], "x.log") is nccl_inspector
    return {t.info.rank: t for t in nccl_inspector.read([data[:33], data[33:]])}


def perf(
    rank: int, comm: str = WORLD, size: int = 2, pid: int = 0, version: str = "v4.0", **values: Any
) -> dict[str, Any]:
    """One record of an inspector dump."""
    own = {
        "coll": "AllReduce",
        "coll_sn": 1,
        "coll_msg_size_bytes": 1024,
        "coll_exec_time_us": 40,
        "coll_timing_source": "kernel_gpu",
    }
    return {
        "header": {"id": comm, "rank": rank, "n_ranks": size, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": version,
            "dump_timestamp_us": 1_000_000,
            "hostname": "node",
            "pid": pid or 100 + rank,
        },
        "coll_perf": own | values,
    }


def test_durations_without_times_are_put_before_their_dump() -> None:
    (tables,) = inspect(perf(1), perf(1, coll_sn=2, coll_exec_time_us=7)).values()
    rows = tables.events.to_pylist()
    assert [(r["start_ns"], r["dur_ns"]) for r in rows] == [
        (999_953_000, 40_000),
        (999_993_000, 7_000),
    ]
    assert [r["exec_ns"] for r in tables.collectives.to_pylist()] == [40_000, 7_000]
    assert [r["seq"] for r in tables.collectives.to_pylist()] == [1, 2]
    assert told(tables) == {
        "no times of operations in the dump: put before the moment of the dump": 2
    }


def test_verbose_dumps_tell_when() -> None:
    trace = {
        "coll_start_ts": 500,
        "kernel_events": [
            {"channel_id": 0, "kernel_start_ts": 520, "kernel_stop_ts": 560},
            {"channel_id": 1, "kernel_start_ts": 510, "kernel_stop_ts": 0},
            {"channel_id": 2, "kernel_start_ts": 0, "kernel_stop_ts": 0},
        ],
    }
    (tables,) = inspect(perf(0, event_trace_ts=trace)).values()
    assert tables.events["start_ns"].to_pylist() == [510_000]
    assert told(tables) == {"channel with a start of 0": 1, "channel with a stop of 0": 2}


def test_newer_versions_name_algorithm_and_protocol() -> None:
    record = perf(0, version="v5.0", coll_algo="RING", coll_proto="LL", coll_n_channels=4)
    (tables,) = inspect(record).values()
    (row,) = tables.collectives.to_pylist()
    assert (row["algorithm"], row["protocol"], row["channels"]) == ("RING", "LL", 4)
    assert tables.info.versions == {"nccl_inspector": "v5.0"}


def test_header_of_a_dump_holds_for_what_follows() -> None:
    first = perf(1)
    head = {k: first[k] for k in ("header", "metadata")}
    stats = {"dump_stats": {"coll_records": 2, "coll_drops": 3, "p2p_dropped": 0}}
    tables = inspect(
        head | stats,
        {"coll_perf": first["coll_perf"]},
        {"p2p_perf": {"p2p": "Send", "p2p_sn": 9, "p2p_peer": 0, "p2p_msg_size_bytes": 16}},
        {"proxy_trace": {}},
    )[1]
    reduce_, send = sorted(tables.collectives.to_pylist(), key=lambda r: r["kind"])
    assert (reduce_["kind"], reduce_["group_rank"]) == ("all_reduce", 1)
    assert (send["kind"], send["peer"], send["bytes_in"], send["bytes_out"]) == ("send", 0, 16, 0)
    assert told(tables)["operations that the plugin itself dropped"] == 3
    assert told(tables)["record of another kind (left out)"] == 1


def test_durations_of_nothing_are_no_durations() -> None:
    (tables,) = inspect(perf(0, coll_exec_time_us=0, coll_timing_source="collective_cpu")).values()
    (row,) = tables.collectives.to_pylist()
    assert (row["exec_ns"], row["work_event"]) == (-1, -1)
    assert len(tables.events) == 0
    assert told(tables) == {"operation without a measured duration (kept without one)": 1}


def test_ranks_come_from_the_largest_communicator() -> None:
    found = inspect(
        *(perf(r, size=4) for r in range(4)),
        perf(0, PAIR, size=2, pid=101, coll="AllGather"),
        perf(1, PAIR, size=2, pid=103, coll="ReduceScatter"),
    )
    assert sorted(found) == [0, 1, 2, 3]
    gather = next(r for r in found[1].collectives.to_pylist() if r["kind"] == "all_gather")
    assert found[1].info.groups[gather["group"]].ranks == [1, 3]
    assert (gather["bytes_in"], gather["bytes_out"]) == (1024, 2048)
    scatter = next(r for r in found[3].collectives.to_pylist() if r["kind"] == "reduce_scatter")
    assert (scatter["bytes_in"], scatter["bytes_out"]) == (2048, 1024)


def test_without_a_largest_communicator_devices_are_numbered() -> None:
    found = inspect(perf(0, WORLD, pid=7), perf(0, PAIR, pid=5))
    assert {t.info.rank_from for t in found.values()} == {"order"}
    assert sorted(found) == [0, 1]


def test_lines_that_are_no_objects_are_counted() -> None:
    (tables,) = inspect(perf(0), b"malformed", b'{"header": {"id"').values()
    assert told(tables)["line that is no JSON object (left out)"] == 2


def test_a_dump_without_operations_is_an_error() -> None:
    with pytest.raises(TraceFormatError, match="holds no operations"):
        nccl_inspector.read([lines({"header": {}, "dump_stats": {}})])


def plugin(*objects: Any) -> dict[int, RankTables]:
    data = lines(*objects)
    assert format_of(data[:4096], "x.jsonl") is nccl_plugin
    return {t.info.rank: t for t in nccl_plugin.read([data[:33], data[33:]])}


def event(kind: str, start: float, stop: float, rank: int = 0, **fields: Any) -> dict[str, Any]:
    """One record of the plugin that writes lines."""
    return {
        "recordType": "event",
        "type": kind,
        "gpuUuid": f"gpu{rank}",
        "commId": 77,
        "rank": rank,
        "start": {"ts": start, "pid": 1, "tid": 9},
        "stop": {"ts": stop, "pid": 1, "tid": 9},
        "details": {},
    } | fields


def init(rank: int) -> dict[str, Any]:
    return {
        **event("ProfilerLifecycle", 1, 1, rank),
        "func": "ProfilerInit",
        "details": {"nranks": 2, "commName": "tp"},
    }


DETAILS = {
    "func": "AllReduce",
    "seq": 4,
    "algo": "TREE",
    "proto": "LL128",
    "channels": 2,
    "count": 100,
    "dtype": "ncclBfloat16",
    "root": 0,
}


def operation(start: float = 20.0, rank: int = 0, **fields: Any) -> dict[str, Any]:
    fields = {"eventAddr": "0xc", "parentObj": "0xa", "details": DETAILS} | fields
    return event("ncclProfileColl", start, start + 1, rank, **fields)


def channel(number: int, start: float, stop: float, parent: str = "0xc") -> dict[str, Any]:
    details = {"channel": number}
    return event("ncclProfileKernelCh", start, stop, parentObj=parent, details=details)


def test_operation_with_channels_only() -> None:
    tables = plugin(init(0), operation(), channel(0, 30, 50), channel(1, 28, 45))[0]
    (row,) = tables.collectives.to_pylist()
    assert (row["kind"], row["seq"], row["comm_id"]) == ("all_reduce", 4, 77)
    assert (row["algorithm"], row["protocol"], row["channels"]) == ("TREE", "LL128", 2)
    assert (row["bytes_in"], row["dtype"], row["exec_ns"]) == (200, "BFloat16", 22_000)
    work = tables.events.to_pylist()[row["work_event"]]
    assert (work["kind"], work["start_ns"], work["dur_ns"]) == ("kernel", 28_000, 22_000)
    group = tables.info.groups[row["group"]]
    assert (group.description, group.ranks) == ("tp", [0, 1])


def test_stops_of_0_leave_the_other_channels() -> None:
    tables = plugin(init(0), operation(), channel(0, 30, 50), channel(1, 31, 0.0))[0]
    assert tables.collectives["exec_ns"].to_pylist() == [20_000]
    assert told(tables) == {"channel without both of its times (the other channels count)": 1}


def test_nothing_but_zeros_is_an_unknown_duration() -> None:
    tables = plugin(init(0), operation(), channel(0, 0.0, 0.0))[0]
    (row,) = tables.collectives.to_pylist()
    assert (row["exec_ns"], row["work_event"]) == (-1, -1)
    assert told(tables)["operation without a kernel or a span on the device"] == 1


def test_events_with_a_start_or_stop_of_0_are_left_out() -> None:
    tables = plugin(
        init(0),
        event("ncclProfileKernelLaunch", 0.0, 5),
        event("ncclProfileProxyStep", 5, 0.0),
        event("ncclProfileProxyOp", 9, 8),
        operation(),
    )[0]
    assert len(tables.events) == 0
    assert told(tables)["event with a start of 0 (left out)"] == 1
    assert told(tables)["event with a stop of 0 (left out)"] == 1
    assert told(tables)["event that ends before it starts (left out)"] == 1


def test_addresses_are_used_again() -> None:
    found = plugin(
        *(init(0), operation(20), channel(0, 30, 50)),
        *(operation(60, details={**DETAILS, "seq": 5}), channel(0, 70, 75)),
        channel(0, 80, 90, parent="0xdead"),
    )[0]
    assert found.collectives.select(["seq", "exec_ns"]).to_pylist() == [
        {"seq": 4, "exec_ns": 20_000},
        {"seq": 5, "exec_ns": 5_000},
    ]
    assert told(found)["channel of an unknown operation (left out)"] == 1


def test_the_kernel_that_cupti_saw_belongs_to_who_launched_it() -> None:
    found = plugin(
        *(init(0), init(1)),
        event("ncclProfileCollApi", 10, 12, 1, eventAddr="0xa", parentObj="0x9", details=DETAILS),
        event("ncclProfileKernelLaunch", 15, 18, 1, parentObj="0x9", extCorrId=6),
        operation(20, 1),
        {
            **event("KERNEL", 30, 44, 0),  # CUPTI names the first device of the process
            "recordType": "cuptiActivity",
            "extCorrId": 6,
            "name": "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL",
            "deviceId": 1,
            "stream": "0x3d",
        },
    )
    (row,) = found[1].collectives.to_pylist()
    work, call = (found[1].events.to_pylist()[row[k]] for k in ("work_event", "call_event"))
    assert (work["name"][:13], work["dur_ns"], work["stream"]) == ("ncclDevKernel", 14_000, 61)
    assert (work["device"], call["name"]) == (1, "nccl:AllReduce")
    assert 0 not in found or len(found[0].events) == 0


CHROME = b"""[
{"name": "Group", "cat": "GROUP", "ph": "b", "id": 0, "pid": 5, "tid": 1, "ts": 1.5, "args": {}},
{"name": "KernelLaunch", "cat": "KERNEL_LAUNCH", "ph": "b", "id": 0, "pid": 5, "tid": 1, \
"ts": 0.000000, "args": {"groupId": 0, "Stream": 0x262ca50}},
{"name": "KernelLaunch", "cat": "KERNEL_LAUNCH", "ph": "e", "id": 0, "pid": 5, "tid": 1, "ts": 9},
{"name": "AllGather", "cat": "COLL", "ph": "b", "id": 0, "pid": 5, "tid": 1, "ts": 10.25, "args": \
{"SeqNum": 3, "CommHash": 18446744073709551615, "Rank": 1, "Count": 10, "Datatype": ncclFloat32, \
"Algorithm": "RING", "Protocol": "SIMPLE", "nChannels": 2}},
{"name": "KernelCh", "cat": "GPU", "ph": "b", "id": 0, "pid": 5, "tid": 1, "ts": 12.0, "args": {}},
{"name": "KernelCh", "cat": "GPU", "ph": "e", "id": 0, "pid": 5, "tid": 1, "ts": 20.0},
{"name": "KernelCh", "cat": "GPU", "ph": "b", "id": 1, "pid": 5, "tid": 1, "ts": 11.0, "args": {}},
{"name": "AllGather", "cat": "COLL", "ph": "e", "id": 0, "pid": 5, "tid": 1, "ts": 11.0},
{"name": "Send", "cat": "NET", "ph": "e", "id": 8, "pid": 5, "tid": 1, "ts": 11.0},
{}]
"""


def test_what_the_example_plugin_writes() -> None:
    assert format_of(CHROME[:2048], "nccl.json") is nccl_plugin
    (tables,) = nccl_plugin.read([CHROME])
    (row,) = tables.collectives.to_pylist()
    assert (row["kind"], row["seq"], row["comm_id"]) == ("all_gather", 3, 18446744073709551615)
    assert (row["bytes_in"], row["bytes_out"], row["group_rank"]) == (40, 80, 1)
    assert (row["exec_ns"], row["channels"]) == (8_000, 2)
    reasons = told(tables)
    assert reasons["end of an event that never began (left out)"] == 1
    assert reasons["event whose end was never written (its duration is unknown)"] == 2
    assert reasons["channel without both of its times (the other channels count)"] == 1


def test_beside_a_profiler_trace(tmp_path: Path) -> None:
    """NCCL counts each kind by itself, so order and size join what numbers cannot."""
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 256,
        "Out msg nelems": 256,
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }
    rows = []
    for i in range(3):
        rows.append(launch(10 + 20 * i, i + 1))
        rows.append(lasting("cpu_op", "record_param_comms", 9 + 20 * i, 4, args=args))
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        rows.append(kernel(name, 15 + 20 * i, 5, i + 1, stream=20, **args, Seq=40 + i))
    write(tmp_path / "job/a.json", document(rows, rank=0))
    dump = [perf(0, coll_sn=i, coll_exec_time_us=4 + i, coll_algo="RING") for i in range(3)]
    write(tmp_path / "job/dump.log", lines(*dump))
    report = import_paths([tmp_path / "job"], tmp_path / "o.trace", jobs=1)
    assert report.ranks == [0]
    traces = TraceSet.open(tmp_path / "o.trace")
    joined = traces.collectives(0).to_pylist()
    assert [(r["seq"], r["exec_ns"]) for r in joined] == [(40, 4000), (41, 5000), (42, 6000)]
    assert {r["algorithm"] for r in joined} == {"RING"}
    assert len(traces.events(0)) == 9
    assert traces.info(0).dropped == [] or all(
        "without a counterpart" in d.reason for d in traces.info(0).dropped
    )


def test_real_inspector_dump(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "traces/nccl/inspector-sample.jsonl"
    report = import_paths([path], tmp_path / "o.trace", jobs=1)
    assert report.ranks == [0, 1, 2, 3, 8]
    traces = TraceSet.open(tmp_path / "o.trace")
    rows = [r for rank in traces.ranks for r in traces.collectives(rank).to_pylist()]
    assert sorted(r["exec_ns"] for r in rows) == [-1, 88_000, 412_000, 418_000, 425_000, 445_000]
    scatter = next(r for r in rows if r["kind"] == "reduce_scatter")
    assert scatter["bytes_in"] / scatter["exec_ns"] == pytest.approx(47.8, rel=0.01)  # its algobw
    assert traces.info(8).host == "gpu-node-02"


def test_real_plugin_file(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "traces/nccl/profiler-plugin-allreduce.jsonl"
    import_paths([path], tmp_path / "o.trace", jobs=1)
    traces = TraceSet.open(tmp_path / "o.trace")
    assert traces.ranks == [0, 1, 2, 3]
    assert traces.groups == [(0, 1, 2, 3)]
    for rank in traces.ranks:
        (row,) = traces.collectives(rank).to_pylist()
        assert (row["kind"], row["bytes_in"], row["channels"]) == ("all_reduce", 1 << 27, 24)
        work = traces.events(rank).to_pylist()[row["work_event"]]
        assert work["kind"] == "kernel"
        assert 0 < row["exec_ns"] <= work["dur_ns"]
        assert traces.info(rank).counts == {"host_op": 1, "runtime": 1, "kernel": 1}


ODD = [None, "x", [], {}, -1, 1e300, 1.5, True, 10**30]


def with_odd_values(item: Any) -> Any:
    """The object once for each of its values and each odd value in its place."""
    for key, value in item.items():
        for odd in ODD:
            yield {**item, key: odd}
        if isinstance(value, dict):
            for inner in with_odd_values(value):
                yield {**item, key: inner}


@pytest.mark.parametrize("module", [nccl_inspector, nccl_plugin])
def test_odd_values_give_data_or_an_error(module: Any) -> None:
    if module is nccl_inspector:
        trace = {"coll_start_ts": 5, "kernel_events": [{"kernel_start_ts": 6}]}
        records = [perf(0, event_trace_ts=trace, coll_n_channels=2)]
    else:
        chrome = [json.loads(t.rstrip(b",")) for t in CHROME.splitlines()[5:10] if b"Kernel" in t]
        records = [init(0), operation(), channel(0, 30, 50), *chrome]
    for i, record in enumerate(records):
        for odd in with_odd_values(record):
            changed = [*records[:i], odd, *records[i + 1 :]]
            try:
                found = module.read([lines(*changed)])
            except TraceFormatError:
                continue
            assert found
