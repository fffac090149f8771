"""The job graph of ranks that come with their dependencies, such as Chakra graphs.

Nothing is inferred: a task waits for what the file says, for the one before it on its thread or
stream, and in a collective for the other members. Durations are as recorded; where a
collective's contains waiting, it still does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.replay.align import Alignment
from foretrace.replay.build import identity, rendezvous
from foretrace.replay.build import steps as steps_
from foretrace.replay.build.columns import KIND, NameTable, RankCollectives, RankEvents, read_rank
from foretrace.replay.build.communicators import communicators
from foretrace.replay.build.context import JOIN_NAME
from foretrace.replay.build.messages import messages
from foretrace.replay.build.parts import GraphParts
from foretrace.replay.build.rules import EdgeOrigins, Rule
from foretrace.replay.graph import I8, I64, Collectives, EdgeKind, JobGraph, StepMarks, TaskKind
from foretrace.traces.errors import GraphError
from foretrace.traces.layout import lay_out
from foretrace.traces.store import TraceSet

_TASK = {"kernel": TaskKind.KERNEL, "memcpy": TaskKind.MEMCPY, "memset": TaskKind.MEMSET}


@dataclass(frozen=True, slots=True)
class RecordedBuild:
    """What :func:`build_recorded` gives.

    Attributes:
        graph: the job graph.
        alignment: of clocks: there was nothing to align.
        unmatched: rank -> communication operations without a counterpart.
        origins: the rule and the confidence of each edge.
    """

    graph: JobGraph
    alignment: Alignment
    unmatched: dict[int, int]
    origins: EdgeOrigins


def has_own_graph(trace: TraceSet, ranks: Sequence[int]) -> bool:
    """Whether all ranks come from graphs, whose dependencies say more than their times.

    Raises:
        GraphError: a rank has no times at all.
    """
    graphs = []
    for rank in ranks:
        info = trace.info(rank)
        if info.labels.get("times") == "order":
            raise GraphError(
                f"rank {rank} has no times ({info.source}): an execution trace tells the order of "
                "calls only; import it together with a profiler trace of the same run"
            )
        graphs.append(any(key.startswith("chakra_") for key in info.versions))
    return bool(graphs) and all(graphs)


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Tasks of a rank's events: where each begins and where it has ended."""

    begin: I64
    finish: I64


def build_recorded(trace: TraceSet, ranks: Sequence[int]) -> RecordedBuild:
    """The job graph of graphs.

    Args:
        trace: the trace set.
        ranks: those to take.

    Raises:
        GraphError: there are no tasks, or dependencies contradict the order of a stream.
    """
    names = NameTable()
    tables = {r: read_rank(trace, r, names) for r in ranks}
    groups = {r: [tuple(g.ranks) for g in trace.info(r).groups] for r in ranks}
    comms = [
        c
        for rank, (events, talks) in tables.items()
        for c in communicators(rank, events, talks, groups[rank])
    ]
    sent = messages({r: talks for r, (_, talks) in tables.items()}, groups)
    matches = identity.match(comms, sent, {})
    parts, tasks, marks = GraphParts(), {}, []
    for rank, (events, talks) in tables.items():
        if not len(events.kind):
            raise GraphError(f"rank {rank} holds no tasks")
        tasks[rank] = _add_rank(parts, trace, events, talks)
        marks.append(_add_marks(parts, events, tasks[rank]))
    _join(parts, tables, matches, tasks, names.number(JOIN_NAME))
    begin, end = np.array(marks, np.int64).T
    step = np.full(len(ranks), steps_.ONLY_STEP, np.int32)
    steps = StepMarks(step, np.array(ranks, np.int32), begin, end)
    table = Collectives(matches.kind, matches.group, _largest(tables, matches), matches.confidence)
    graph, origins = parts.finish(names.names(), table, matches.groups, steps)
    clocks = Alignment(dict.fromkeys(ranks, 0), {}, 0, -1, {}, 0)
    unmatched = {r: len(rows) for r, rows in matches.unmatched.items()}
    return RecordedBuild(graph, clocks, unmatched, origins)


def _add_rank(
    parts: GraphParts, trace: TraceSet, events: RankEvents, talks: RankCollectives
) -> _Tasks:
    """Tasks of all events, and their order."""
    kind = np.full(len(events.kind), TaskKind.HOST, np.int8)
    for name, task in _TASK.items():
        kind[events.kind == KIND[name]] = task
    host = events.device < 0
    work = talks.work[talks.work >= 0]
    kind[work] = TaskKind.COMM
    number = np.where(host, events.thread, events.stream)
    places, which = np.unique(
        np.stack([events.device.astype(np.int64), number]), axis=1, return_inverse=True
    )
    lanes = [parts.lane(events.rank, int(d), int(n)) for d, n in places.T]
    lane = np.array(lanes, np.int64)[which.reshape(-1)]
    columns = {"rank": events.rank, "step": steps_.ONLY_STEP}
    finish = parts.add_tasks(
        kind, events.end - events.start, events.start, events.end,
        lane=lane, name=events.name, event=np.arange(len(kind)), **columns,
    )  # fmt: skip
    begin = finish.copy()
    begin[work] = parts.add_tasks(
        TaskKind.ARRIVE, np.zeros(len(work), np.int64), events.start[work], events.start[work],
        lane=lane[work], name=events.name[work], event=work, **columns,
    )  # fmt: skip
    stream = np.where(host[work], EdgeKind.HOST_ORDER, EdgeKind.STREAM).astype(np.int8)
    _add_edges(parts, (begin[work], finish[work]), stream)
    tasks = _Tasks(begin, finish)
    edges = trace.dependencies(events.rank, ["source", "target"])
    source, target = (edges[c].to_numpy().astype(np.int64) for c in ("source", "target"))
    _order(parts, events, tasks, (source, target), lane)
    return tasks


def _order(
    parts: GraphParts, events: RankEvents, tasks: _Tasks, recorded: tuple[I64, I64], lane: I64
) -> None:
    """Recorded dependencies, and the order of each thread and stream."""
    source, target = recorded
    host = events.device < 0
    same = lane[source] == lane[target]
    kind = np.select(
        [same & host[source], same, host[source] & host[target], host[target]],
        [EdgeKind.HOST_ORDER, EdgeKind.STREAM, EdgeKind.THREAD, EdgeKind.SYNC],
        EdgeKind.EVENT,
    ).astype(np.int8)
    _add_edges(parts, (tasks.finish[source], tasks.begin[target]), kind)
    order = np.lexsort((*_turns(events, source, target), lane))
    before, after = order[:-1], order[1:]
    together = lane[before] == lane[after]
    before, after = before[together], after[together]
    kind = np.where(host[before], EdgeKind.HOST_ORDER, EdgeKind.STREAM).astype(np.int8)
    _add_edges(parts, (tasks.finish[before], tasks.begin[after]), kind)


def _turns(events: RankEvents, source: I64, target: I64) -> tuple[I64, I64, I64, I64]:
    """Keys of each task's turn on its thread or stream, the last one counts most.

    It is the recorded start, but never before that of a task it depends on: clocks of the host
    and of devices differ, and dependencies are firmer than clocks. Tasks of no length come
    before the one that begins at the same time, and among each other in the order of their
    dependencies. So no order of a thread or stream contradicts a dependency.
    """
    rows, length = np.arange(len(events.start)), events.end - events.start
    depth = lay_out(np.ones(len(rows), np.int64), rows, source, target)
    release = events.start - events.start.min(initial=0)  # as tasks that each one waits for
    start = lay_out(
        np.concatenate([np.minimum(length, 1), release]),
        np.arange(2 * len(rows)),
        np.concatenate([source, len(rows) + rows]),
        np.concatenate([target, rows]),
    )[: len(rows)]
    return rows, depth, length, start


def _add_edges(parts: GraphParts, ends: tuple[I64, I64], kind: I8) -> None:
    for one in np.unique(kind):
        chosen = kind == one
        parts.add_edges(ends[0][chosen], ends[1][chosen], EdgeKind(int(one)), Rule.GIVEN)


def _add_marks(parts: GraphParts, events: RankEvents, tasks: _Tasks) -> tuple[int, int]:
    """One step around everything."""
    at = np.array([events.start.min(), events.end.max()], np.int64)
    host = np.flatnonzero(events.device < 0)
    thread = int(events.thread[host[0]]) if len(host) else 0
    begin, end = parts.add_tasks(
        TaskKind.MARK, np.zeros(2, np.int64), at, at,
        lane=parts.lane(events.rank, -1, thread), rank=events.rank, step=steps_.ONLY_STEP,
    ).tolist()  # fmt: skip
    count = len(tasks.begin)
    parts.add_edges(np.full(count, begin), tasks.begin, EdgeKind.HOST_ORDER)
    parts.add_edges(tasks.finish, np.full(count, end), EdgeKind.MARK)
    return begin, end


def _member_rows(
    tables: dict[int, tuple[RankEvents, RankCollectives]], matches: identity.Matches
) -> I64:
    """Event row of each matched member."""
    rows = np.full(len(matches.rank), -1, np.int64)
    for rank, (_, talks) in tables.items():
        mine = matches.rank == rank
        rows[mine] = talks.work[matches.operation[mine]]
    return rows


def _join(
    parts: GraphParts,
    tables: dict[int, tuple[RankEvents, RankCollectives]],
    matches: identity.Matches,
    tasks: dict[int, _Tasks],
    name: int,
) -> None:
    """Every member of a collective waits for the last one to arrive."""
    if not len(matches.rank):
        return
    rows = _member_rows(tables, matches)
    start, duration, begin, finish = (np.zeros(len(rows), np.int64) for _ in range(4))
    for rank, (events, _) in tables.items():
        mine = matches.rank == rank
        start[mine] = events.start[rows[mine]]
        duration[mine] = (events.end - events.start)[rows[mine]]
        begin[mine] = tasks[rank].begin[rows[mine]]
        finish[mine] = tasks[rank].finish[rows[mine]]
    last = np.repeat(np.maximum.reduceat(start, matches.ptr[:-1]), np.diff(matches.ptr))
    nobody = np.full(len(rows), -1, np.int64)
    halves = rendezvous.Split(last, duration, np.ones(len(rows), np.bool_), nobody)
    rendezvous.add_rendezvous(parts, matches, halves, begin, finish, name)
    rendezvous.label_collectives(parts, matches, np.concatenate([begin, finish]))


def _largest(
    tables: dict[int, tuple[RankEvents, RankCollectives]], matches: identity.Matches
) -> I64:
    size = np.full(len(matches.rank), -1, np.int64)
    for rank, (_, talks) in tables.items():
        mine = matches.rank == rank
        size[mine] = talks.bytes[matches.operation[mine]]
    return np.maximum.reduceat(size, matches.ptr[:-1]) if len(size) else size
