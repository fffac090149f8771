"""From a trace set to a job graph: every rule once, over all ranks.

The order: read all ranks, match their collectives, align their clocks, learn what host gaps are
typical, then add host tasks, device tasks and the waits between them, and finally the constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.replay.align import Alignment
from foretrace.replay.build import context as context_
from foretrace.replay.build import meetings, rendezvous
from foretrace.replay.build.columns import NameTable, RankCollectives, RankEvents, read_rank
from foretrace.replay.build.constants import Constant
from foretrace.replay.build.parts import GraphParts
from foretrace.replay.build.pooled import host_context, with_pooled_constants
from foretrace.replay.build.rank import Rank, add_rank, as_one_step, prepare
from foretrace.replay.build.recorded import build_recorded, has_own_graph
from foretrace.replay.build.rules import EdgeOrigins
from foretrace.replay.graph import JobGraph, StepMarks
from foretrace.traces.errors import GraphError
from foretrace.traces.store import TraceSet


@dataclass(frozen=True, slots=True)
class Build:
    """A job graph and what was learnt while it was built.

    Attributes:
        graph: the job graph.
        alignment: clock corrections.
        constants: delays of launches, streams, events and synchronisations.
        dropped: why edges were left out -> how many.
        unmatched: rank -> communication operations without a counterpart; their durations
            still contain waiting for ranks that were not recorded.
        origins: the rule and the confidence of each edge.
        stood_in: rank -> operations of groups of which some members were not recorded: the
            recorded ones stand in for them.
    """

    graph: JobGraph
    alignment: Alignment
    constants: tuple[Constant, ...]
    dropped: dict[str, int]
    unmatched: dict[int, int]
    origins: EdgeOrigins
    stood_in: dict[int, int]


@dataclass(frozen=True, slots=True)
class Recording:
    """All ranks of a job as arrays.

    Attributes:
        tables: rank -> its events and communication operations.
        groups: rank -> global ranks of each of its recorded groups.
        names: name table of the events.
    """

    tables: dict[int, tuple[RankEvents, RankCollectives]]
    groups: dict[int, list[tuple[int, ...]]]
    names: NameTable


def build_graph(trace: TraceSet, ranks: Sequence[int] | None = None) -> JobGraph:
    """The job graph of a trace set.

    Args:
        trace: an open trace set.
        ranks: only these ranks; all by default.

    Raises:
        GraphError: nothing to replay, or the trace's order contradicts itself.
    """
    return build(trace, ranks).graph


def build(trace: TraceSet, ranks: Sequence[int] | None = None) -> Build:
    """Like :func:`build_graph`, with what was learnt on the way."""
    chosen = list(trace.ranks if ranks is None else ranks)
    if has_own_graph(trace, chosen):
        found = build_recorded(trace, chosen)
        return Build(found.graph, found.alignment, (), {}, found.unmatched, found.origins, {})
    return build_from_arrays(read(trace, ranks))


def read(trace: TraceSet, ranks: Sequence[int] | None = None) -> Recording:
    """Load the ranks of a trace set."""
    names = NameTable()
    chosen = list(trace.ranks if ranks is None else ranks)
    tables = {r: read_rank(trace, r, names) for r in chosen}
    groups = {r: [tuple(g.ranks) for g in trace.info(r).groups] for r in chosen}
    return Recording(tables, groups, names)


def build_from_arrays(recording: Recording, borrow: frozenset[int] = frozenset()) -> Build:
    """The job graph of arrays that are already in memory.

    Args:
        recording: all ranks.
        borrow: ranks whose times say nothing, since their waits were cut out: they take their
            constants from the others, and their times contradict no rule.

    Raises:
        GraphError: nothing to replay, or the recorded order contradicts itself.
    """
    tables, groups, names = recording.tables, recording.groups, recording.names
    if not any(len(e.kind) for e, _ in tables.values()):
        raise GraphError("the trace set holds no events; record or import it again")
    matches, alignment = meetings.match_and_align(tables, groups)
    prepared = {
        r: prepare(meetings.aligned(e, alignment), c, names.names(), trusted=r not in borrow)
        for r, (e, c) in tables.items()
    }
    if not any(len(p.marks.step) for p in prepared.values()):
        prepared = {r: as_one_step(p) for r, p in prepared.items()}
    parts = GraphParts()
    tables = {r: (p.events, p.collectives) for r, p in prepared.items()}
    halves = meetings.split_members(tables, matches)
    members = meetings.members_by_rank(matches)
    context = _contexts(prepared, names)
    begins, finishes, marks = {}, {}, []
    for rank, p in prepared.items():
        own = members.get(rank, np.zeros(0, np.int64))
        operation = matches.operation[own]
        exec_ns = meetings.execution(p.events, p.collectives, operation, halves.exec_ns[own])
        begin, finish, found = add_rank(parts, p, exec_ns, context[rank], names.names())
        begins[rank], finishes[rank] = begin[p.collectives.work], finish[p.collectives.work]
        marks += found
    tasks = [meetings.member_column(matches, t) for t in (begins, finishes)]
    join_name = names.number(context_.JOIN_NAME)
    rendezvous.add_rendezvous(parts, matches, halves, tasks[0], tasks[1], join_name)
    rendezvous.label_collectives(parts, matches, np.concatenate(tasks))
    size = meetings.member_column(matches, {r: c.bytes for r, (_, c) in tables.items()})
    table = meetings.collective_table(matches, size)
    step, of_rank, begin, end = np.array(marks, np.int64).reshape(-1, 4).T
    steps = StepMarks(step.astype(np.int32), of_rank.astype(np.int32), begin, end)
    graph, origins = parts.finish(names.names(), table, matches.groups, steps)
    graph, constants = with_pooled_constants(graph, borrow)
    unmatched = {r: len(rows) for r, rows in matches.unmatched.items()}
    stood_in = matches.stood_in()
    return Build(graph, alignment, constants, parts.dropped, unmatched, origins, stood_in)


def _contexts(prepared: dict[int, Rank], names: NameTable) -> dict[int, context_.Context]:
    """Rank -> what it shares with the ranks of its pool."""
    origin = min(int(p.events.start.min()) for p in prepared.values() if len(p.events.start))
    result = {}
    for pool in context_.pools(prepared):
        shared = host_context({r: prepared[r] for r in pool}, names, origin)
        result.update(dict.fromkeys(pool, shared))
    return result


__all__ = ["Build", "Recording", "build", "build_from_arrays", "build_graph", "read"]
