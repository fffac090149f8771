"""Files of every era of the profiler, each a small literal, to the same columns."""

from __future__ import annotations

import pytest
from tests.traces.kineto import GPU_STREAM, document, kernel, lasting, launch, losses, read, rows

BASE = 1_719_853_884_000_000_000


def test_integer_microseconds() -> None:
    tables = read(document([lasting("cpu_op", "a", 1706100858305183, 104)]))
    assert rows(tables, "start_ns", "dur_ns") == [(1706100858305183000, 104000)]


def test_absolute_decimals() -> None:
    text = '{"displayTimeUnit":"ns","traceEvents":[{"ph":"X","cat":"cpu_op","name":"a",' \
        '"ts":1712170303391827.123,"dur":0.001,"pid":1,"tid":1}]}'  # fmt: skip
    assert rows(read(text), "start_ns", "dur_ns") == [(1712170303391827123, 1)]


@pytest.mark.parametrize("unit", ["ms", "ns"])
def test_relative_decimals(unit: str) -> None:
    top = {"baseTimeNanoseconds": BASE, "displayTimeUnit": unit}
    tables = read(document([lasting("cpu_op", "a", 4203669603018.756, 1.5)], **top))
    assert rows(tables, "start_ns", "dur_ns") == [(BASE + 4203669603018756, 1500)]


def test_times_as_texts() -> None:
    tables = read(document([lasting("cpu_op", "a", "1706100858305183.25", "2.5")]))
    assert rows(tables, "start_ns", "dur_ns") == [(1706100858305183250, 2500)]


def test_first_kineto() -> None:
    """Categories in capitals, thread ids as texts, steps as operators, ids in lower case."""
    events = [
        lasting("Operator", "ProfilerStep#5", 100, 50, tid="25738"),
        lasting("Operator", "aten::mm", 110, 10, tid="25738 (python)"),
        lasting(
            "Runtime",
            "cudaLaunchKernel",
            115,
            1,
            tid="25738",
            args={"cbid": 41, "correlation": 34417, "external id": 537},
        ),
        lasting(
            "Kernel",
            "Kernel",
            130,
            5,
            pid=0,
            tid="stream 7",
            args={"device": 0, "stream": 7, "correlation": 34417, "external id": 537},
        ),
        lasting("Memcpy", "Memcpy HtoD", 160, 5, pid=0, tid="stream 7", args={"bytes": 64}),
        lasting("Memset", "Memset", 170, 5, pid=0, tid="stream 7", args={"bytes": 8}),
        {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 9, "ts": 1,
         "args": {"Device Type": 0, "Device Id": -1, "Bytes": -4}},
        {"ph": "X", "cat": "Trace", "ts": 0, "dur": 999, "pid": "Traces", "tid": "PyTorch Profiler",
         "name": "PyTorch Profiler (0)", "args": {"Op count": 0}},
    ]  # fmt: skip
    tables = read(document(events))
    assert rows(tables, "kind", "thread", "device", "stream", "external_id", "bytes", "step") == [
        ("annotation", 25738, -1, -1, -1, -1, 5),
        ("host_op", 25738, -1, -1, -1, -1, 5),
        ("runtime", 25738, -1, -1, 537, -1, 5),
        ("kernel", -1, 0, 7, 537, -1, 5),
        ("memcpy", -1, 0, 7, -1, 64, -1),
        ("memset", -1, 0, 7, -1, 8, -1),
    ]
    assert tables.memory is not None
    assert tables.memory.select(
        ["time_ns", "thread", "bytes", "address", "reserved_bytes"]
    ).to_pylist() == [
        {"time_ns": 1000, "thread": 9, "bytes": -4, "address": 0, "reserved_bytes": -1}
    ]


def test_legacy_autograd_array() -> None:
    text = (
        '[{"name": "aten::add", "ph": "X", "ts": 5.5, "dur": 2, "tid": 1, "pid": "CPU functions", '
        '"args": {}}, {"name": "aten::add", "ph": "s", "ts": 5.5, "tid": 1, '
        '"pid": "CPU functions", "id": 3, "cat": "cpu_to_cuda", "args": {}}]'
    )
    assert rows(read(text), "kind", "name", "thread", "start_ns") == [
        ("host_op", "aten::add", 1, 5500)
    ]


def test_rocm() -> None:
    events = [
        lasting("cuda_runtime", "hipLaunchKernel", 1, 1,
                args={"stream": "0x0", "cid": 153, "correlation": 117, "kernel": "k",
                      "grid": [3, 1, 1], "block": [128, 1, 1], "src": "0x55674ecd4180"}),
        kernel("Cijk_Ailk", 5, 2, 117, stream=0, kind="Dispatch Kernel"),
        kernel("ncclDevKernel_Generic_4", 8, 2, 0, stream=94872346872346, kind="Dispatch Kernel"),
    ]  # fmt: skip
    tables = read(document(events))
    assert rows(tables, "kind", "stream", "correlation", "grid") == [
        ("runtime", -1, 117, "[3, 1, 1]"),
        ("kernel", 0, 117, ""),
        ("kernel", 94872346872346, 0, ""),
    ]
    assert tables.collectives["kind"].to_pylist() == ["unknown"]


def test_device_from_arguments_not_from_process() -> None:
    """In a container a process may have the number of a device."""
    row = kernel("k", 1, 1, 1) | {"pid": 3}
    assert rows(read(document([row, lasting("cpu_op", "a", 2, 1, pid=0)])), "device") == [
        (0,),
        (-1,),
    ]


def test_sync_rows() -> None:
    args = {
        "stream": GPU_STREAM,
        "correlation": 5,
        "device": 0,
        "wait_on_stream": 20,
        "wait_on_cuda_event_record_corr_id": 4,
    }
    events = [
        lasting("cuda_sync", "Stream Wait Event", 1, 1, pid=0, tid=1000007, args=args),
        lasting("cuda_sync", "Event Sync", 3, 1, pid=0, tid=999, args={"stream": -1, "device": 0}),
    ]
    assert rows(read(document(events)), "kind", "stream", "wait_stream", "wait_correlation") == [
        ("sync", GPU_STREAM, 20, 4),
        ("sync", -1, -1, -1),
    ]


def test_kinds_that_are_never_work() -> None:
    events = [
        lasting("gpu_user_annotation", "ProfilerStep#1", 1, 9, pid=0, tid=7),
        lasting("overhead", "CUPTI overhead", 2, 1, pid=-1, tid=0),
        lasting("cuda_profiler_range", "r", 3, 1),
    ]
    tables = read(document(events))
    assert [k for (k,) in rows(tables, "kind")] == ["gpu_annotation", "overhead", "other"]
    assert tables.info.steps == []
    assert tables.info.counts == {"gpu_annotation": 1, "overhead": 1, "other": 1}


def test_python_frames_are_kept_on_request() -> None:
    events = [
        lasting("python_function", "train.py(3): step", 1, 9, args={"Python id": 1}),
        lasting("cpu_op", "aten::mm", 2, 3),
    ]
    tables = read(document(events))
    assert [k for (k,) in rows(tables, "kind")] == ["host_op"]
    assert losses(tables) == {"python frames (use --python)": 1}
    tables = read(document(events), python=True)
    assert [k for (k,) in rows(tables, "kind")] == ["python", "host_op"]
    assert losses(tables) == {}


def test_graph_kernels_share_one_launch() -> None:
    events = [
        lasting("user_annotation", "ProfilerStep#3", 0, 10),
        lasting("cuda_runtime", "cudaGraphLaunch", 1, 2, args={"correlation": 8}),
        *(kernel(f"k{i}", 20 + i, 1, 8, **{"graph node id": 40 + i}) for i in range(3)),
    ]
    tables = read(document(events))
    assert rows(tables, "graph_node", "step")[2:] == [(40, 3), (41, 3), (42, 3)]


def test_step_of_device_rows() -> None:
    """By launch; by time only where no launch is known."""
    events = [
        lasting("user_annotation", "ProfilerStep#3", 0, 10),
        lasting("user_annotation", "ProfilerStep#4", 10, 10),
        launch(9, 1),
        kernel("launched in 3, runs in 4", 15, 1, 1),
        kernel("unknown launch", 16, 1, 99),
        kernel("after all steps", 30, 1, 98),
    ]
    tables = read(document(events))
    assert [s for (s,) in rows(tables, "step")] == [3, 3, 4, 3, 4, -1]
    assert [(s.step, s.start_ns, s.end_ns, s.thread) for s in tables.info.steps] == [
        (3, 0, 10_000, 100),
        (4, 10_000, 20_000, 100),
    ]


def test_negative_duration_becomes_zero() -> None:
    tables = read(document([kernel("k", 5, -2, 1)]))
    assert rows(tables, "dur_ns") == [(0,)]
    assert losses(tables) == {"negative duration set to 0 (kept)": 1}


def test_shapes_are_the_same_text_in_all_layouts() -> None:
    args = {"Input Dims": [[1, 2], []], "Input type": ["float", ""], "Concrete Inputs": ["", "3"]}
    tables = read(document([lasting("cpu_op", "a", 1, 1, args=args)]))
    assert rows(tables, "shapes", "dtypes", "inputs") == [
        ("[[1, 2], []]", '["float", ""]', '["", "3"]')
    ]


def test_file_metadata() -> None:
    devices = [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}]
    row = kernel("k", 1, 1, 1) | {"args": {"device": 1, "stream": 7, "correlation": 1}}
    tables = read(
        document(
            [row], rank=1, deviceProperties=devices, host_name="node7", cuda_driver_version=12090,
            record_shapes=1, team="vision", INFO=["a"], trace_id="F00",
        )
    )  # fmt: skip
    info = tables.info
    assert (info.rank, info.world_size, info.backend, info.rank_from) == (
        1,
        2,
        "nccl",
        "distributedInfo",
    )
    assert (info.host, info.device_name, info.device_count) == ("node7", "B", 2)
    assert info.versions == {"cuda_driver_version": "12090"}
    assert info.labels == {"record_shapes": "1", "team": "vision", "trace_id": "F00"}
    assert info.span_ns == (1000, 2000)


def test_distributed_info_after_the_events() -> None:
    text = document([kernel("k", 1, 1, 1)], rank=None)
    text["distributedInfo"] = {"rank": 5, "world_size": 8, "backend": "nccl"}
    assert read(text).info.rank == 5
