"""One pool of ranks: built like any job graph, then reduced to what other ranks can notice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.replay.accuracy import null_graph
from foretrace.replay.align import Alignment
from foretrace.replay.build import read
from foretrace.replay.build.constants import with_constants
from foretrace.replay.build.meetings import aligned, execution
from foretrace.replay.build.parts import GraphParts
from foretrace.replay.build.pooled import host_context
from foretrace.replay.build.rank import add_rank, as_one_step, prepare
from foretrace.replay.contract.reduce import reduced
from foretrace.replay.engine import replay
from foretrace.replay.graph import I64, Collectives, JobGraph, StepMarks, TaskKind
from foretrace.replay.subgraph import of_tasks
from foretrace.replay.timeline import StepWindows, step_windows
from foretrace.traces.store import TraceSet


@dataclass(frozen=True, slots=True)
class BlockJob:
    """What a process needs to work on one pool of ranks.

    Attributes:
        path: the trace set.
        ranks: the pool.
        whole: those of them whose graphs are wanted as they are, too.
        alignment: clock corrections of these ranks.
        origin_ns: begin of the job's recorded window.
        one_step: whether no rank of the job has step marks.
        operation: rank -> its matched operations.
        exec_ns: rank -> their execution without waiting.
    """

    path: str
    ranks: Sequence[int]
    whole: frozenset[int]
    alignment: Alignment
    origin_ns: int
    one_step: bool
    operation: dict[int, I64]
    exec_ns: dict[int, I64]


@dataclass(frozen=True, slots=True)
class Block:
    """One pool of ranks, reduced.

    Attributes:
        graph: the kept tasks, in topological order, and the segments between them. ARRIVE and
            COMM tasks carry the number of their rank's operation in ``collective``. Task 0 is
            time zero.
        whole: rank -> its own whole graph, labelled alike, where it was asked for.
        tasks: tasks before the reduction.
        edges: edges before it.
        marks: step marks that were found on the ranks.
        null: the steps when no rank waits for another and all waits are frozen.
        stall_ns: host stalls of each rank, shape ``(ranks,)``.
        dropped: why edges were left out -> how many.
    """

    graph: JobGraph
    whole: dict[int, JobGraph]
    tasks: int
    edges: int
    marks: int
    null: StepWindows
    stall_ns: I64
    dropped: dict[str, int]


def build_block(job: BlockJob) -> Block:
    """Build and reduce one pool of ranks; runs in any process."""
    recording = read(TraceSet.open(job.path), job.ranks)
    names = recording.names
    prepared = {
        r: prepare(aligned(e, job.alignment), c, names.names(), trusted=True)
        for r, (e, c) in recording.tables.items()
    }
    found = sum(len(p.marks.step) for p in prepared.values())
    if job.one_step:
        prepared = {r: as_one_step(p) for r, p in prepared.items()}
    context = host_context(prepared, names, job.origin_ns)
    parts, marks, labels = GraphParts(), [], []
    for rank, p in prepared.items():
        operation = job.operation[rank]
        exec_ns = execution(p.events, p.collectives, operation, job.exec_ns[rank])
        begin, finish, own = add_rank(parts, p, exec_ns, context, names.names())
        marks += own
        row = p.collectives.work[operation]
        labels += [(begin[row], operation), (finish[row], operation)]
    _label(parts, labels)
    none = np.zeros(0, np.int64)
    table = Collectives(none.astype(np.int8), none.astype(np.int32), none, none.astype(np.float32))
    step, of_rank, begin, end = np.array(marks, np.int64).reshape(-1, 4).T
    steps = StepMarks(step.astype(np.int32), of_rank.astype(np.int32), begin, end)
    graph, _ = parts.finish(names.names(), table, (), steps)
    graph, _ = with_constants(graph)
    stalls = graph.kind == TaskKind.STALL
    return Block(
        graph=reduced(graph),
        whole={r: of_tasks(graph, np.flatnonzero(graph.rank == r)).graph for r in job.whole},
        tasks=len(graph),
        edges=len(graph.pred),
        marks=found,
        null=step_windows(replay(null_graph(graph))),
        stall_ns=np.array([graph.dur_ns[stalls & (graph.rank == r)].sum() for r in job.ranks]),
        dropped=parts.dropped,
    )


def _label(parts: GraphParts, labels: list[tuple[I64, I64]]) -> None:
    """Give the tasks of matched operations their operation's number."""
    column = parts.column("collective").copy()
    for tasks, operation in labels:
        column[tasks] = operation
    parts.tasks["collective"] = [column]
