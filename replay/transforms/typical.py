"""A job without the noise of its recording: every step as the typical one."""

from __future__ import annotations

import numpy as np

from foretrace.replay.graph import I64, JobGraph, TaskKind
from foretrace.replay.selection import Mask, selected
from foretrace.replay.transforms.base import Transform
from foretrace.replay.transforms.equalise import codes, runs


class Typical(Transform, frozen=True, kw_only=True):
    """Every task takes what it takes in the typical step; host stalls go.

    Tasks match that have the same rank, thread or stream, kind and name and are the same in
    number in their step, among steps that have equally many of them; they take the median. So
    a hiccup of one step no longer counts as work, and a slower network no longer stretches it.

    Collectives match that have the same kind, group and size and are the same in number in their
    step. All members take what they took in the step whose slowest member is the median one:
    another member may be the slowest each time, and the next task waits for that one. With one
    recorded step only stalls go.
    """

    select: str = "host|compute|copy|comm|stall"

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job with equal steps."""
        mask = selected(graph, self.select) & (graph.step >= 0) & (graph.rank >= 0)
        dur = graph.dur_ns.copy()
        comm = mask & (graph.kind == TaskKind.COMM) & (graph.collective >= 0)
        _put_medians(graph, mask & ~comm, dur)
        if comm.any():
            _put_typical_collectives(graph, np.flatnonzero(comm), dur)
        return graph.with_durations(dur)


def _put_medians(graph: JobGraph, mask: Mask, dur: I64) -> None:
    """Put medians over steps into ``dur``."""
    stall = mask & (graph.kind == TaskKind.STALL)
    dur[stall] = 0
    tasks = np.flatnonzero(mask & ~stall)
    what: list[np.ndarray] = [graph.lane[tasks], graph.kind[tasks], graph.name[tasks]]
    number, several = _numbered([graph.step[tasks], *what], (graph.event[tasks], tasks))
    match = codes([*what, several, number])
    order = np.lexsort((dur[tasks], match))
    first, count = runs(match[order])
    ordered = dur[tasks[order]]
    low, high = ordered[first + (count - 1) // 2], ordered[first + count // 2]
    dur[tasks[order]] = np.repeat(low + (high - low) // 2, count)


def _put_typical_collectives(graph: JobGraph, comm: I64, dur: I64) -> None:
    """Put the typical step's collectives into ``dur``."""
    comm = comm[np.lexsort((graph.lane[comm], graph.rank[comm], graph.collective[comm]))]
    first, members = runs(graph.collective[comm].astype(np.int64))
    which, slowest = graph.collective[comm[first]], np.maximum.reduceat(dur[comm], first)
    table, step = graph.collectives, graph.step[comm[first]]
    what: list[np.ndarray] = [table.group[which], table.kind[which], table.bytes[which], members]
    number, several = _numbered([step, *what], (which,))
    match = codes([*what, several, number])
    order = np.lexsort((slowest, match))
    begin, count = runs(match[order])
    typical = np.empty(len(which), np.int64)
    typical[order] = np.repeat(order[begin + (count - 1) // 2], count)
    within = np.arange(len(comm)) - np.repeat(first, members)
    dur[comm] = dur[comm[np.repeat(first[typical], members) + within]]


def _numbered(columns: list[np.ndarray], order_by: tuple[np.ndarray, ...]) -> tuple[I64, I64]:
    """Place of each row among the rows of equal columns, and how many these are."""
    code = codes(columns)
    order = np.lexsort((*order_by[::-1], code))
    first, count = runs(code[order])
    number, several = np.empty(len(code), np.int64), np.empty(len(code), np.int64)
    number[order] = np.arange(len(code)) - np.repeat(first, count)
    several[order] = np.repeat(count, count)
    return number, several
