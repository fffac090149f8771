"""What broke other tools in the field; docs/field-faults-covered.md says which fault is where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.traces.kineto import (
    COMM_STREAM,
    GPU_STREAM,
    document,
    kernel,
    lasting,
    launch,
    losses,
    read,
    rows,
    write,
)

from foretrace.traces.errors import IncompleteTraceError, TraceFormatError
from foretrace.traces.importers.job import import_paths
from foretrace.traces.store import RankTables, TraceSet

HOUR_US = 3_600_000_000
BASE = 1_719_853_884_000_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def collectives(tables: RankTables, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(tables.collectives[c].to_pylist() for c in columns), strict=True))


def text_of(*events: dict[str, Any]) -> str:
    return json.dumps(document(events))


# Damaged text


def test_bare_inf_as_bandwidth() -> None:
    text = text_of(kernel("Memcpy DtoD", 5, 0, 1, cat="x") | {"cat": "gpu_memcpy"})
    text = text.replace('"correlation": 1', '"memory bandwidth (GB/s)": inf, "correlation": 1')
    assert rows(read(text), "kind", "dur_ns", "correlation") == [("memcpy", 0, 1)]
    assert losses(read(text)) == {}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        (b"C:\\code\\net.py(3): forward", "C:\\code\net.py(3): forward"),
        (b"<string>(1): x = \"a\"\nprint(\"b\")", '<string>(1): x = "a" print("b")'),
        (b"torch/_inductor/config.py(0): \xff", "torch/_inductor/config.py(0): \ufffd"),
        (b"a \x00\x1f b", "a    b"),
        (b'step "7"', 'step "7"'),
        (b"caf\xe9", "caf\ufffd"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("chunk", [40, 1 << 20])
def test_names_that_are_no_json(name: bytes, meant: str, chunk: int) -> None:
    events = [lasting("cpu_op", "a", 1, 1), lasting("user_annotation", "NAME", 2, 3),
              lasting("cpu_op", "b", 9, 1)]  # fmt: skip
    data = text_of(*events).encode().replace(b"NAME", name)
    tables = read(data, chunk)
    assert rows(tables, "name", "start_ns", "dur_ns") == [
        ("a", 1000, 1000),
        (meant, 2000, 3000),
        ("b", 9000, 1000),
    ]
    assert sum(losses(tables).values()) >= (0 if b"C:" in name else 1)


def test_a_missing_quote_costs_one_event_and_is_said() -> None:
    text = text_of(*(lasting("cpu_op", f"op{i}", i, 1) for i in range(5)))
    tables = read(text.replace('"op2"', '"op2'))
    names = [n for (n,) in rows(tables, "name")]
    assert [n for n in names if n in ("op0", "op1", "op3", "op4")] == ["op0", "op1", "op3", "op4"]
    assert sum(losses(tables).values()) == 1


@pytest.mark.parametrize("old", [', "name"', ', "dur"', ', "args"'])
def test_a_missing_comma_is_mended_and_said(old: str) -> None:
    text = text_of(lasting("cpu_op", "a", 7, 3, args={"External id": 4}), lasting("x", "b", 99, 1))
    tables = read(text.replace(old, old[1:], 1))
    assert rows(tables, "name", "start_ns", "dur_ns", "external_id")[0] == ("a", 7000, 3000, 4)
    assert losses(tables)["damaged event mended (kept)"] == 1


def test_a_missing_comma_between_events() -> None:
    text = text_of(lasting("cpu_op", "a", 7, 3), lasting("cpu_op", "b", 99, 1)).replace(
        "}, {", "} {"
    )
    assert [n for (n,) in rows(read(text), "name")] == ["a", "b"]


@pytest.mark.parametrize("chunk", [16, 1 << 20])
def test_a_bracket_in_the_midst_loses_nothing(chunk: int) -> None:
    events = [lasting("cpu_op", f"op{i}", i, 1) for i in range(4)]
    tables = read(text_of(*events).replace("}, {", "}], {", 1), chunk)
    assert len(tables.events) == 4
    assert losses(tables) == {"bracket in the midst of the events": 1}


def test_events_behind_the_end_are_counted() -> None:
    text = json.dumps(document([lasting("cpu_op", "a", 1, 1)], traceName="x"))
    text = text[:-1] + ', "more": [' + json.dumps(lasting("cpu_op", "b", 2, 1)) + "]}"
    assert losses(read(text)) == {"event behind the end of the list of events": 1}


def test_cut_numbers_are_never_used() -> None:
    text = text_of(lasting("cpu_op", "a", 1, 1), lasting("cpu_op", "b", 5, 12345))
    for stop in range(text.index("12345") + 1, text.index("12345") + 6):
        assert rows(read(text[:stop]), "name", "dur_ns") == [("a", 1000)]
        spliced = text[:stop] + text[text.index('{"ph"') :]
        found = [d for n, d in rows(read(spliced), "name", "dur_ns") if n == "b"]
        assert found == [12345000]  # the whole one further on


# Numbers


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("10159970886766084423", 10159970886766084423 - (1 << 64)),
        ("18446744073709551615", -1),
        ("18446744073709551616", -1),  # does not fit: absent
        ("99999999999999999999", -1),
        ("1e3", 1000),
        ("1.5e3", -1),
        ("12.0", 12),
        ("12.5", -1),
        ('"0x1f"', 31),
        ('"77"', 77),
        ("null", -1),
        ("1e400", -1),
    ],
)
def test_ids(written: str, meant: int) -> None:
    text = text_of(lasting("cpu_op", "a", 1, 1, args={"External id": 0}))
    tables = read(text.replace('"External id": 0', f'"External id": {written}'))
    assert rows(tables, "external_id") == [(meant,)]


def test_times_as_texts_and_absolute() -> None:
    tables = read(document([lasting("cpu_op", "a", "1706100858305183.25", "1.5")]))
    assert rows(tables, "start_ns", "dur_ns") == [(1706100858305183250, 1500)]


def test_doubled_keys_of_times_are_said() -> None:
    text = text_of(lasting("cpu_op", "a", 1, 1)).replace('"dur": 1', '"dur": 1, "dur": 2')
    assert rows(read(text), "dur_ns") == [(2000,)]
    assert losses(read(text)) == {"time given twice (the last one kept)": 1}


def test_no_duration_is_said() -> None:
    event = lasting("cpu_op", "a", 1, 1)
    del event["dur"]
    tables = read(document([event]))
    assert rows(tables, "dur_ns") == [(0,)]
    assert losses(tables) == {"event without a duration (kept with 0)": 1}


def test_negative_durations_are_said() -> None:
    tables = read(document([lasting("cpu_op", "a", 1, -4)]))
    assert rows(tables, "dur_ns") == [(0,)]
    assert losses(tables) == {"negative duration set to 0 (kept)": 1}


@pytest.mark.parametrize("ts", ["9e99", '"soon"', "9223372036854775807", "null", "[1]"])
def test_unreadable_times_cost_one_event(ts: str) -> None:
    text = text_of(lasting("cpu_op", "a", 1, 1), lasting("cpu_op", "b", 777, 1))
    tables = read(text.replace("777", ts))
    assert rows(tables, "name") == [("a",)]
    assert losses(tables) == {"event without a readable time": 1}


# Times


def stream_of(*kernels: tuple[str, float, float], **args: Any) -> list[dict[str, Any]]:
    """Kernels of one stream, each with a launch 10 us ahead."""
    return [
        event
        for i, (name, ts, dur) in enumerate(kernels, 1)
        for event in (launch(ts - 10, i), kernel(name, ts, dur, i, **args))
    ]


def durations(tables: RankTables) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for kind, name, dur in rows(tables, "kind", "name", "dur_ns"):
        if kind == "kernel":
            found.setdefault(name, []).append(dur)
    return found


def test_a_duration_that_runs_over_is_cut_by_evidence() -> None:
    usual = [("gemm", 1000 + 100 * i, 50) for i in range(6)]
    tables = read(document(stream_of(*usual, ("gemm", 1700, 4_000_000), ("add", 1800, 5))))
    assert durations(tables) == {"gemm": [50_000] * 6 + [100_000], "add": [5000]}
    (lost,) = tables.info.dropped
    assert lost.reason == "duration runs over the next work of its stream (cut to its start)"
    assert lost.example == "gemm: 4000000000 ns, now 100000 ns"


def test_the_only_one_of_its_name_is_cut_if_it_outlasts_the_trace() -> None:
    tables = read(document(stream_of(("odd", 100, 9_000_000), ("add", 200, 5), ("mul", 300, 5))))
    assert durations(tables)["odd"] == [100_000]


def test_an_overlap_without_evidence_is_kept_and_said() -> None:
    """Another kernel may really have run inside: its stream number was wrong."""
    usual = [("gemm", 1000 + 100 * i, 50) for i in range(6)]
    tables = read(document(stream_of(*usual, ("gemm", 1700, 60), ("add", 1710, 5))))
    assert durations(tables)["gemm"][-1] == 60_000
    assert losses(tables) == {
        "kernel that ends after the next one of its stream (kept as it is)": 1
    }


def test_programmatic_launch_overlaps_are_no_fault() -> None:
    tables = read(document(stream_of(("a", 100, 50), ("b", 140, 50), ("c", 180, 50))))
    assert durations(tables) == {"a": [50_000], "b": [50_000], "c": [50_000]}
    assert losses(tables) == {}


def test_communication_may_wait_and_graph_nodes_run_side_by_side() -> None:
    waits = [(NCCL, 1000 + 100 * i, 50) for i in range(6)]
    tables = read(document(stream_of(*waits, (NCCL, 1700, 900_000), ("add", 1800, 5))))
    assert durations(tables)[NCCL][-1] == 900_000_000
    nodes = [
        lasting("cuda_runtime", "cudaGraphLaunch", 5, 2, args={"correlation": 9}),
        *(kernel("n", 10 * i, 5, 9) for i in range(1, 7)),
        kernel("n", 80, 5000, 9),
        kernel("m", 90, 5, 9),
    ]
    tables = read(document(nodes))
    assert durations(tables)["n"][-1] == 5_000_000
    assert losses(tables) == {}


@pytest.mark.parametrize("dur", [2**63 / 1000, "18446744073709551.615", 1e30, 3e15])
def test_counter_overflow(dur: Any) -> None:
    tables = read(document(stream_of(("gemm", 100, dur), ("add", 230, 5))))
    assert durations(tables) == {"gemm": [130_000], "add": [5000]}
    last = read(document([lasting("cpu_op", "a", 1, 1), *stream_of(("gemm", 100, dur))]))
    assert durations(last) == {"gemm": [0]}
    assert "duration beyond all bounds (set to 0)" in losses(last)


def test_kernels_at_time_0_are_left_out_and_said() -> None:
    events = [*stream_of(("gemm", 2 * HOUR_US, 50)), kernel("lost", 0, 0, 77)]
    tables = read(document(events, baseTimeNanoseconds=BASE))
    assert durations(tables) == {"gemm": [50_000]}
    assert tables.info.span_ns[0] == BASE + 7_200_000_000_000 - 10_000
    assert losses(tables) == {"event at time 0, which is none (left out)": 1}


def test_a_trace_that_begins_at_0_is_fine() -> None:
    tables = read(document([lasting("cpu_op", "a", 0, 1), lasting("cpu_op", "b", 5, 1)]))
    assert len(tables.events) == 2
    assert losses(tables) == {}


def test_work_before_its_launch_is_said() -> None:
    events = [launch(100, 1), kernel("gemm", 40, 5, 1), launch(120, 2), kernel("gemm", 119.5, 5, 2)]
    tables = read(document(events))
    assert durations(tables) == {"gemm": [5000, 5000]}
    (lost,) = tables.info.dropped
    assert (lost.reason, lost.count) == ("device work starts before its launch (kept as it is)", 1)
    assert lost.example == "gemm: 60000 ns before"


def test_clock_jumps_are_said() -> None:
    events = [lasting("cpu_op", "a", i, 1) for i in range(9)]
    events.append(lasting("cpu_op", "far", 3 * HOUR_US, 1))
    assert losses(read(document(events))) == {
        "clock jumps: event more than an hour away from most others (kept)": 1
    }


def test_the_same_event_twice_counts_once() -> None:
    events = [*stream_of(("gemm", 100, 50), ("gemm", 200, 50)),
              lasting("cpu_op", "a", 3, 2, args={"External id": 7})]  # fmt: skip
    tables = read(document([*events, *events]))
    assert len(tables.events) == 5
    assert losses(tables) == {"same event twice (one kept)": 5}


def test_equal_events_without_an_id_are_two() -> None:
    """Whole microseconds: the first profilers wrote several short operators in the same one."""
    tables = read(document([lasting("Operator", "aten::empty", 5, 0)] * 2))
    assert len(tables.events) == 2


def test_nothing_is_rounded() -> None:
    tables = read(document(stream_of(("k", 100.501, 0.999))))
    assert durations(tables) == {"k": [999]}


# Devices, graphs, categories


def test_no_launch_no_correlation_no_grid() -> None:
    events = [kernel("Cijk_Ailk", 5, 2, 0, stream=0), kernel("ncclDevKernel_Generic_4", 8, 2, 0)]
    tables = read(document(events))
    assert rows(tables, "kind", "stream", "correlation", "grid", "step") == [
        ("kernel", 0, 0, "", -1),
        ("kernel", GPU_STREAM, 0, "", -1),
    ]
    assert collectives(tables, "kind", "work_event") == [("unknown", 1)]


def test_kernels_of_stream_0_have_a_step() -> None:
    step = lasting("user_annotation", "ProfilerStep#3", 0, 100)
    tables = read(document([step, launch(5, 1), kernel("k", 200, 5, 1, stream=0)]))
    assert rows(tables, "kind", "step")[-1] == ("kernel", 3)


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "hipGraphLaunch"])
def test_one_graph_launch_has_many_kernels(call: str) -> None:
    step = lasting("user_annotation", "ProfilerStep#1", 0, 50)
    graph = lasting("cuda_runtime", call, 10, 2, args={"correlation": 9})
    nodes = [kernel("n", 100 + i, 0.5, 9, **{"graph node id": 40 + i}) for i in range(5)]
    tables = read(document([step, graph, *nodes]))
    found = rows(tables, "kind", "correlation", "graph_node", "step")[2:]
    assert found == [("kernel", 9, 40 + i, 1) for i in range(5)]


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("mtia_ccp_events", "kernel"),
        ("hpu_op", "kernel"),
        ("collective_comm", "kernel"),
        ("xpu_runtime", "runtime"),
        ("mtia_runtime", "runtime"),
        ("privateuse1_runtime", "runtime"),
        ("privateuse1_driver", "runtime"),
        ("xpu_sync", "sync"),
        ("cuda_sync", "sync"),
        ("gpu_user_annotation", "gpu_annotation"),
        ("overhead", "overhead"),
    ],
)
def test_categories(category: str, kind: str) -> None:
    event = kernel("x", 1, 1, 1) | {"cat": category}
    tables = read(document([event]))
    assert rows(tables, "kind") == [(kind,)]
    assert losses(tables) == {}


def test_categories_of_tomorrow_are_kept_and_said() -> None:
    placed = kernel("dot", 1, 5, 1) | {"cat": "npu_task"}
    tables = read(document([placed, lasting("weather", "rain", 2, 1)]))
    assert rows(tables, "kind", "stream") == [("kernel", GPU_STREAM), ("other", -1)]
    assert losses(tables) == {
        "unknown category 'npu_task' taken for device work": 1,
        "unknown category 'weather' (kept as other)": 1,
    }


def test_npu_tasks_without_categories() -> None:
    """Rows of an Ascend trace: a list, times as texts, tasks told by their stream."""
    host = {"ph": "X", "name": "aten::mm", "pid": 9, "tid": 21, "ts": "100.5", "dur": 3.0,
            "cat": "cpu_op", "args": {}}  # fmt: skip
    tasks = [
        {"name": name, "pid": 4 << 20, "tid": 2, "ts": f"{200 + i}.25", "dur": 0.5, "ph": "X",
         "args": {"Task Type": "AI_CORE", key: 3, "Task Id": i}}
        for i, (name, key) in enumerate(
            [("MatMulV2", "Physic Stream Id"), ("EVENT_WAIT", "Physic Stream Id"),
             ("MEMCPY_ASYNC", "Stream Id")])
    ]  # fmt: skip
    tables = read(json.dumps([host, *tasks]))
    assert rows(tables, "kind", "stream", "thread", "start_ns") == [
        ("host_op", -1, 21, 100_500),
        ("kernel", 3, -1, 200_250),
        ("sync", 3, -1, 201_250),
        ("memcpy", 3, -1, 202_250),
    ]


def test_sync_rows_and_annotations_of_the_device_are_no_work() -> None:
    sync = kernel("Stream Wait Event", 5, 600, 3) | {"cat": "cuda_sync"}
    copy = kernel("nccl:all_reduce", 5, 600, 3) | {"cat": "gpu_user_annotation"}
    tables = read(document([sync, copy, kernel("gemm", 10, 5, 4)]))
    assert tables.info.counts == {"kernel": 1, "sync": 1, "gpu_annotation": 1}
    assert len(tables.collectives) == 0
    assert losses(tables) == {}


def test_sync_rows_without_source_or_with_minus_one() -> None:
    args = {"stream": 7, "wait_on_cuda_event_record_corr_id": -1}
    sync = kernel("Stream Wait Event", 5, 1, 3, **args) | {"cat": "cuda_sync"}
    bare = kernel("Stream Wait Event", 9, 1, 4) | {"cat": "cuda_sync"}
    tables = read(document([sync, bare]))
    assert rows(tables, "wait_stream", "wait_correlation") == [(-1, -1), (-1, -1)]


# Collectives


def record(name: str, ts: float, correlation: int, **args: Any) -> list[dict[str, Any]]:
    """record_param_comms around the launch of a kernel, which comes 20 us later."""
    all_args = {"Collective name": name, "dtype": "Float", "In msg nelems": 256,
                "Out msg nelems": 256, "Group size": 2} | args  # fmt: skip
    return [
        lasting("cpu_op", "record_param_comms", ts, 8, args=all_args),
        launch(ts + 2, correlation),
        kernel(NCCL, ts + 20, 6, correlation, stream=COMM_STREAM),
    ]


def test_newest_metadata_and_none_at_all() -> None:
    newest = record("allreduce", 0, 1, Seq=12, **{
        "Comms Id": 10159970886766084423, "Process Group Name": "7",
        "Process Group Ranks": "[0, 1]", "Process Group Description": "dp",
    })  # fmt: skip
    bare = [launch(100, 2), kernel("ncclDevKernel_Broadcast_RING_LL", 120, 5, 2, stream=21)]
    tables = read(document([*newest, *bare]))
    assert collectives(tables, "kind", "seq", "comm_id", "group_key", "bytes_in") == [
        ("all_reduce", 12, 10159970886766084423, "7", 1024),
        ("broadcast", -1, 0, "", -1),
    ]


def test_only_concrete_inputs() -> None:
    call = lasting("cpu_op", "record_param_comms", 0, 8, args={
        "Concrete Inputs": ["", "5", "140244", "1", "", "[]", "[]", "2"],
        "Input Dims": [[64], [], [], [], [], [], [], []],
        "Input type": ["float", "", "", "", "", "", "", ""],
    })  # fmt: skip
    kernels = [launch(2, 1), kernel("ncclKernel_AllReduce_RING_LL_Sum_float", 20, 5, 1)]
    tables = read(document([call, *kernels]))
    assert collectives(tables, "kind", "seq", "group_key", "group_rank", "group_size") == [
        ("all_reduce", 5, "140244", 1, 2)
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_all", "all_to_all"),
        ("all_to_allv", "all_to_all"),
        ("broadcast", "broadcast"),
        ("barrier", "barrier"),
        ("send", "send"),
        ("recv", "recv"),
    ],
)
def test_forms_of_names(name: str, kind: str) -> None:
    events = record(name, 0, 1)
    if kind in ("all_to_all", "send", "recv"):
        events[-1]["name"] = "ncclDevKernel_SendRecv(ncclDevComm*)"
    assert collectives(read(document(events)), "kind", "p2p") == [(kind, kind in ("send", "recv"))]


@pytest.mark.parametrize("name", ["wait", "init", "startcoalescing", "endcoalescing"])
def test_pseudo_collectives_are_no_operations(name: str) -> None:
    event = lasting("cpu_op", "record_param_comms", 50, 1, args={
        "Collective name": name, "dtype": "Byte", "Group size": 1, "In msg nelems": 0,
        "Out msg nelems": 0, "Process Group Ranks": "[]"})  # fmt: skip
    tables = read(document([*record("allreduce", 0, 1), event]))
    assert collectives(tables, "kind") == [("all_reduce",)]


@pytest.mark.parametrize("odd", ["null", '"x"', "1e300", "-5", "99999999999999999999", "true"])
def test_metadata_out_of_bounds_does_no_harm(odd: str) -> None:
    text = json.dumps(document(record("allreduce", 0, 1, Seq=3)))
    for key in ("Group size", "In msg nelems", "Seq"):
        value = json.loads(text)["traceEvents"][0]["args"][key]
        tables = read(text.replace(f'"{key}": {value}', f'"{key}": {odd}'))
        assert collectives(tables, "kind") == [("all_reduce",)]
        assert all(-1 <= s < 1 << 50 for (s,) in collectives(tables, "bytes_in"))


def test_long_groups_cut_by_the_writer() -> None:
    ranks = "[" + ", ".join(str(r) for r in range(30)) + ", ...]"
    args = {"Group size": 64, "Process Group Name": "3", "Process Group Ranks": ranks,
            "Global rank start": 0, "Global rank stride": 2}  # fmt: skip
    tables = read(document(record("allreduce", 0, 1, **args), rank=None))
    (group,) = tables.info.groups
    assert group.ranks == list(range(0, 128, 2))


@pytest.mark.parametrize("size", [10**12, 1 << 31])
def test_impossible_groups_are_no_lists(size: int) -> None:
    args = {"Group size": size, "Process Group Name": "3", "Global rank start": 0,
            "Global rank stride": 1}  # fmt: skip
    tables = read(document(record("allreduce", 0, 1, **args), rank=None))
    assert tables.info.groups[0].ranks == []


def test_copy_engine_collectives() -> None:
    """New NCCL moves data with copies: the last of them ends the operation."""
    args = {"Collective name": "_allgather_base", "dtype": "Float", "In msg nelems": 256,
            "Out msg nelems": 512, "Group size": 2, "Process Group Name": "0"}  # fmt: skip
    copies = [
        kernel("Memcpy PtoP (Device -> Device)", 20 + i, 5, 1 + i, stream=COMM_STREAM)
        | {"cat": "gpu_memcpy"}
        for i in range(2)
    ]
    calls = [
        lasting("cuda_runtime", "cudaMemcpyAsync", 2 + i, 0.5, args={"correlation": 1 + i})
        for i in range(2)
    ]
    other = kernel("Memcpy HtoD", 90, 5, 9) | {"cat": "gpu_memcpy"}
    record_row = lasting("cpu_op", "record_param_comms", 0, 8, args=args)
    tables = read(document([record_row, *calls, *copies, other]))
    assert collectives(tables, "kind", "bytes_in", "bytes_out") == [("all_gather", 1024, 2048)]
    (work,) = tables.collectives["work_event"].to_pylist()
    assert rows(tables, "start_ns")[work] == (21_000,)


# Files and ranks


def test_only_metadata_events_is_one_clear_error() -> None:
    with pytest.raises(TraceFormatError, match="no events"):
        read(document([{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]))


def test_compact_ranks_two_of_one_and_two_bases(tmp_path: Path) -> None:
    event = [lasting("cpu_op", "a", 1, 1)]
    for rank, base in enumerate((BASE, BASE + 7_889_238_000_000_000)):
        text = json.dumps(
            document(event, rank=rank, baseTimeNanoseconds=base), separators=(",", ":")
        )
        write(tmp_path / "deep" / "er" / f"host{7 - rank}.json.gz", text.encode())
    import_paths([tmp_path], tmp_path / "o.trace", jobs=1)
    traces = TraceSet.open(tmp_path / "o.trace")
    assert traces.ranks == [0, 1]
    starts = [traces.events(r, ["start_ns"])["start_ns"].to_pylist()[0] for r in (0, 1)]
    assert starts == [BASE + 1000, BASE + 7_889_238_000_001_000]
    write(tmp_path / "again.json", document([*event, *event], rank=0))
    with pytest.raises(IncompleteTraceError, match="two files of rank 0"):
        import_paths([tmp_path], tmp_path / "p.trace", jobs=1)


def test_no_rank_anywhere(tmp_path: Path) -> None:
    for name in ("node-a.pt.trace.json", "node-b.pt.trace.json"):
        write(tmp_path / name, document([lasting("cpu_op", name, 1, 1)], rank=None))
    report = import_paths([tmp_path], tmp_path / "o.trace", jobs=1)
    assert [(f.rank, f.rank_from) for f in report.files] == [(0, "order"), (1, "order")]
