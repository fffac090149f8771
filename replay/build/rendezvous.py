"""Waiting apart from execution: what each member of a collective waits for, and what it costs.

A collective starts to move data when its last member has arrived. The recorded time of a
member's kernel is waiting plus execution; its execution is its own end minus the last arrival
on the aligned clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.identity import Matches
from foretrace.replay.build.parts import GraphParts
from foretrace.replay.graph import I64, EdgeKind, TaskKind
from foretrace.traces.schema import COLLECTIVE_KINDS

ROOTED = tuple(COLLECTIVE_KINDS.index(k) for k in ("broadcast", "reduce", "scatter", "gather"))
POINT_TO_POINT = tuple(COLLECTIVE_KINDS.index(k) for k in ("send", "recv"))


@dataclass(frozen=True, slots=True)
class Split:
    """Waiting and execution of each member; arrays of shape ``(members,)``.

    Attributes:
        last_arrival_ns: when the last member arrived, aligned clock.
        exec_ns: execution without waiting.
        waits: whether the member depends on the last arrival. A rooted operation's early
            leaver and a small send that was buffered do not.
    """

    last_arrival_ns: I64
    exec_ns: I64
    waits: np.ndarray


def split(matches: Matches, start_ns: I64, end_ns: I64) -> Split:
    """Split every matched member into waiting and execution.

    Args:
        matches: matched operations.
        start_ns: arrival (kernel start) of each member on the aligned clock.
        end_ns: end of each member on the aligned clock.
    """
    count = np.diff(matches.ptr)
    last = np.maximum.reduceat(start_ns, matches.ptr[:-1]) if len(count) else np.zeros(0, np.int64)
    last = np.repeat(last, count)
    kind = np.repeat(matches.kind, count)
    early = np.isin(kind, ROOTED + POINT_TO_POINT) & (end_ns < last)
    after = np.where(early, start_ns, np.maximum(last, start_ns))
    return Split(last, np.maximum(end_ns - after, 0), ~early)


def add_rendezvous(
    parts: GraphParts, matches: Matches, halves: Split, arrive: I64, finish: I64, name: int
) -> None:
    """Join the arrivals of each match and let its executions wait for all of them.

    Args:
        parts: the graph under construction.
        matches: matched operations.
        halves: from :func:`split`.
        arrive: ARRIVE task of each member, shape ``(members,)``.
        finish: COMM task of each member.
        name: name number of the joins.
    """
    count = np.diff(matches.ptr)
    number = np.arange(len(count))
    last = halves.last_arrival_ns[matches.ptr[:-1]]
    join = parts.add_tasks(
        TaskKind.JOIN, np.zeros(len(count), np.int64), last, last, name=name, collective=number
    )
    joined = np.repeat(join, count)
    pairwise = np.isin(np.repeat(matches.kind, count), POINT_TO_POINT)
    kind = EdgeKind.RENDEZVOUS
    parts.add_edges(arrive, joined, kind)
    waiting = halves.waits
    parts.add_edges(joined[waiting & ~pairwise], finish[waiting & ~pairwise], kind)
    parts.add_edges(joined[waiting & pairwise], finish[waiting & pairwise], EdgeKind.PEER)


def label_collectives(parts: GraphParts, matches: Matches, tasks: I64) -> None:
    """Give the members' tasks the number of their match."""
    numbers = np.repeat(np.arange(len(matches.kind)), np.diff(matches.ptr)).astype(np.int32)
    column = parts.column("collective").copy()
    column[tasks] = np.tile(numbers, len(tasks) // max(len(numbers), 1))
    parts.tasks["collective"] = [column]
