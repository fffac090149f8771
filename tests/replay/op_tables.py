"""Operation tables made by a small simulator of their own, worker by worker, event by event.

It shares no code and no idea with the job graph: each worker walks through its program, and
blocks where a library would. All workers of a stage run the same program.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from foretrace.traces.optable.table import OpTable, read_table

Worker = tuple[int, int]
Key = tuple[Any, ...]
Duration = Callable[[str, int, int, int, int], int]
"""(operation, step, dp, stage, micro-batch) -> ns"""


@dataclass
class Op:
    """One operation of a program; ``meets`` names what it must meet, and how many there are."""

    name: str
    chunk: int = -1
    mb: int = -1
    meets: Key | None = None
    members: int = 1
    blocks: bool = True
    issued: int = -1
    start: int = -1
    end: int = -1


@dataclass
class Job:
    """A job to simulate."""

    dp: int = 2
    pp: int = 2
    vpp: int = 1
    micro_batches: int = 3
    steps: int = 2
    async_sends: bool = False
    duration: Duration = lambda name, step, dp, stage, mb: 1000
    gap: Duration = lambda name, step, dp, stage, mb: 0
    loss_meets: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)

    def simulate(self) -> list[dict[str, Any]]:
        """The rows of the job's table."""
        self.rows = []
        for step in range(self.steps):
            workers = [(d, s) for d in range(self.dp) for s in range(self.pp)]
            programs = {w: list(self._program(w)) for w in workers}
            self._run(step, programs)
        return self.rows

    def step_ns(self, step: int) -> int:
        """Last end minus first start of a step."""
        mine = [row for row in self.rows if row["step"] == step]
        first = min(row["start_ns"] for row in mine)
        return int(max(row["end_ns"] for row in mine) - first)

    def _program(self, worker: Worker) -> Iterable[Op]:
        dp, stage = worker
        yield Op("params-all-gather", 0, meets=("gather", stage), members=self.dp)
        for chunk in range(self.vpp):
            yield from self._pass("forward", dp, stage, chunk)
        for chunk in reversed(range(self.vpp)):
            yield from self._pass("backward", dp, stage, chunk)
        if self.loss_meets and stage == self.pp - 1:
            yield Op("hidden", meets=("loss",), members=self.dp)
        yield Op("layernorm-grads-all-reduce")
        if stage in (0, self.pp - 1) and self.pp > 1:
            yield Op("embedding-grads-all-reduce", meets=("ends", dp), members=2)
        yield Op("grads-reduce-scatter", 0, meets=("reduce", stage), members=self.dp)
        yield Op("optimizer-clip-main-grad", meets=("norm",), members=self.dp * self.pp)
        yield Op("optimizer")

    def _pass(self, way: str, dp: int, stage: int, chunk: int) -> Iterable[Op]:
        """All micro-batches of one chunk; boundary ``b`` lies behind part ``b`` of the model."""
        part, last = chunk * self.pp + stage, self.pp * self.vpp - 1
        before, behind = part - 1, part
        source, sink = (before, behind) if way == "forward" else (behind, before)
        for mb in range(self.micro_batches):
            if 0 <= source < last:
                yield self._transfer(f"{way}-recv", dp, source, mb)
            yield Op(f"{way}-compute", chunk, mb)
            if 0 <= sink < last:
                yield self._transfer(f"{way}-send", dp, sink, mb)

    def _transfer(self, name: str, dp: int, boundary: int, mb: int) -> Op:
        """A send or receive over the boundary behind a part of the model."""
        blocks = not (self.async_sends and name.endswith("send"))
        key = (name.partition("-")[0], dp, boundary, mb)
        return Op(name, mb=mb, meets=key, members=2, blocks=blocks)

    def _run(self, step: int, programs: dict[Worker, list[Op]]) -> None:
        at = dict.fromkeys(programs, 0)
        clock = dict.fromkeys(programs, 0)
        waiting: dict[Key, list[tuple[Worker, Op]]] = {}
        sent: dict[tuple[Worker, str], list[Op]] = {}
        moved = True
        while moved:
            moved = False
            for worker, program in programs.items():
                while at[worker] < len(program):
                    op = program[at[worker]]
                    if op.issued < 0:
                        op.issued = clock[worker] + self.gap(op.name, step, *worker, op.mb)
                        sent.setdefault((worker, op.name), []).append(op)
                        moved = True
                    if op.blocks and op.end < 0:
                        self._try_start(step, waiting, worker, op, [])
                        if op.end < 0:
                            break
                    clock[worker] = op.end if op.blocks else op.issued
                    at[worker] += 1
                    moved = True
            for (worker, _), ops in sent.items():  # a stream of sends, one after the other
                for i, op in enumerate(ops):
                    if not op.blocks and op.start < 0:
                        self._try_start(step, waiting, worker, op, ops[:i])
                        moved |= op.start >= 0
        assert all(at[w] == len(p) for w, p in programs.items()), "the programs deadlock"
        self._write(step, programs)

    def _try_start(
        self,
        step: int,
        waiting: dict[Key, list[tuple[Worker, Op]]],
        worker: Worker,
        op: Op,
        before: list[Op],
    ) -> None:
        """Start an issued operation once those before it on its stream have ended."""
        if op.start >= 0 or any(other.end < 0 for other in before):
            return
        op.start = max([op.issued, *(other.end for other in before)])
        if op.meets is None:
            op.end = op.start + self.duration(op.name, step, *worker, op.mb)
        else:
            self._meet(step, waiting, worker, op)

    def _meet(
        self, step: int, waiting: dict[Key, list[tuple[Worker, Op]]], worker: Worker, op: Op
    ) -> None:
        assert op.meets is not None
        there = waiting.setdefault(op.meets, [])
        there.append((worker, op))
        if len(there) == op.members:
            ready = max(member.start for _, member in there)
            for who, member in there:
                # both sides of a transfer take the time of its first half, so that they agree
                whose = min(w for w, _ in there) if op.members == 2 else who
                name = member.name.replace("recv", "send") if op.members == 2 else member.name
                member.end = ready + self.duration(name, step, *whose, member.mb)

    def _write(self, step: int, programs: dict[Worker, list[Op]]) -> None:
        for (dp, stage), program in programs.items():
            for op in program:
                if op.name == "hidden":
                    continue
                self.rows.append(
                    {
                        "dp_rank": dp,
                        "stage": stage,
                        "rank": stage * self.dp + dp,
                        "step": step,
                        "optype": op.name,
                        "start_ts": op.start / 1e9,
                        "duration": (op.end - op.start) / 1e9,
                        "mc": op.chunk,
                        "start_ns": op.start,
                        "end_ns": op.end,
                    }
                )


COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "mc")


def write_table(path: Path, rows: list[dict[str, Any]], columns: Iterable[str] = COLUMNS) -> Path:
    """Write rows as Parquet."""
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in columns}), path)
    return path


def varied(name: str, step: int, dp: int, stage: int, mb: int) -> int:
    """A duration that depends on everything and looks random."""
    size = 400_000 if "compute" in name else 30_000
    return size + zlib.crc32(f"{name} {step} {dp} {stage} {mb}".encode()) % size


def read_job(path: Path, job: Job) -> OpTable:
    return read_table(write_table(path / "run.parquet", job.simulate()))


def row(op: str, start_us: float, end_us: float, **more: int) -> dict[str, Any]:
    place = {"step": 0, "dp_rank": 0, "stage": 0, "rank": -1, "mc": -1} | more
    return place | {"optype": op, "start_ts": start_us / 1e6, "duration": (end_us - start_us) / 1e6}


def fixed_gap(name: str, step: int, dp: int, stage: int, mb: int) -> int:
    return 1_000 * (1 + zlib.crc32(f"{name} {dp} {stage}".encode()) % 7)
