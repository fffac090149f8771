"""Operation tables made by a small simulator of their own, worker by worker, event by event.

It shares no code and no idea with the job graph: each worker walks through its program, and
blocks where a library would. All workers of a stage run the same program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

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
        last = self.pp * self.vpp - 1
        yield Op("params-all-gather", 0, meets=("gather", stage), members=self.dp)
        for chunk in range(self.vpp):
            part = chunk * self.pp + stage
            for mb in range(self.micro_batches):
                if part > 0:
                    yield self._transfer("forward-recv", dp, part - 1, mb)
                yield Op("forward-compute", chunk, mb)
                if part < last:
                    yield self._transfer("forward-send", dp, part, mb)
        for chunk in reversed(range(self.vpp)):
            part = chunk * self.pp + stage
            for mb in range(self.micro_batches):
                if part < last:
                    yield self._transfer("backward-recv", dp, part, mb)
                yield Op("backward-compute", chunk, mb)
                if part > 0:
                    yield self._transfer("backward-send", dp, part - 1, mb)
        if self.loss_meets and stage == self.pp - 1:
            yield Op("hidden", meets=("loss",), members=self.dp)
        yield Op("layernorm-grads-all-reduce")
        if stage in (0, self.pp - 1) and self.pp > 1:
            yield Op("embedding-grads-all-reduce", meets=("ends", dp), members=2)
        yield Op("grads-reduce-scatter", 0, meets=("reduce", stage), members=self.dp)
        yield Op("optimizer-clip-main-grad", meets=("norm",), members=self.dp * self.pp)
        yield Op("optimizer")

    def _transfer(self, name: str, dp: int, boundary: int, mb: int) -> Op:
        """A send or receive over the boundary behind a part of the model."""
        blocks = not (self.async_sends and name.endswith("send"))
        key = (name.partition("-")[0], dp, boundary, mb)
        return Op(name, mb=mb, meets=key, members=2, blocks=blocks)

    def _run(self, step: int, programs: dict[Worker, list[Op]]) -> None:
        at = dict.fromkeys(programs, 0)
        clock = dict.fromkeys(programs, 0)
        waiting: dict[Key, list[tuple[Worker, Op]]] = {}
        moved = True
        while moved:
            moved = False
            for worker, program in programs.items():
                while at[worker] < len(program):
                    op = program[at[worker]]
                    if op.start < 0:
                        op.start = clock[worker] + self.gap(op.name, step, *worker, op.mb)
                        if op.meets is None:
                            op.end = op.start + self.duration(op.name, step, *worker, op.mb)
                        else:
                            self._meet(step, waiting, worker, op)
                        moved = True
                    if op.blocks and op.end < 0:
                        break
                    clock[worker] = op.end if op.blocks else op.start
                    at[worker] += 1
        assert all(at[w] == len(p) for w, p in programs.items()), "the programs deadlock"
        self._write(step, programs)

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
