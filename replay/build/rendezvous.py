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
from foretrace.replay.graph import I32, I64, EdgeKind, TaskKind
from foretrace.traces.schema import COLLECTIVE_KINDS

ROOTED = tuple(COLLECTIVE_KINDS.index(k) for k in ("broadcast", "reduce", "scatter", "gather"))
FROM_ROOT = tuple(COLLECTIVE_KINDS.index(k) for k in ("broadcast", "scatter"))


@dataclass(frozen=True, slots=True)
class Split:
    """Waiting and execution of each member; arrays of shape ``(members,)``.

    Attributes:
        last_arrival_ns: when the last member arrived, aligned clock.
        exec_ns: execution without waiting.
        waits: whether the member depends on the last arrival. A rooted operation's early
            leaver and a small send that was buffered do not; nor does a receive that ended
            before its send was recorded to begin, since the clocks contradict that wait.
        root: position of the member that this one depends on alone, -1 for none: a receiver of a
            broadcast waits for its root and not for the other receivers.
    """

    last_arrival_ns: I64
    exec_ns: I64
    waits: np.ndarray
    root: I64


def split(matches: Matches, start_ns: I64, end_ns: I64, root_rank: I32) -> Split:
    """Split every matched member into waiting and execution.

    Args:
        matches: matched operations.
        start_ns: arrival (kernel start) of each member on the aligned clock.
        end_ns: end of each member on the aligned clock.
        root_rank: recorded root of each member's operation, -1 unknown.
    """
    count = np.diff(matches.ptr)
    last = np.maximum.reduceat(start_ns, matches.ptr[:-1]) if len(count) else np.zeros(0, np.int64)
    last = np.repeat(last, count)
    kind = np.repeat(matches.kind, count)
    # Kernels that write into their peers' memory may be done before these look at it.
    early = np.isin(kind, ROOTED) | np.repeat(matches.p2p | matches.weak, count)
    early &= end_ns < last
    root = _sender(matches, kind, root_rank)
    ready = np.where(root >= 0, start_ns[root], np.where(early, start_ns, last))
    execution = end_ns - np.maximum(ready, start_ns)
    return Split(last, np.maximum(execution, 0), ~early & (root < 0), root)


def _sender(matches: Matches, kind: np.ndarray, root_rank: I32) -> I64:
    """Position of the root that each receiver of a broadcast or scatter depends on, -1."""
    count = np.diff(matches.ptr)
    match = np.repeat(np.arange(len(count)), count)
    sent = np.isin(kind, FROM_ROOT) & (root_rank >= 0)
    is_root = np.flatnonzero(sent & (matches.rank == root_rank))
    of_match = np.full(len(count), -1, np.int64)
    of_match[match[is_root]] = is_root
    root = of_match[match]
    return np.where(sent & (root != np.arange(len(kind))), root, -1)


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
    sure = np.repeat(matches.confidence, count)
    parts.add_edges(arrive, joined, EdgeKind.RENDEZVOUS, confidence=sure)
    pairwise = np.repeat(matches.p2p, count)
    for kind, chosen in ((EdgeKind.RENDEZVOUS, ~pairwise), (EdgeKind.PEER, pairwise)):
        some = chosen & halves.waits
        parts.add_edges(joined[some], finish[some], kind, confidence=sure[some])
    alone = np.flatnonzero(halves.root >= 0)
    parts.add_edges(
        arrive[halves.root[alone]], finish[alone], EdgeKind.PEER, confidence=sure[alone]
    )


def label_collectives(parts: GraphParts, matches: Matches, tasks: I64) -> None:
    """Give the members' tasks the number of their match."""
    numbers = np.repeat(np.arange(len(matches.kind)), np.diff(matches.ptr)).astype(np.int32)
    column = parts.column("collective").copy()
    column[tasks] = np.tile(numbers, len(tasks) // max(len(numbers), 1))
    parts.tasks["collective"] = [column]
