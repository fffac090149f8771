"""Dumps are made by hand in the forms of several versions, and one by PyTorch itself."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers import flight_recorder
from foretrace.traces.importers.job import import_paths
from foretrace.traces.importers.registry import format_of
from foretrace.traces.store import RankTables, TraceSet

CREATED = 1_700_000_000_000_000_000


def entry(number: int, name: str, **fields: Any) -> dict[str, Any]:
    """An entry as torch 2.5 and later write it; work of 2 ms, 1 ms after the call."""
    at = CREATED + number * 10_000_000
    return {
        "frames": [{"name": "train", "filename": "train.py", "line": 3}],
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": name,
        "time_created_ns": at,
        "input_sizes": [[1024, 2]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[1024, 2]],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "time_discovered_started_ns": at + 1_000_000,
        "time_discovered_completed_ns": at + 3_000_000,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
    } | fields


def dump(*entries: dict[str, Any], **top: Any) -> dict[str, Any]:
    return {
        "version": "2.4",
        "nccl_version": "2.21.5",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
            "1": {"name": "1", "desc": "pp", "ranks": "[1, 3]"},
        },
        "pg_status": {"0": {"last_enqueued_collective": 3, "last_completed_collective": 2}},
        "entries": list(entries),
    } | top


def read(value: Any, protocol: int = 2) -> RankTables:
    return flight_recorder.read([pickle.dumps(value, protocol)])


def losses(tables: RankTables) -> dict[str, int]:
    return {d.reason: d.count for d in tables.info.dropped}


def test_calls_and_their_work() -> None:
    tables = read(dump(entry(0, "nccl:all_reduce"), entry(1, "nccl:all_gather")))
    rows = tables.events.to_pylist()
    shown = [(r["kind"], r["name"], r["start_ns"] - CREATED, r["dur_ns"]) for r in rows]
    assert shown == [
        ("host_op", "nccl:all_reduce", 0, 0),
        ("kernel", "nccl:all_reduce", 1_000_000, 2_000_000),
        ("host_op", "nccl:all_gather", 10_000_000, 0),
        ("kernel", "nccl:all_gather", 11_000_000, 2_000_000),
    ]
    assert rows[0]["shapes"] == "[[1024,2]]"
    first, second = tables.collectives.to_pylist()
    assert (first["kind"], first["call_event"], first["work_event"]) == ("all_reduce", 0, 1)
    assert (first["seq"], first["group_key"], first["group_size"]) == (1, "0", 4)
    assert (first["bytes_in"], first["bytes_out"], first["dtype"]) == (4096, 4096, "BFloat16")
    assert first["source"] == "flight_recorder"
    assert (second["kind"], second["work_event"], second["seq"]) == ("all_gather", 3, 2)
    groups = [(g.name, g.description, g.ranks) for g in tables.info.groups]
    assert groups == [("0", "default_pg", [0, 1, 2, 3]), ("1", "pp", [1, 3])]
    assert tables.info.world_size == 4
    assert tables.info.backend == "nccl"
    assert tables.info.versions == {"flight_recorder": "2.4", "nccl": "2.21.5"}
    assert tables.info.labels["group 0"] == "last_enqueued 3, last_completed 2"
    assert losses(tables) == {}


def test_the_measured_duration_counts_before_the_poll_of_the_watchdog() -> None:
    call = entry(0, "nccl:all_reduce", duration_ms=0.25)
    work = read(dump(call)).events.to_pylist()[1]
    assert (work["dur_ns"], work["start_ns"] - CREATED) == (250_000, 2_750_000)


def test_what_hangs_is_told() -> None:
    none = {"time_discovered_started_ns": None, "time_discovered_completed_ns": None}
    hung = entry(1, "nccl:all_reduce", state="started", **none)
    hung["time_discovered_started_ns"] = CREATED
    tables = read(dump(entry(0, "nccl:broadcast", state="scheduled", **none), hung))
    assert [r["work_event"] for r in tables.collectives.to_pylist()] == [-1, -1]
    assert losses(tables) == {
        "call without times of its work (state scheduled)": 1,
        "call without times of its work (state started)": 1,
    }
    assert tables.info.dropped[1].example == "nccl:all_reduce of group 0 #2"


def test_sends_name_their_peer_by_its_global_rank() -> None:
    pp = {"process_group": ("1", "pp"), "is_p2p": True, "p2p_seq_id": 5, "collective_seq_id": 0}
    send, recv = (
        entry(0, "nccl:send 0->1", **pp),
        entry(1, "nccl:recv 0<-1", **pp),
    )
    rows = read(dump(send, recv)).collectives.to_pylist()
    assert [(r["kind"], r["p2p"], r["peer"], r["seq"]) for r in rows] == [
        ("send", True, 3, 5),
        ("recv", True, 3, 5),
    ]
    assert [(r["bytes_in"], r["bytes_out"]) for r in rows] == [(4096, 0), (0, 4096)]


def test_entries_come_in_the_order_of_their_creation() -> None:
    """The buffer is a ring: after it has turned, the oldest entry is in the middle."""
    calls = [entry(i, "nccl:all_reduce") for i in (3, 4, 1, 2)]
    assert [r["seq"] for r in read(dump(*calls)).collectives.to_pylist()] == [2, 3, 4, 5]


def test_old_forms() -> None:
    """Version 1 had one sequence number, a bare group name or number, and no element types."""
    old = entry(0, "nccl:all_reduce")
    for key in ("collective_seq_id", "p2p_seq_id", "input_dtypes", "output_dtypes", "is_p2p"):
        del old[key]
    old |= {"seq_id": 9, "process_group": "3"}
    row = read(dump(old, pg_config={"3": {"name": "3"}})).collectives.to_pylist()[0]
    assert (row["seq"], row["group_key"], row["bytes_in"], row["dtype"]) == (9, "3", -1, "")


def test_odd_values_are_absent_and_nothing_else() -> None:
    odd = entry(
        0,
        "nccl:all_reduce",
        input_sizes=[[2**40, 2**40]],
        output_sizes="[1]",
        collective_seq_id=2**70,
        process_group=None,
        pg_id=None,
        time_discovered_completed_ns=CREATED,
    )
    tables = read(dump(odd, {"profiling_name": "no time"}, 7, pg_config=[1], pg_status=3))
    (row,) = tables.collectives.to_pylist()
    assert (row["bytes_in"], row["bytes_out"], row["seq"], row["group"]) == (-1, -1, -1, -1)
    assert losses(tables) == {
        "negative duration set to 0 (kept)": 1,
        "entry without a time of creation (left out)": 2,
    }


def test_json_form_reads_the_same() -> None:
    value = dump(entry(0, "nccl:all_reduce"), entry(1, "nccl:barrier"))
    data = json.dumps(value).encode()
    assert flight_recorder.sniff(data, "x")
    one, two = flight_recorder.read([data]), read(value)
    assert one.events.equals(two.events)
    assert one.collectives.equals(two.collectives)


def test_a_dump_that_is_cut_off_gives_its_whole_entries() -> None:
    """At every byte: the entries before the cut are those of the whole dump, none half read."""
    calls = [entry(i, "nccl:all_reduce") for i in range(4)]
    data = pickle.dumps(dump(*calls), 2)
    whole = read(dump(*calls)).collectives.to_pylist()
    seen = set()
    for end in range(1, len(data)):
        try:
            tables = flight_recorder.read([data[:end]])
        except TraceFormatError:
            continue
        rows = tables.collectives.to_pylist()
        assert rows == whole[: len(rows)]
        assert losses(tables)["end of the file is missing (whole entries kept)"] == 1
        seen.add(len(rows))
    assert seen == {1, 2, 3, 4}


def test_json_that_is_cut_off_gives_its_whole_entries() -> None:
    """At every byte, as of a pickle; the groups are lost where they stand behind the entries."""
    calls = [entry(i, "nccl:all_reduce") for i in range(3)]
    value = dump(*calls)
    whole = [r["seq"] for r in read(value).collectives.to_pylist()]
    for ordered in (value, dict(sorted(value.items()))):
        data = json.dumps(ordered).encode()
        found = []
        for end in range(data.index(b"entries"), len(data) - 1):
            try:
                tables = flight_recorder.read([data[:end]])
            except TraceFormatError:
                continue
            rows = [r["seq"] for r in tables.collectives.to_pylist()]
            assert rows == whole[: len(rows)]
            lost = losses(tables)
            assert lost.get("end of the file is missing (whole entries kept)", 0) + lost.get(
                "damage around the list of entries (left out)", 0
            )
            if data[:end].count(b'"record_id"') > len(rows):
                assert lost["entry cut off by the end of the file"] == 1
            found.append(len(rows))
        assert sorted(set(found)) == [1, 2, 3]
        assert found == sorted(found)


def test_a_damaged_entry_in_json_costs_that_entry() -> None:
    value = dump(*[entry(i, "nccl:all_reduce") for i in range(4)])
    data = json.dumps(value).encode()
    damaged = data.replace(b'"record_id": 2', b'"record_id": 2 "', 1)
    tables = flight_recorder.read([damaged])
    assert [r["seq"] for r in tables.collectives.to_pylist()] == [1, 2, 4]
    assert tables.collectives["group_size"].to_pylist() == [4, 4, 4]  # the groups are kept
    assert losses(tables) == {"damaged entry": 1}
    no_text = data.replace(b'"filename": "train.py"', b'"filename": "tr\xffin.py"', 1)
    assert len(flight_recorder.read([no_text]).collectives) == 4


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (pickle.dumps(dump()), "no calls; set TORCH_FR_BUFFER_SIZE"),
        (pickle.dumps([1]), "expected a dictionary, found list"),
        (pickle.dumps(dump(entry(0, "x")))[:300], "no calls"),
        (b'{"pg_config": {', "damaged JSON"),
        (pickle.dumps(dump({"a": 1})), "no call with a time of creation"),
    ],
)
def test_one_clear_error(data: bytes, what: str) -> None:
    with pytest.raises(TraceFormatError, match=what):
        flight_recorder.read([data])


def test_ranks_come_from_the_ends_of_names(tmp_path: Path) -> None:
    for rank in (0, 1, 10):
        data = pickle.dumps(dump(entry(rank, "nccl:all_reduce")))
        assert format_of(data, "nccl_trace_rank_0") is flight_recorder
        (tmp_path / f"dump{rank}").write_bytes(data)
    report = import_paths([str(tmp_path)], tmp_path / "x.trace", jobs=1)
    assert report.ranks == [0, 1, 10]
    assert TraceSet.open(tmp_path / "x.trace").info(10).rank_from == "file name"


def test_a_hostile_dump_is_one_error_and_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    class Runs:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {mark}",)

    path = tmp_path / "dump_0"
    path.write_bytes(pickle.dumps(dump(entry(0, "nccl:all_reduce", state=Runs()))))
    with pytest.raises(TraceFormatError, match=r"dump_0: not readable.*GLOBAL.*nothing was run"):
        import_paths([str(path)], tmp_path / "x.trace", jobs=1)
    assert not mark.exists()


PROGRAM = """
    import sys
    import torch
    import torch.distributed as dist
    import torch._C._distributed_c10d as c10d
    rank, folder = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(8, 4))
    dist.broadcast(torch.ones(3, dtype=torch.int64), 0)
    dist.barrier()
    open(f"{folder}/dump_{rank}", "wb").write(c10d._dump_fr_trace())
    open(f"{folder}/json_{rank}", "wb").write(c10d._dump_fr_trace_json())
    dist.destroy_process_group()
"""


@pytest.mark.torch
def test_dumps_that_pytorch_writes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": "64", "OMP_NUM_THREADS": "1"}
    running = [subprocess.Popen([*command, str(r), str(tmp_path)], env=env) for r in range(2)]
    assert [p.wait(timeout=120) for p in running] == [0, 0]
    for form in ("dump", "json"):
        files = [str(tmp_path / f"{form}_{r}") for r in range(2)]
        import_paths(files, tmp_path / f"{form}.trace", jobs=1)
        traces = TraceSet.open(tmp_path / f"{form}.trace")
        assert traces.ranks == [0, 1]
        rows = traces.collectives(1).to_pylist()
        shown = [(r["kind"], r["seq"], r["bytes_in"], r["dtype"]) for r in rows]
        assert shown == [
            ("all_reduce", 1, 128, "Float"),
            ("broadcast", 2, 24, "Long"),
            ("barrier", 3, -1, ""),
        ]
        assert traces.info(0).backend == "gloo"
