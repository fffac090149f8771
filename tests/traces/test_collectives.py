"""Communication operations put together from what each era of traces tells."""

from __future__ import annotations

from typing import Any

import pytest
from tests.traces.kineto import COMM_STREAM, document, kernel, lasting, launch, read, rows

from foretrace.traces.manifest import GroupInfo
from foretrace.traces.store import RankTables

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)"
META = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 2,
    "dtype": "BFloat16",
    "In split size": "[]",
    "Out split size": "[]",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1]",
}


def table(tables: RankTables, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(tables.collectives[c].to_pylist() for c in columns), strict=True))


def names(tables: RankTables, column: str) -> list[str]:
    """Names of the events that a column of the collectives points to."""
    all_names = [n for (n,) in rows(tables, "name")]
    return [all_names[i] if i >= 0 else "" for i in tables.collectives[column].to_pylist()]


def record(ts: float, dur: float, inputs: list[str] | None = None, **args: Any) -> dict[str, Any]:
    extra = {} if inputs is None else {"Concrete Inputs": inputs}
    return lasting("cpu_op", "record_param_comms", ts, dur, args=extra | args)


def comm(name: str, ts: float, correlation: int, **args: Any) -> dict[str, Any]:
    return kernel(name, ts, 5, correlation, stream=args.pop("stream", COMM_STREAM), **args)


def test_metadata_on_the_kernel() -> None:
    meta = META | {"Seq": 12, "Comms Id": 10159970886766084423}
    events = [record(0, 9, **meta), launch(5, 1), comm(ALL_REDUCE, 20, 1, **meta)]
    tables = read(document(events))
    assert table(
        tables, "kind", "group_key", "group_size", "seq", "comm_id", "bytes_in", "dtype", "source"
    ) == [("all_reduce", "0", 2, 12, 10159970886766084423, 2000, "BFloat16", "kernel")]
    assert names(tables, "call_event") == ["record_param_comms"]
    assert tables.info.groups == [
        GroupInfo(name="0", description="default_pg", ranks=[0, 1], size=2)
    ]


@pytest.mark.parametrize("dtype", ["Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz"])
def test_eight_bit_floats_have_a_size(dtype: str) -> None:
    meta = META | {"dtype": dtype}
    events = [record(0, 9, **meta), launch(5, 1), comm(ALL_REDUCE, 20, 1, **meta)]
    assert table(read(document(events)), "bytes_in", "bytes_out", "dtype") == [(1000, 1000, dtype)]


def test_metadata_only_on_the_host() -> None:
    meta = META | {"Collective name": "_allgather_base", "Out msg nelems": 2000, "Rank": 7}
    events = [record(0, 9, **meta), launch(5, 1), comm(ALL_GATHER, 20, 1)]
    tables = read(document(events, rank=1))
    assert table(tables, "kind", "bytes_in", "bytes_out", "group_rank", "source") == [
        ("all_gather", 2000, 4000, 1, "record_param_comms")
    ]


def test_rank_in_the_group_as_recorded_where_the_members_are_not_known() -> None:
    meta = META | {"Process Group Ranks": "[]", "Rank": 1}
    tables = read(document([comm(ALL_REDUCE, 20, 1, **meta)]))
    assert table(tables, "group_rank") == [(1,)]


def test_kernel_without_launch_by_external_id() -> None:
    host = record(0, 9, **META, **{"External id": 77})
    tables = read(document([host, comm(ALL_REDUCE, 20, 5, **{"External id": 77})]))
    assert names(tables, "call_event") == ["record_param_comms"]
    old = read(document([host, comm(ALL_REDUCE, 20, 77, **{"External id": 77})]))
    assert names(old, "call_event") == [""]  # old traces repeat the correlation there


def test_ranks_that_were_cut_off_come_from_start_and_stride() -> None:
    meta = META | {
        "Process Group Ranks": "[0, 2, 4, ...]",
        "Group size": 64,
        "Global rank start": 0,
        "Global rank stride": 2,
    }
    tables = read(document([record(0, 9, **meta), launch(5, 1), comm(ALL_REDUCE, 20, 1)]))
    assert tables.info.groups[0].ranks == list(range(0, 128, 2))


def test_groups_of_the_configuration() -> None:
    config = [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": []},
        {"pg_name": "3", "pg_desc": "tp", "pg_size": 2, "ranks": [4, 6]},
        {"pg_name": "4", "pg_desc": "pp", "pg_size": 2, "ranks": "[1, 5]"},
    ]
    info = {"rank": 4, "world_size": 2, "backend": "nccl", "pg_config": config}
    meta = META | {"Process Group Name": "3", "Process Group Ranks": "[4, 6]"}
    events = [record(0, 9, **meta), launch(5, 1), comm(ALL_REDUCE, 20, 1)]
    tables = read(document(events, distributedInfo=info))
    assert [(g.name, g.description, g.ranks) for g in tables.info.groups] == [
        ("0", "default_pg", [0, 1]),
        ("3", "tp", [4, 6]),
        ("4", "pp", [1, 5]),
    ]
    assert table(tables, "group", "group_key") == [(1, "3")]


def old_call(ts: float, seq: int, pointer: str = "777", rank: str = "1") -> dict[str, Any]:
    return record(ts, 8, ["", str(seq), pointer, rank, "", "[]", "[]", "8"])


def old_wait(ts: float, seq: int, rank: str = "1", **args: Any) -> dict[str, Any]:
    return record(ts, 1, [str(seq), "0", rank, "", "[]", "[]"], **args)


def test_old_inputs_and_their_wait() -> None:
    inner = lasting(
        "user_annotation",
        "nccl:all_reduce",
        2,
        5,
        args={"Input Dims": [[10, 3]], "Input type": ["c10::Half"]},
    )
    events = [old_call(1, 40), inner, launch(3, 1), old_wait(12, 40), comm(ALL_REDUCE, 20, 1)]
    tables = read(document(events))
    assert table(tables, "group_key", "group_rank", "group_size", "seq", "bytes_in", "dtype") == [
        ("777", 1, 8, 40, 60, "Half")
    ]
    waits = tables.collectives["wait_event"].to_pylist()
    assert rows(tables, "start_ns")[waits[0]] == (12_000,)


def test_a_call_that_left_no_record_takes_its_number_from_the_wait() -> None:
    """Old all-gathers: only their wait tells the number; the stream tells the group."""
    gather = lasting(
        "cpu_op",
        "c10d::_allgather_base_",
        11,
        6,
        args={"Input Dims": [[8, 2], [4, 2], []], "Input type": ["float", "float", ""]},
    )
    events = [
        old_call(1, 40),
        launch(3, 1),
        old_wait(10, 40),
        gather,
        launch(13, 2),
        old_wait(18, 41),
        comm(ALL_REDUCE, 20, 1),
        comm(ALL_GATHER, 30, 2),
    ]
    tables = read(document(events))
    assert table(
        tables, "kind", "group_key", "group_rank", "seq", "bytes_in", "bytes_out", "source"
    ) == [
        ("all_reduce", "777", 1, 40, -1, -1, "record_param_comms"),
        ("all_gather", "777", 1, 41, 32, 64, "kernel"),
    ]


def test_waits_by_number_not_by_order() -> None:
    events = [
        old_call(0, 40),
        launch(1, 1),
        old_call(10, 41),
        launch(11, 2),
        old_wait(20, 41),
        old_wait(25, 40),
        comm(ALL_REDUCE, 30, 1),
        comm(ALL_REDUCE, 40, 2),
    ]
    tables = read(document(events))
    starts = [s for (s,) in rows(tables, "start_ns")]
    assert [starts[i] for i in tables.collectives["wait_event"].to_pylist()] == [25_000, 20_000]


def test_waits_without_numbers_first_in_first_out_per_thread() -> None:
    types = {"Input type": ["Scalar", "Scalar"]}
    call = {"Input type": ["TensorList", "Scalar"]}
    events = [
        record(0, 5, **call),
        launch(1, 1),
        record(10, 5, **call),
        launch(11, 2),
        record(20, 1, **types),
        record(22, 1, **types),
        comm(ALL_REDUCE, 30, 1),
        comm(ALL_REDUCE, 40, 2),
    ]
    tables = read(document(events))
    starts = [s for (s,) in rows(tables, "start_ns")]
    assert [starts[i] for i in tables.collectives["wait_event"].to_pylist()] == [20_000, 22_000]


def p2p(what: str, ts: float, peer: str) -> list[dict[str, Any]]:
    shape = {"Input Dims": [[16]], "Input type": ["float"]}
    return [
        lasting("cpu_op", f"c10d::{what}", ts, 4, args={"Concrete Inputs": ["", "", peer, "0"]}),
        lasting("user_annotation", f"nccl:{what.rstrip('_')}", ts + 1, 2, args=shape),
    ]


@pytest.mark.parametrize(
    ("calls", "kind", "bytes_in", "bytes_out"),
    [
        ([("send", 0, "1")], "send", 64, 0),
        ([("recv_", 0, "1")], "recv", 0, 64),
        ([("send", 0, "1"), ("recv_", 5, "1")], "send_recv", 64, 64),
        ([], "send_recv", -1, -1),
    ],
)
def test_batched_p2p_launched_after_its_calls(
    calls: list[tuple[str, float, str]], kind: str, bytes_in: int, bytes_out: int
) -> None:
    events = [e for c in calls for e in p2p(*c)]
    events += [launch(10, 1), old_wait(15, 0, rank="0"), comm(SEND_RECV, 20, 1)]
    tables = read(document(events))
    assert table(tables, "kind", "p2p", "bytes_in", "bytes_out", "group_rank") == [
        (kind, True, bytes_in, bytes_out, 0)
    ]
    assert names(tables, "wait_event") == ["record_param_comms"]
    assert names(tables, "call_event") == [f"c10d::{calls[-1][0]}" if calls else ""]


def test_all_to_all_is_no_p2p() -> None:
    operator = lasting("cpu_op", "c10d::alltoall_base_", 0, 9)
    tables = read(document([operator, launch(5, 1), comm(SEND_RECV, 20, 1)]))
    assert table(tables, "kind", "p2p") == [("all_to_all", False)]


def test_splits_and_peer() -> None:
    meta = META | {
        "Collective name": "all_to_allv",
        "In split size": "[1, 2]",
        "Out split size": [3, 4],
    }
    send = META | {"Collective name": "send", "Dst Rank": 5, "Src Rank": 1}
    events = [comm(SEND_RECV, 1, 1, **meta), comm(SEND_RECV, 9, 2, **send)]
    tables = read(document(events))
    assert table(tables, "kind", "in_splits", "out_splits", "peer") == [
        ("all_to_all", [1, 2], [3, 4], -1),
        ("send", [], [], 5),
    ]


def test_issue_order() -> None:
    """By launch, and what was launched before the window first on its stream."""
    events = [
        launch(5, 1),
        launch(6, 2),
        comm(ALL_REDUCE, 10, 99),
        comm(ALL_REDUCE, 20, 1),
        comm(ALL_GATHER, 15, 2, stream=21),
    ]
    tables = read(document(events))
    starts = [s for (s,) in rows(tables, "start_ns")]
    issued = [starts[i] for i in tables.collectives["work_event"].to_pylist()]
    assert issued == [10_000, 20_000, 15_000]


def test_gloo() -> None:
    shape = {"Input Dims": [[5, 5]], "Input type": ["double"]}
    worker = {"tid": 200}
    events = [
        lasting("user_annotation", "gloo:broadcast", 0, 2, **worker),
        lasting("cpu_op", "c10d::allreduce_", 10, 2),
        lasting("cpu_op", "c10d::allgather_", 13, 2),
        lasting("cpu_op", "c10d::allreduce_", 16, 2),
        lasting("user_annotation", "gloo:all_gather", 20, 2, **worker),
        lasting("user_annotation", "gloo:all_reduce", 23, 2, args=shape, **worker),
        lasting("user_annotation", "gloo:all_reduce", 26, 2, **worker),
    ]
    tables = read(document(events))
    starts = [s // 1000 for (s,) in rows(tables, "start_ns")]
    issued = [
        (kind, starts[call] if call >= 0 else None, starts[work], size)
        for kind, call, work, size in table(tables, "kind", "call_event", "work_event", "bytes_in")
    ]
    assert issued == [
        ("broadcast", None, 0, -1),
        ("all_reduce", 10, 23, 200),
        ("all_gather", 13, 20, -1),
        ("all_reduce", 16, 26, -1),
    ]
    assert set(tables.collectives["source"].to_pylist()) == {"gloo"}


def test_damaged_metadata_of_a_collective_costs_only_the_metadata() -> None:
    meta = META | {"In msg nelems": {"no": "number"}}
    tables = read(document([comm(ALL_REDUCE, 1, 1, **meta)]))
    assert table(tables, "kind", "bytes_in") == [("all_reduce", -1)]
    assert [d.count for d in tables.info.dropped] == [1]


def test_no_communication_gives_an_empty_table() -> None:
    tables = read(document([kernel("gemm", 1, 1, 1)]))
    assert len(tables.collectives) == 0
