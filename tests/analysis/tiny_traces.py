"""A trace set of a few ranks, written column by column: known times, real files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from foretrace.traces.manifest import Dropped, GroupInfo, RankInfo, StepInfo
from foretrace.traces.schema import TABLES, arrow_schema
from foretrace.traces.store import RankTables, TraceSetWriter

US = 1_000
BEGIN_NS = 1_700_000_000_000_000_000
STEP_NS = 600 * US


def write_trace_set(path: Path, ranks: int = 2, steps: int = 2) -> Path:
    """Each rank launches five kernels a step and an all-reduce; higher ranks compute longer."""
    writer = TraceSetWriter(path)
    for rank in range(ranks):
        writer.write_rank(_rank(rank, ranks, steps))
    writer.finish(note="made by a test")
    return path


def _rank(rank: int, ranks: int, steps: int) -> RankTables:
    rows: list[dict[str, Any]] = []
    works: list[int] = []
    for step in range(steps):
        _add_step(rows, works, rank, ranks, step)
    order = sorted(range(len(rows)), key=lambda i: rows[i]["start_ns"])
    place = {old: new for new, old in enumerate(order)}
    collectives = [
        {
            "kind": "all_reduce",
            "work_event": place[work],
            "group": 0,
            "group_key": "0",
            "group_size": ranks,
            "group_rank": rank,
            "seq": number,
            "p2p": False,
            "bytes_in": 1 << 20,
            "bytes_out": 1 << 20,
            "dtype": "Float",
            "source": "kernel",
        }
        for number, work in enumerate(works)
    ]
    start = BEGIN_NS
    info = RankInfo(
        rank=rank,
        world_size=ranks,
        host="node-<1>",
        device_name="Test GPU",
        backend="nccl",
        source=f"rank{rank}.json",
        rank_from="file name",
        groups=[
            GroupInfo(name="0", description="default_pg", ranks=list(range(ranks)), size=ranks)
        ],
        steps=[
            StepInfo(
                step=s, start_ns=start + s * STEP_NS, end_ns=start + (s + 1) * STEP_NS, thread=1
            )
            for s in range(steps)
        ],
        span_ns=(start, start + steps * STEP_NS),
        counts={"kernel": 6 * steps},
        dropped=[Dropped(reason="rows without a duration", count=3, example="<b>bold</b>")],
        versions={"torch": "2.9.0"},
    )
    return RankTables(
        info, _table("events", [rows[i] for i in order]), _table("collectives", collectives)
    )


def _add_step(
    rows: list[dict[str, Any]], works: list[int], rank: int, ranks: int, step: int
) -> None:
    begin = BEGIN_NS + step * STEP_NS
    mark = {"kind": "annotation", "name": f"ProfilerStep#{step}", "thread": 1, "step": step}
    rows.append(mark | {"start_ns": begin, "dur_ns": STEP_NS - 10 * US})
    device = {"kind": "kernel", "device": rank, "stream": 7, "step": step}
    free = begin
    for number in range(6):
        at = begin + (20 + 30 * number) * US
        link = {"correlation": 100 * step + number + 1, "step": step}
        rows.append(
            link
            | {"kind": "runtime", "name": "cudaLaunchKernel", "thread": 1}
            | {"start_ns": at, "dur_ns": 8 * US}
        )
        start = max(at + 5 * US, free)
        if number < 5:
            free = start + (60 + 20 * rank) * US
            name = "void gemm<float, 128>(float const*, float*)"
            rows.append(device | link | {"name": name, "start_ns": start, "dur_ns": free - start})
            continue
        slowest = max(begin + 175 * US, begin + 25 * US + 5 * (60 + 20 * (ranks - 1)) * US)
        end = max(slowest, start) + 40 * US
        works.append(len(rows))
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        rows.append(
            device | link | {"stream": 20, "name": name, "start_ns": start, "dur_ns": end - start}
        )


def _table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    columns = {
        column.name: [row.get(column.name, column.absent) for row in rows]
        for column in TABLES[name]
    }
    return pa.table(columns, schema=arrow_schema(name))
