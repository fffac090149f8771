"""A short run of benchmarks/fuzz_import.py: damaged files give data or one clear error."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.traces.kineto import document, kernel, lasting, launch

ROOT = Path(__file__).resolve().parents[2]
CASES = 60
RESULTS = ("data", "error")


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("fuzz_import")


def small_files(fuzz: Any) -> list[Any]:
    args = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Seq": 3,
            "Out msg nelems": 8, "Group size": 2, "Process Group Name": "0",
            "Process Group Ranks": "[0, 1]", "Global rank start": 0,
            "Global rank stride": 1}  # fmt: skip
    events = [lasting("user_annotation", "ProfilerStep#4", 0, 900)]
    for i in range(30):
        ts = 10.25 * i
        events += [
            lasting("cpu_op", "record_param_comms", ts, 8, args=args),
            launch(ts + 1, i + 1),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", ts + 9, 5, i + 1, stream=20),
            {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 9, "ts": ts,
             "args": {"Device Type": 1, "Device Id": 0, "Bytes": 64, "Addr": 4096}},
        ]  # fmt: skip
    config = [{"pg_name": "0", "pg_desc": "default", "pg_size": 2, "ranks": [0, 1]}]
    info = {"backend": "nccl", "rank": 0, "world_size": 2, "pg_config": config}
    top = {"distributedInfo": info, "baseTimeNanoseconds": 10**18}
    whole = document(events, rank=None, **top)
    files = {
        "compact.json": json.dumps(whole, separators=(",", ":")),
        "pretty.json": json.dumps(whole, indent=1),
        "array.json": json.dumps(events),
    }
    return [fuzz.TraceFile(name, text.encode(), "kineto") for name, text in files.items()]


def test_files_made_by_hand(fuzz: Any, tmp_path: Path) -> None:
    results = []
    for case in range(CASES):
        file = fuzz.make_case(small_files(fuzz), seed=5, case=case)
        results.append(fuzz.run_case(file, tmp_path))
    assert set(results) <= {"data", "error"}
    assert results.count("data") > CASES / 2


def test_formats_without_real_files(fuzz: Any, tmp_path: Path) -> None:
    files = fuzz.trace_files(None)
    assert len({f.kind for f in files}) == 3
    for case in range(CASES):
        assert fuzz.run_case(fuzz.make_case(files, seed=7, case=case), tmp_path) in RESULTS


def test_real_files(fuzz: Any, tmp_path: Path, shared_data: Path) -> None:
    files = fuzz.trace_files(shared_data / "traces/critical-path")
    for case in range(CASES // 2):
        assert fuzz.run_case(fuzz.make_case(files, seed=6, case=case), tmp_path) in RESULTS


def test_the_check_can_fail(fuzz: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the importer must come through."""

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("foretrace.traces.importers.import_paths", broken)
    with pytest.raises(ZeroDivisionError):
        fuzz.run_case(fuzz.TraceFile("a.json", b"{}", "kineto"), tmp_path)
