"""Sources of one rank that contradict each other: the first one stays, each conflict is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.traces.kineto import document, kernel, lasting, launch, write
from tests.traces.test_execution_trace import GROUPS, comm, init, tensor, trace
from tests.traces.test_nccl_formats import lines, perf

from foretrace.cli.app import main
from foretrace.traces.importers import import_paths
from foretrace.traces.manifest import Dropped
from foretrace.traces.store import TraceSet

ELEMENTS = 8
ARGS = {
    "Collective name": "allreduce",
    "In msg nelems": ELEMENTS,
    "Out msg nelems": ELEMENTS,
    "dtype": "Float",
    "Group size": 2,
    "Process Group Name": "7",
    "Process Group Ranks": "[2, 3]",
}


def profiler(**changed: Any) -> dict[str, Any]:
    """Rank 2: one all-reduce of 32 bytes of ranks 2 and 3, call 40."""
    args = ARGS | {"Seq": 5} | changed
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    events = [
        lasting("cpu_op", "record_param_comms", 9, 6, args=args | {"Record function id": 40}),
        launch(10, 1),
        kernel(name, 20, 7, 1, stream=20, **args),
    ]
    found = document(events, 2)
    found["distributedInfo"]["world_size"] = 4
    return found


def execution(**changed: Any) -> bytes:
    """The same call in an execution trace."""
    call = comm(40, "allreduce", 5, 0, **changed)
    call["inputs"]["types"] = ["GenericList[Tensor(float)]"]
    return trace([init(), call])


def merged(tmp_path: Path, *files: tuple[str, Any]) -> TraceSet:
    for name, content in files:
        write(tmp_path / "job" / name, content)
    import_paths([tmp_path / "job"], tmp_path / "o.trace", jobs=1)
    return TraceSet.open(tmp_path / "o.trace")


def conflicts(traces: TraceSet, rank: int = 2) -> dict[str, Dropped]:
    """Differences by column."""
    told = traces.info(rank).dropped
    return {d.reason.split(" ")[0]: d for d in told if "differs from" in d.reason}


def test_sources_that_agree_have_no_conflict(tmp_path: Path) -> None:
    traces = merged(tmp_path, ("rank2.json", profiler()), ("et_rank2.json", execution()))
    assert conflicts(traces) == {}
    (row,) = traces.collectives(2).to_pylist()
    assert (row["bytes_in"], row["dtype"], row["group_rank"]) == (32, "Float", 0)


def test_bytes_and_groups_that_differ_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = profiler(**{"In msg nelems": 16, "Process Group Ranks": "[0, 2]"})
    traces = merged(tmp_path, ("rank2.json", other), ("et_rank2.json", execution()))
    found = conflicts(traces)
    assert found["bytes_in"].count == 1
    assert "64 against 32" in found["bytes_in"].example
    assert "[0, 2] against [2, 3]" in found["group"].example
    (row,) = traces.collectives(2).to_pylist()
    assert row["bytes_in"] == 64
    assert traces.info(2).groups[row["group"]].ranks == [0, 2]
    with pytest.raises(SystemExit) as ended:
        main(["import", str(tmp_path / "job"), "-o", str(tmp_path / "again.trace"), "-j", "1"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "group differs from et_rank2.json (the first source's kept)" in said
    assert "bytes_in differs from et_rank2.json" in said


def test_an_inspector_that_contradicts_is_told(tmp_path: Path) -> None:
    """NCCL numbers otherwise than PyTorch: the two are joined by size and order."""
    world = document([*profiler()["traceEvents"]], 0)
    for event in world["traceEvents"]:
        if "Collective name" in event["args"]:
            event["args"] |= {"Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    dump = lines(
        perf(0, coll_msg_size_bytes=32, coll_exec_time_us=3, coll_algo="TREE", coll_proto="LL"),
        perf(0, coll_msg_size_bytes=4096, coll_sn=2, coll_exec_time_us=9),
    )
    traces = merged(tmp_path, ("rank0.json", world), ("dump.log", dump))
    (row,) = traces.collectives(0).to_pylist()
    assert (row["exec_ns"], row["algorithm"], row["protocol"]) == (3000, "TREE", "LL")
    assert row["seq"] == 5
    told = {d.reason: d.count for d in traces.info(0).dropped}
    assert told["operations of dump.log without a counterpart (left out)"] == 1


def test_groups_and_tensors_are_those_of_the_helpers() -> None:
    """The cases above mean the group of ranks 2 and 3, and 32 bytes."""
    assert GROUPS[1]["ranks"] == [2, 3]
    assert tensor(5)[3:5] == [ELEMENTS, 4]
