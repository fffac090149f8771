"""Literal traces: a few rows of a few ranks, written as a trace set and built into a job graph.

All times are in microseconds. Launches, streams and waits have no slack unless a test gives them
some, so that the constants of the graph are zero and starts can be worked out by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from foretrace.replay.build import Build, build
from foretrace.replay.engine import replay
from foretrace.replay.graph import EdgeKind, TaskKind, Timeline
from foretrace.traces.manifest import GroupInfo, RankInfo
from foretrace.traces.schema import COLLECTIVE_KINDS, TABLES, arrow_schema
from foretrace.traces.store import RankTables, TraceSet, TraceSetWriter

MAIN, AUTOGRAD, WORKER = 100, 200, 300
COMPUTE, COMM, COPY = 7, 20, 9
US = 1_000
EARLY = ("broadcast", "reduce", "scatter", "gather", "send", "recv", "send_recv")
"""Kinds of which a member may leave before the last one arrives."""


@dataclass(eq=False)
class Row:
    """One event."""

    values: dict[str, Any]
    number: int = -1

    @property
    def start(self) -> int:
        return int(self.values["start_ns"]) // US

    @property
    def end(self) -> int:
        return self.start + int(self.values["dur_ns"]) // US


@dataclass
class RankTrace:
    """Rows of one rank, in any order."""

    rank: int = 0
    groups: list[tuple[int, ...]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    operations: list[dict[str, Any]] = field(default_factory=list)
    marks: list[tuple[int, int, int]] = field(default_factory=list)
    correlations: int = 0

    def add(self, kind: str, name: str, start: float, dur: float, **values: Any) -> Row:
        """Any row."""
        times = {"start_ns": round(start * US), "dur_ns": round(dur * US)}
        row = Row({"kind": kind, "name": name, **times, **values})
        self.rows.append(row)
        return row

    def op(self, name: str, start: float, dur: float, thread: int = MAIN, **values: Any) -> Row:
        """An operator of a host thread."""
        return self.add("host_op", name, start, dur, thread=thread, **values)

    def call(
        self, name: str, start: float, dur: float, thread: int = MAIN, correlation: int = 0
    ) -> Row:
        """A device API call; it gets a correlation of its own unless one is given."""
        correlation = correlation or self.correlation()
        return self.add("runtime", name, start, dur, thread=thread, correlation=correlation)

    def correlation(self) -> int:
        """A fresh correlation id."""
        self.correlations += 1
        return self.correlations

    def work(
        self,
        name: str,
        start: float,
        dur: float,
        stream: int = COMPUTE,
        by: Row | None = None,
        *,
        kind: str = "kernel",
        device: int = 0,
    ) -> Row:
        """A kernel, copy or fill that the call ``by`` caused; without one its launch is lost."""
        correlation = 90_000 + len(self.rows) if by is None else by.values["correlation"]
        return self.add(
            kind, name, start, dur, device=device, stream=stream, correlation=correlation
        )

    def kernel(
        self,
        name: str,
        call: float,
        start: float,
        dur: float,
        *,
        stream: int = COMPUTE,
        thread: int = MAIN,
        device: int = 0,
    ) -> Row:
        """A kernel and the call of 5 us that launches it."""
        by = self.call(f"launch {name}", call, 5, thread)
        return self.work(name, start, dur, stream, by, device=device)

    def mark(self, step: int, start: float, end: float, thread: int = MAIN) -> Row:
        """A step of the profiler on the host."""
        self.marks.append((step, round(start * US), round(end * US)))
        return self.add("annotation", f"ProfilerStep#{step}", start, end - start, thread=thread)

    def quick_syncs(self, start: float, count: int = 20, cost: float = 3) -> None:
        """Synchronisations that find nothing to wait for, one every 10 us: what a sync costs."""
        for i in range(count):
            self.call("cudaStreamSynchronize", start + 10 * i, cost)

    def operation(
        self,
        kind: str,
        work: Row | None,
        call: Row | None = None,
        wait: Row | None = None,
        **values: Any,
    ) -> None:
        """A communication operation; operations are added in issue order."""
        self.operations.append({"kind": kind, "work": work, "call": call, "wait": wait, **values})

    def tables(self, world_size: int) -> RankTables:
        """The rank as the tables of a trace set; numbers the rows."""
        self.rows.sort(key=lambda r: (r.values["start_ns"], -r.values["dur_ns"]))
        for number, row in enumerate(self.rows):
            row.number = number
        by_call = {r.values["correlation"]: r for r in self.rows if r.values["kind"] == "runtime"}
        for row in self.rows:
            call = by_call.get(row.values.get("correlation"), row)
            row.values.setdefault("step", self.step_at(call.values["start_ns"]))
        operations = []
        for o in self.operations:
            rows = {f"{k}_event": o[k].number for k in ("work", "call", "wait") if o[k]}
            values = {k: v for k, v in o.items() if k not in ("work", "call", "wait")}
            operations.append({"p2p": False, **values, **rows})
        groups = [GroupInfo(name=str(i), ranks=list(g)) for i, g in enumerate(self.groups)]
        info = RankInfo(rank=self.rank, world_size=world_size, groups=groups)
        events = table("events", [r.values for r in self.rows])
        return RankTables(info, events, table("collectives", operations))

    def step_at(self, ns: int) -> int:
        """The step whose mark holds an instant."""
        return next((s for s, start, end in self.marks if start <= ns < end), -1)


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as an Arrow table, what they leave out filled in as absent."""
    absent = {c.name: c.absent for c in TABLES[name]}
    unknown = {key for row in rows for key in row} - set(absent)
    assert not unknown
    return pa.Table.from_pylist([{**absent, **row} for row in rows], schema=arrow_schema(name))


@dataclass
class Job:
    """A built job graph whose tasks can be asked for by the name of their event."""

    build: Build

    def __post_init__(self) -> None:
        self.graph = self.build.graph
        self.dur = self.graph.dur_ns.copy()

    def tasks(self, kind: TaskKind, name: str | None = None, rank: int | None = None) -> list[int]:
        """Tasks in order of their measured start."""
        g = self.graph
        chosen = g.kind == kind
        if rank is not None:
            chosen &= g.rank == rank
        found = [i for i in np.flatnonzero(chosen) if name is None or g.names[g.name[i]] == name]
        return sorted((int(i) for i in found), key=lambda i: int(g.measured_start_ns[i]))

    def task(self, kind: TaskKind, name: str | None = None, rank: int | None = None) -> int:
        """The only task of its kind and name."""
        found = self.tasks(kind, name, rank)
        assert len(found) == 1, f"{len(found)} tasks {kind.name} {name!r}"
        return found[0]

    def longer(self, task: int, by: float) -> Job:
        """From now on replay with this task longer by so many microseconds."""
        self.dur[task] += round(by * US)
        return self

    def replayed(self) -> Timeline:
        """The replay, counted from the begin of the recorded window."""
        return replay(self.graph, self.dur)

    def start(self, task: int) -> float:
        """Replayed start, us."""
        return float(self.replayed().start_ns[task]) / US

    def end(self, task: int) -> float:
        """Replayed end, us."""
        return float(self.replayed().end_ns[task]) / US

    def dur_us(self, task: int) -> float:
        """Duration without waiting, us."""
        return float(self.graph.dur_ns[task]) / US

    def before(self, task: int, kind: EdgeKind | None = None) -> list[int]:
        """Predecessors of a task."""
        g = self.graph
        edges = range(int(g.pred_ptr[task]), int(g.pred_ptr[task + 1]))
        return [int(g.pred[e]) for e in edges if kind is None or g.edge_kind[e] == kind]

    def names_before(self, task: int, kind: EdgeKind) -> list[str]:
        """Names of a task's predecessors, sorted."""
        return sorted(self.graph.names[self.graph.name[t]] for t in self.before(task, kind))


def write(path: Path, *ranks: RankTrace) -> TraceSet:
    """The ranks as a trace set on disk, opened again."""
    writer = TraceSetWriter(path)
    for rank in ranks:
        writer.write_rank(rank.tables(len(ranks)))
    writer.finish()
    return TraceSet.open(path)


def job(path: Path, *ranks: RankTrace) -> Job:
    """Write the ranks, build their job graph and check what holds of every graph."""
    built = build(write(path / "job.trace", *ranks))
    check_no_waiting(built)
    return Job(built)


def check_no_waiting(built: Build) -> None:
    """No duration holds waiting, by the definition of each kind of task."""
    g = built.graph
    for kind in (TaskKind.ARRIVE, TaskKind.JOIN, TaskKind.MARK):
        assert (g.dur_ns[g.kind == kind] == 0).all()
    assert (g.dur_ns >= 0).all()
    assert len(set(g.dur_ns[g.kind == TaskKind.SYNC].tolist())) <= 1
    check_host_lanes(built)
    arrived: dict[int, dict[int, int]] = {}
    for task in np.flatnonzero((g.kind == TaskKind.ARRIVE) & (g.collective >= 0)).tolist():
        at = arrived.setdefault(int(g.collective[task]), {})
        at[int(g.rank[task])] = int(g.measured_start_ns[task])
    for comm in np.flatnonzero((g.kind == TaskKind.COMM) & (g.collective >= 0)).tolist():
        match, end = int(g.collective[comm]), int(g.measured_end_ns[comm])
        last = max(arrived[match].values())
        # A fused kernel has one match for each partner; its tasks carry the number of one.
        before = g.pred[g.pred_ptr[comm] : g.pred_ptr[comm + 1]]
        last = max([last, *g.measured_start_ns[before[g.kind[before] == TaskKind.JOIN]].tolist()])
        weak = g.collectives.confidence[match] < 0.5
        if end < last and (weak or COLLECTIVE_KINDS[g.collectives.kind[match]] in EARLY):
            last = arrived[match][int(g.rank[comm])]  # it did not wait for the last arrival
        # Ends before the last arrival by less than the clocks' noise: no execution is left.
        assert g.dur_ns[comm] == max(end - last, 0)


def check_host_lanes(built: Build) -> None:
    """A host thread does one thing at a time: no task covers another one's time or wait."""
    g = built.graph
    host = np.flatnonzero((g.lane >= 0) & (g.kind != TaskKind.SKEW))
    host = host[g.lanes.device[g.lane[host]] == -1]
    order = host[np.lexsort((g.measured_end_ns[host], g.measured_start_ns[host], g.lane[host]))]
    same = g.lane[order[1:]] == g.lane[order[:-1]]
    # A blocking call that took less than such calls cost seems to begin before it did.
    early = np.where(g.kind[order[1:]] == TaskKind.SYNC, g.dur_ns[order[1:]], 0)
    begun = g.measured_start_ns[order[1:]] + early
    assert (begun >= g.measured_end_ns[order[:-1]])[same].all()
