"""Real traces of many versions and devices, against a slow reader that shares no code."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.conftest import ROOT

from foretrace.traces.importers import import_paths
from foretrace.traces.schema import DEVICE_WORK_KINDS
from foretrace.traces.store import TraceSet

SINGLE = (
    "deepseek-dualpipe-h800",
    "hta-cpu-only-rank34of300",
    "hta-cupti-counters",
    "hta-large-integer",
    "hta-mi250",
    "hta-nccl-metadata-a100",
    "hta-non-gpu",
    "hta-ns-resolution-v100",
    "hta-triton",
    "tracelens-b200-rank0of8",
    "tracelens-cudagraph-decode",
    "tracelens-gpu-only-mi210",
    "tracelens-qwen-h100",
    "tracelens-qwen-mi300",
    "tracelens-triton-compile",
)
"""Every file of the folder but those of the same makers and versions that are larger."""


@pytest.fixture(scope="module")
def plain() -> ModuleType:
    path = ROOT / "benchmarks/_plain_json.py"
    spec = importlib.util.spec_from_file_location("_plain_json", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_plain_json"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SINGLE)
def test_time_is_conserved_to_the_nanosecond(
    name: str, shared_data: Path, plain: ModuleType, tmp_path: Path
) -> None:
    path = shared_data / f"traces/single-rank/{name}.json.gz"
    report = import_paths([path], tmp_path / "o.trace", jobs=1)
    traces = TraceSet.open(tmp_path / "o.trace")
    (rank,) = traces.ranks
    expected = plain.sum_device_work(path)
    events = traces.events(rank, columns=["kind", "start_ns", "dur_ns"])
    kind = np.array(events["kind"].to_pylist())
    start, duration = events["start_ns"].to_numpy(), events["dur_ns"].to_numpy()
    for work in DEVICE_WORK_KINDS:
        assert int((kind == work).sum()) == expected.count.get(work, 0)
        assert int(duration[kind == work].sum()) == expected.duration_ns.get(work, 0)
    on_device = np.isin(kind, DEVICE_WORK_KINDS)
    assert sum(start[on_device].tolist()) == expected.start_sum_ns
    assert len(events) == expected.lasting_events
    assert traces.info(rank).span_ns == (expected.first_ns, expected.last_ns)
    assert (np.diff(start) >= 0).all()
    frames = [d.count for d in report.files[0].dropped if "python" in d.reason]
    assert sum(frames) == expected.python_frames
    if path.stat().st_size > 40_000:  # below, the columns' own headers weigh more
        size = sum(f.stat().st_size for f in (tmp_path / "o.trace").rglob("*.parquet"))
        assert size <= path.stat().st_size


def open_set(shared_data: Path, tmp_path: Path, name: str) -> TraceSet:
    import_paths([shared_data / "traces" / name], tmp_path / "o.trace", jobs=1)
    return TraceSet.open(tmp_path / "o.trace")


def columns(traces: TraceSet, rank: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = traces.collectives(rank).to_pylist()
    return rows


def test_tensor_parallel_set(shared_data: Path, tmp_path: Path) -> None:
    traces = open_set(shared_data, tmp_path, "megatron-tp8-a100/kineto")
    assert traces.ranks == list(range(8))
    assert traces.steps == [3]
    assert traces.missing_ranks == []
    sequences = []
    for rank in traces.ranks:
        rows = columns(traces, rank)
        assert {r["kind"] for r in rows} == {"all_reduce"}
        assert {r["group_rank"] for r in rows} == {rank}
        assert {r["group_size"] for r in rows} == {8}
        assert min(r["wait_event"] for r in rows) >= 0
        assert min(r["bytes_in"] for r in rows) > 0
        sequences.append([(r["seq"], r["bytes_in"]) for r in rows])
    assert sequences == [sequences[0]] * 8


def test_three_dimensional_set(shared_data: Path, tmp_path: Path) -> None:
    """Old all-gathers without records: their numbers must continue those of the group."""
    traces = open_set(shared_data, tmp_path, "megatron-tp2pp2dp2-a800/kineto")
    for rank in traces.ranks:
        rows = columns(traces, rank)
        assert {r["group_rank"] for r in rows if r["group_key"]} <= {0, 1, *range(8)}
        collectives = [r for r in rows if not r["p2p"]]
        assert all(r["seq"] > 0 and r["bytes_in"] > 0 for r in collectives)
        by_group: dict[str, list[int]] = {}
        for r in collectives:
            by_group.setdefault(r["group_key"], []).append(r["seq"])
        for numbers in by_group.values():
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert all(r["wait_event"] > r["call_event"] >= 0 for r in rows if r["p2p"])
    partners = [[r["seq"] for r in columns(traces, rank)] for rank in (0, 1)]
    assert partners[0] == partners[1]


def test_recommendation_set(shared_data: Path, tmp_path: Path) -> None:
    traces = open_set(shared_data, tmp_path, "dlrm-8xv100/dlrm_kineto.tar.gz")
    assert traces.ranks == list(range(8))
    kinds = [[r["kind"] for r in columns(traces, rank)] for rank in traces.ranks]
    assert kinds == [kinds[0]] * 8
    assert all(r["bytes_in"] > 0 for rank in traces.ranks for r in columns(traces, rank))


def test_gloo_rank_of_many(shared_data: Path, tmp_path: Path) -> None:
    traces = open_set(shared_data, tmp_path, "single-rank/hta-cpu-only-rank34of300.json.gz")
    assert traces.ranks == [34]
    assert len(traces.missing_ranks) == 299
    assert tuple(range(300)) in traces.groups
    rows = columns(traces, 34)
    assert len(rows) == 10
    assert {r["source"] for r in rows} == {"gloo"}
    assert all(r["bytes_in"] > 0 for r in rows)


def test_metadata_of_a_new_trace(shared_data: Path, tmp_path: Path) -> None:
    traces = open_set(shared_data, tmp_path, "single-rank/hta-nccl-metadata-a100.json.gz")
    rows = columns(traces, 0)
    assert [r["kind"] for r in rows].count("all_reduce") == 15
    assert {r["kind"] for r in rows} == {"all_reduce", "broadcast"}
    assert {(r["group_key"], r["group_size"], r["group_rank"]) for r in rows} == {("0", 2, 0)}
    assert {r["dtype"] for r in rows} == {"Float", "Long"}
    group = traces.info(0).groups[rows[0]["group"]]
    assert (group.description, group.ranks) == ("default_pg", [0, 1])
