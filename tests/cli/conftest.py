"""A job small enough to replay by hand, written as the profiler writes it and imported.

Two ranks, two steps of 500 µs. In each step the host launches a kernel (100 µs on rank 0, 300 µs
on rank 1) and an all-reduce (50 µs once both ranks are there), then waits for the device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

STEP_US, EXEC_US, LAUNCHED_US = 500, 50, 25
KERNEL_US = (100, 300)
BASE_US = 1_700_000_000_000_000
ARRIVED_US = LAUNCHED_US + max(KERNEL_US) + 1
END_US = ARRIVED_US + EXEC_US
HOST = {"pid": 100, "tid": 100}


def _row(name: str, cat: str, ts: float, dur: float, where: dict[str, int], **args: Any) -> Any:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, **where, "args": args}


def _step(rank: int, number: int) -> list[Any]:
    at = BASE_US + number * STEP_US
    device = {"pid": rank, "tid": 7}
    on_device = {"device": rank, "stream": 7}
    one, two, three = (10 * number + i for i in (1, 2, 3))
    kernel = KERNEL_US[rank]
    arrived = LAUNCHED_US + kernel + 1
    message = {
        "Collective name": "allreduce",
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]",
        "Seq": number,
    }
    return [
        _row(f"ProfilerStep#{number}", "user_annotation", at, STEP_US, HOST),
        _row("aten::mm", "cpu_op", at + 5, 17, HOST, **{"External id": one}),
        _row("cudaLaunchKernel", "cuda_runtime", at + 10, 10, HOST, correlation=one),
        _row("record_param_comms", "cpu_op", at + 30, 20, HOST, **{"External id": two}, **message),
        _row("cudaLaunchKernel", "cuda_runtime", at + 35, 10, HOST, correlation=two),
        _row(
            "cudaDeviceSynchronize", "cuda_runtime", at + 60, END_US - 60 + 4, HOST,
            correlation=three,
        ),
        _row("gemm", "kernel", at + LAUNCHED_US, kernel, device, correlation=one, **on_device),
        _row(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "kernel", at + arrived, END_US - arrived,
            device, correlation=two, **on_device, **message,
        ),
    ]  # fmt: skip


def write_kineto(path: Path, rank: int) -> None:
    """The trace of one rank as the PyTorch profiler would have written it."""
    trace = {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": 2,
            "pg_count": 1,
            "pg_config": [
                {
                    "pg_name": "0",
                    "pg_desc": "default_pg",
                    "backend_config": "cuda:nccl",
                    "pg_size": 2,
                    "ranks": [0, 1],
                }
            ],
        },
        "traceEvents": [row for number in (1, 2) for row in _step(rank, number)],
    }
    path.write_text(json.dumps(trace))


@pytest.fixture(scope="session")
def small_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The imported trace set of the two ranks."""
    from foretrace.traces.importers.job import import_paths

    folder = tmp_path_factory.mktemp("small")
    for rank in (0, 1):
        write_kineto(folder / f"rank{rank}.json", rank)
    import_paths([folder], folder / "run.trace", jobs=1)
    return folder / "run.trace"
