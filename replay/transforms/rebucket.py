"""Replace collectives of a graph by others that move the same bytes in other pieces.

Old buckets (``i``) lie end to end over the bytes of a run, and so do the new ones (``j``). A new
bucket stands on the stream of the old one that holds its last byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from foretrace.replay.arrivals import arrivals
from foretrace.replay.graph import I64, Collectives, EdgeKind, JobGraph, TaskKind
from foretrace.replay.transforms.edit import (
    Edges,
    MoreTasks,
    by_lane,
    edges_of,
    joined,
    joins,
    new_edges,
    rebuilt,
)
from foretrace.replay.transforms.linkcosts import latency_part
from foretrace.replay.transforms.readiness import Producers, producers

if TYPE_CHECKING:
    from foretrace.replay.transforms.buckets import Bucketing

_STREAM = (EdgeKind.STREAM, EdgeKind.OVERLAP)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Which part of which old bucket each new bucket takes; shape ``(p,)``.

    Attributes:
        new: number of the new bucket.
        old: number of the old bucket.
        share: part of the old bucket's bytes, 0 to 1.
    """

    new: I64
    old: I64
    share: np.ndarray


@dataclass(slots=True)
class _Surgery:
    """A graph while buckets are exchanged.

    Attributes:
        graph: as it was.
        edges: its edges, of which some go.
        more: new tasks.
        added: new edges.
        gone: tasks that go, shape ``(n,)``.
        latency_ns: latency of each old COMM task, shape ``(n,)``.
        producers: what makes gradients ready.
        dur_ns: changed durations of old tasks.
        bytes: bytes of the new collectives.
        of: old collective that each new one is like.
        joins: JOIN task of each collective.
        units: lane -> what it does, but for old buckets; tasks whose begin counts, in order.
        finish: task at whose end each of them is done, shape ``(n,)``.
        heir: new ARRIVE task that stands for each old one, -1 without, shape ``(n,)``.
        parts: old COMM tasks, the new ones that hold a part of each, and whether these end no
            later in the run's bytes.
    """

    graph: JobGraph
    edges: Edges
    more: MoreTasks
    gone: np.ndarray
    latency_ns: I64
    producers: Producers
    dur_ns: I64
    heir: I64
    joins: I64
    units: dict[int, I64]
    finish: I64
    added: list[Edges] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    of: list[int] = field(default_factory=list)
    parts: list[tuple[I64, I64, np.ndarray]] = field(default_factory=list)


def rebucketed(graph: JobGraph, plans: Sequence[Bucketing], per_operation: str) -> JobGraph:
    """The job with other buckets.

    Args:
        graph: the job graph.
        plans: old and new buckets of each run.
        per_operation: latency of an operation with its unit, "" to estimate it.

    Raises:
        ScenarioError: latency and bandwidth cannot be told apart, or an operation would wait for
            its own result.
    """
    which = np.concatenate([plan.collective for plan in plans])
    of_run = np.append(np.isin(np.arange(len(graph.collectives.kind)), which), False)
    tasks = of_run[graph.collective]
    comm = np.flatnonzero(tasks & (graph.kind == TaskKind.COMM))
    latency = np.zeros(len(graph), np.int64)
    latency[comm] = latency_part(graph, comm, "buckets", per_operation)
    edges = edges_of(graph)
    arrive = arrivals(graph)
    work = _Surgery(
        graph, edges, MoreTasks(graph), tasks, latency,
        producers(graph, edges, comm, arrive), graph.dur_ns.copy(),
        np.full(len(graph), -1, np.int64), joins(graph), by_lane(graph, _units(graph)),
        _finishes(graph),
    )  # fmt: skip
    lanes: dict[int, list[tuple[I64, I64, I64]]] = {}
    for plan in plans:
        _exchange(work, plan, comm[np.isin(graph.collective[comm], plan.collective)], arrive, lanes)
    for lane, placed in lanes.items():
        _thread(work, lane, placed)
    return _finished(work)


def pieces(ends: I64, new_ends: I64) -> Pieces:
    """Cut old buckets at the ends of the new ones."""
    cuts = np.union1d(ends, new_ends)
    size = np.diff(cuts, prepend=0)
    old, new = np.searchsorted(ends, cuts), np.searchsorted(new_ends, cuts)
    return Pieces(new, old, size / np.diff(ends, prepend=0)[old])


def _exchange(
    work: _Surgery,
    plan: Bucketing,
    comm: I64,
    arrive: I64,
    lanes: dict[int, list[tuple[I64, I64, I64]]],
) -> None:
    """Add the new collectives of one run, on every rank.

    Args:
        work: the graph under change.
        plan: old and new buckets.
        comm: COMM tasks of the run.
        arrive: ARRIVE task of each COMM task, shape ``(n,)``.
        lanes: lane -> (old ARRIVE behind which it stands, new ARRIVE, new COMM) of new buckets.
    """
    graph, cut = work.graph, pieces(plan.ends, plan.new_ends)
    count = len(plan.new_ends)
    home = np.searchsorted(plan.ends, plan.new_ends)  # old bucket of the last byte
    first = len(graph.collectives.kind) + len(work.bytes)
    work.bytes += np.diff(plan.new_ends, prepend=0).tolist()
    work.of += plan.collective[home].tolist()
    place = np.full(len(graph.collectives.kind), -1, np.int64)
    place[plan.collective] = np.arange(len(plan.collective))
    old_joins = work.joins[plan.collective]
    new_joins = work.more.add(old_joins[home], collective=first + np.arange(count))
    for rank in np.unique(graph.rank[comm]).tolist():
        mine = comm[graph.rank[comm] == rank]
        mine = mine[np.argsort(place[graph.collective[mine]])]
        number = first + np.arange(count)
        begun = work.more.add(arrive[mine][home], collective=number)
        dur = _durations(graph, work.latency_ns, mine, cut, count)
        done = work.more.add(mine[home], collective=number, dur_ns=dur)
        kind = EdgeKind.RENDEZVOUS
        work.added += [
            new_edges(begun, new_joins, kind), new_edges(new_joins, done, kind),
            new_edges(begun, done, kind),
        ]  # fmt: skip
        _feed(work, plan, arrive[mine], begun)
        early = plan.new_ends[cut.new] <= plan.ends[cut.old]
        work.parts.append((mine[cut.old], done[cut.new], early))
        for lane in np.unique(graph.lane[mine[home]]).tolist():
            here = graph.lane[mine[home]] == lane
            new = (arrive[mine][home][here], begun[here], done[here])
            lanes.setdefault(lane, []).append(new)
    old = graph.lane[comm]
    for lane in np.unique(old).tolist():
        empty = np.zeros(0, np.int64)
        lanes.setdefault(lane, []).append((empty, empty, empty))


def _durations(graph: JobGraph, latency_ns: I64, comm: I64, cut: Pieces, count: int) -> I64:
    """Execution of each new bucket on one rank: one latency, and its share of the rest."""
    fixed, moving = np.zeros(count), np.zeros(count)
    np.maximum.at(fixed, cut.new, latency_ns[comm][cut.old])
    rest = graph.dur_ns[comm] - latency_ns[comm]
    np.add.at(moving, cut.new, rest[cut.old] * cut.share)
    return np.rint(fixed + moving).astype(np.int64)


def _feed(work: _Surgery, plan: Bucketing, arrive: I64, begun: I64) -> None:
    """What each new bucket of one rank waits for before it can begin."""
    home = np.searchsorted(plan.ends, plan.new_ends)
    whole = plan.ends[home] == plan.new_ends
    # A bucket that ends where an old one did is ready and launched as that one was.
    work.heir[arrive[home[whole]]] = begun[whole]
    vanished = np.setdiff1d(np.arange(len(arrive)), home[whole])
    work.producers.drop_calls(work.dur_ns, arrive[vanished])
    begins = plan.ends - np.diff(plan.ends, prepend=0)
    for j in np.flatnonzero(~whole).tolist():
        i = int(home[j])
        share = (plan.new_ends[j] - begins[i]) / (plan.ends[i] - begins[i])
        work.added += work.producers.ready(work.more, arrive, i, float(share), int(begun[j]))


def _handed_over(work: _Surgery, edges: Edges) -> Edges:
    """Edges of old buckets, moved to new ones.

    What waited for an old bucket waits for all new ones that hold a part of it; what an old one
    waited for holds up the new one that ends with it.
    """
    gone = work.gone
    target = np.where(gone[edges.target], work.heir[edges.target], edges.target)
    kept = edges.kind != EdgeKind.RENDEZVOUS
    kept &= ~np.isin(edges.kind, _STREAM) & (target >= 0)
    kept &= gone[edges.source] | gone[edges.target]
    moved = replace(edges, target=target).keep(kept)
    old, done, early = (np.concatenate([p[i] for p in work.parts]) for i in range(3))
    order = np.argsort(old, kind="stable")
    first = np.searchsorted(old[order], moved.source)
    count = np.searchsorted(old[order], moved.source, side="right") - first
    repeat = np.where(gone[moved.source], count, 1)
    within = np.arange(int(repeat.sum())) - np.repeat(np.cumsum(repeat) - repeat, repeat)
    of_gone = np.repeat(gone[moved.source], repeat)
    at = np.where(of_gone, np.repeat(first, repeat) + within, 0)
    source = np.where(of_gone, done[order[at]], np.repeat(moved.source, repeat))
    target = np.repeat(moved.target, repeat)
    # No call asked for the waits that a recording only suggests: they never come to wait for
    # gradients that the recorded bucket did not hold.
    of_old = target < len(work.graph)
    guessed = of_old & (work.graph.kind[np.where(of_old, target, 0)] == TaskKind.HOST)
    sound = ~(of_gone & guessed) | early[order[at]]
    kind, delay = np.repeat(moved.kind, repeat), np.repeat(moved.delay_ns, repeat)
    return Edges(source, target, kind, delay).keep(sound)


def _thread(work: _Surgery, lane: int, placed: list[tuple[I64, I64, I64]]) -> None:
    """Put the new buckets of one stream in their place between what else it does."""
    anchor, begun, done = (np.concatenate([p[i] for p in placed]) for i in range(3))
    every = work.units.get(lane, np.zeros(0, np.int64))
    unit, old = every[~work.gone[every]], every[work.gone[every]]
    finish = work.finish[unit]
    place = np.concatenate([unit, anchor])
    begins, ends = np.concatenate([unit, begun]), np.concatenate([finish, done])
    order = np.lexsort((begins, place))
    begins, ends = begins[order], ends[order]
    near = np.zeros(len(order) + 1, bool)
    at = np.searchsorted(place[order], old, side="left")
    near[at] = True  # whatever now follows where an old one stood
    fresh = order >= len(unit)
    link = np.flatnonzero(fresh[1:] | fresh[:-1] | near[1:-1]) + 1
    edges = work.edges
    into = (edges.kind == EdgeKind.STREAM) & np.isin(edges.target, old)
    delay = int(np.median(edges.delay_ns[into])) if into.any() else 0
    work.added.append(new_edges(ends[link - 1], begins[link], EdgeKind.STREAM, delay))


def _units(graph: JobGraph) -> I64:
    """Tasks with which work on a stream begins."""
    kinds = (TaskKind.ARRIVE, TaskKind.KERNEL, TaskKind.MEMCPY, TaskKind.MEMSET)
    return np.flatnonzero(np.isin(graph.kind, kinds) & (graph.lane >= 0))


def _finishes(graph: JobGraph) -> I64:
    """Task at whose end each unit of a stream is done: COMM for an ARRIVE, else itself."""
    done = np.arange(len(graph))
    arrived = np.flatnonzero(graph.kind == TaskKind.ARRIVE)
    comm = np.flatnonzero(graph.kind == TaskKind.COMM)
    # Both halves of an operation have its lane and event, and stand in the same order.
    arrived, comm = (t[np.lexsort((t, graph.event[t], graph.lane[t]))] for t in (arrived, comm))
    done[arrived] = comm
    return done


def _finished(work: _Surgery) -> JobGraph:
    """Old buckets out, new ones in."""
    old, table = work.edges, work.graph.collectives
    moved = _handed_over(work, old)
    kept = old.keep(~(work.gone[old.source] | work.gone[old.target]))
    kept = work.producers.threaded(work.more, work.dur_ns, kept)
    work.more.graph = replace(work.graph, dur_ns=work.dur_ns)
    grown = work.more.appended()
    like = np.array(work.of, np.int64)
    table = Collectives(
        np.append(table.kind, table.kind[like]),
        np.append(table.group, table.group[like]),
        np.append(table.bytes, work.bytes),
        np.append(table.confidence, table.confidence[like]),
    )
    gone = np.append(work.gone, np.zeros(work.more.size, bool))
    edges = joined(kept, moved, *work.added)
    graph = rebuilt(replace(grown, collectives=table), edges, "buckets", gone)
    return _without_unused(graph, len(like))


def _without_unused(graph: JobGraph, added: int) -> JobGraph:
    """The graph without the collectives that were replaced."""
    table = graph.collectives
    used = np.zeros(len(table.kind), bool)
    used[graph.collective[graph.collective >= 0]] = True
    used[len(used) - added :] = True
    number = np.append(np.cumsum(used) - 1, -1).astype(np.int32)
    table = Collectives(
        *(getattr(table, n)[used] for n in ("kind", "group", "bytes", "confidence"))
    )
    return replace(graph, collective=number[graph.collective], collectives=table)
