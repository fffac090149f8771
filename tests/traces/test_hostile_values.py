"""Values that no profiler writes and damage does: each stopped a reader without a clear error.

The readers are given them straight; what comes is data with the value left out, or one error.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from foretrace.traces import chakra_messages
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers import (
    chakra,
    execution_trace,
    flight_recorder,
    nccl_inspector,
    operation_table,
    pipeline_json,
)
from foretrace.traces.manifest import RankInfo
from foretrace.traces.store import RankTables


def losses(info: RankInfo) -> dict[str, int]:
    return {d.reason: d.count for d in info.dropped}


def inspector(*records: str, **header: Any) -> list[RankTables]:
    head = {"rank": 0, "n_ranks": 2, "id": "0x1", **header}
    first = json.dumps({"header": head, "metadata": {"dump_timestamp_us": 5, "pid": 1}})
    return nccl_inspector.read(["\n".join([first, *records]).encode()])


def record(**perf: Any) -> str:
    return json.dumps({"coll_perf": {"coll": "AllReduce", "coll_sn": 1} | perf})


def test_durations_that_add_up_to_more_than_64_bits_before_a_dump() -> None:
    (tables,) = inspector(*[record(coll_exec_time_us=1e15, coll_sn=i) for i in range(12)])
    starts = tables.events["start_ns"].to_pylist()
    assert len(starts) == 12
    assert min(starts) == -(1 << 61)


def test_messages_and_groups_that_multiply_to_more_than_64_bits() -> None:
    big = record(coll="ReduceScatter", coll_msg_size_bytes=1 << 49, coll_exec_time_us=1)
    (tables,) = inspector(big, n_ranks=1 << 23)
    assert tables.collectives["bytes_in"].to_pylist() == [-1]


def test_a_line_that_nests_too_deep() -> None:
    good = record(coll_exec_time_us=1)
    deep = ['{"a":' + "[" * n + "]" * n + "}" for n in range(800, 1200, 7)]
    (tables,) = inspector(*deep, '{"a":' + "[" * 5000, good)
    assert len(tables.events) == 1
    lost = losses(tables.info)
    no_record, no_line = (
        "record of another kind (left out)",
        "line that is no JSON object (left out)",
    )
    assert lost[no_record] + lost[no_line] == len(deep) + 2  # the head of the dump is no record


def node(number: int, values: str) -> str:
    none = '{"values":[],"shapes":[],"types":[]}'
    inputs = '{"values":%s,"shapes":[],"types":[]}' % values  # noqa: UP031
    return (
        f'{{"id":{number},"name":"record_param_comms","ctrl_deps":1,"inputs":{inputs},'
        f'"outputs":{none},"attrs":[{{"name":"rf_id","type":"uint64","value":{number}}},'
        f'{{"name":"tid","type":"uint64","value":"{"9" * 5000}"}}]}}'
    )


@pytest.mark.parametrize("depth", range(900, 1000, 7))
def test_inputs_that_nest_too_deep(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    text = '{"schema":"1.0.2","nodes":[' + ",".join(node(i, deep) for i in (2, 3)) + "]}"
    try:
        tables = execution_trace.read([text.encode()])
    except TraceFormatError:
        return
    assert tables.events["thread"].to_pylist() == [-1, -1]


@pytest.mark.parametrize(
    ("step", "losing"),
    [
        ({"fwd_start": [10**400, 1], "fwd_end": [10**400, 2]}, 1),
        ({"fwd_start": [1], "fwd_end": [2]}, 1),
    ],
)
def test_pipeline_numbers_that_are_none(step: dict[str, Any], losing: int) -> None:
    keys = {"0": step, "²": step} if len(step["fwd_start"]) == 1 else {"0": step}
    files = {
        "pp_rank_0.json": json.dumps(keys).encode(),
        "config.json": json.dumps({"pp_size": 10**30, "num_mbs": 1}).encode(),
    }
    (tables,) = pipeline_json.read_bundle(files)
    assert tables.info.layout == {}
    assert losses(tables.info) | {"step mark made from the rows of the step": 1} == losses(
        tables.info
    )
    assert sum(losses(tables.info).values()) == 1 + losing


def call(**fields: Any) -> dict[str, Any]:
    created = 1_700_000_000_000_000_000
    times = {"time_created_ns": created, "time_discovered_started_ns": created + 1,
             "time_discovered_completed_ns": created + 2}  # fmt: skip
    return {"profiling_name": "nccl:all_reduce", "collective_seq_id": 1, **times, **fields}


@pytest.mark.parametrize(
    "fields",
    [
        {"time_created_ns": "²"},
        {"time_discovered_started_ns": (1 << 63) - 1, "duration_ms": 1e11},
        {"profiling_name": f"nccl:send {'9' * 5000}->1"},
        {"input_sizes": [[1 << 47] * 200_000], "input_dtypes": ["Float"]},
    ],
    ids=["superscript", "overflow", "digits", "product"],
)
def test_calls_of_a_flight_recorder(fields: dict[str, Any]) -> None:
    dump = {"entries": [call(), call(**fields)], "pg_status": {"0": {1: 2, b"x": None}}}
    tables = flight_recorder.read([pickle.dumps(dump, 4)])
    starts = tables.events["start_ns"].to_numpy()
    assert (starts + tables.events["dur_ns"].to_numpy() >= starts).all()
    assert set(tables.collectives["peer"].to_pylist()) == {-1}
    assert set(tables.collectives["bytes_in"].to_pylist()) == {-1}


def test_a_number_in_a_pickle_that_is_too_long_to_be_shown() -> None:
    with pytest.raises(TraceFormatError, match="a number of 5001 bytes"):
        flight_recorder.read([pickle.dumps({"entries": [call(state=1 << 40_000)]}, 4)])


def chakra_graph(attribute: dict[str, Any], micros: int) -> bytes:
    kinds = chakra_messages.messages()
    meta = kinds["GlobalMetadata"](version="0.0.4")
    meta.attr.add(name="world_size", string_val="many")
    meta.attr.add(name="rank", uint64_val=(1 << 64) - 1)
    text = chakra_messages.varint(meta.ByteSize()) + meta.SerializeToString()
    for number in range(1, 10):
        message = kinds["Node"](id=number, name="x", type=4, duration_micros=micros)
        message.attr.add(name="stream", **attribute)
        text += chakra_messages.varint(message.ByteSize()) + message.SerializeToString()
    return text


@pytest.mark.parametrize(
    "attribute",
    [{"double_val": float("nan")}, {"double_val": float("inf")}, {"uint64_val": (1 << 64) - 1}],
    ids=["nan", "inf", "2**64"],
)
def test_attributes_of_a_chakra_graph_that_are_no_numbers(attribute: dict[str, Any]) -> None:
    tables = chakra.read([chakra_graph(attribute, 5)])
    assert (tables.info.rank, tables.info.world_size) == (-1, 0)
    assert tables.events["stream"].to_pylist() == [0] * 9


def test_durations_of_a_chakra_graph_that_add_up_to_more_than_64_bits() -> None:
    with pytest.raises(TraceFormatError, match="its durations add up to"):
        chakra.read([chakra_graph({"int64_val": 7}, 1 << 60)])


@pytest.mark.parametrize(
    ("column", "value"), [("start_ts", 9e12), ("dp_rank", 1 << 40), ("step", 1 << 40)]
)
def test_columns_of_an_operation_table_beyond_reason(column: str, value: float) -> None:
    row = {"step": 0, "optype": "forward-compute", "start_ts": 1.0, "duration": 0.5,
           "dp_rank": 0, "stage": 0}  # fmt: skip
    lines = [",".join(row), *(",".join(str(v) for v in r.values()) for r in
             (row, row | {column: value}))]  # fmt: skip
    with pytest.raises(TraceFormatError, match=f"column {column} holds numbers of"):
        operation_table.read(["\n".join(lines).encode()])
