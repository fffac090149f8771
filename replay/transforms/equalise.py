"""All ranks as fast as the median of them, or as the best."""

from __future__ import annotations

from typing import Literal

import numpy as np

from foretrace.replay.graph import I64, JobGraph
from foretrace.replay.selection import selected
from foretrace.replay.transforms.base import Transform
from foretrace.traces.errors import ScenarioError


class Equalise(Transform, frozen=True, kw_only=True):
    """Every task takes what the matching tasks of all ranks take.

    Tasks match that have the same kind, name, step and device stream and are the same in number
    on their rank, among ranks that have equally many of them. So the stages of a pipeline are
    compared only where they do the same work.

    Attributes:
        to: the ``median`` of the ranks, or the ``best`` (shortest).
    """

    select: str = "compute"
    to: Literal["median", "best"] = "median"

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job with equal ranks."""
        tasks = np.flatnonzero(selected(graph, self.select) & (graph.rank >= 0))
        match = matching_tasks(graph, tasks)
        dur = graph.dur_ns.copy()
        order = np.lexsort((dur[tasks], match))
        first, count = runs(match[order])
        if not (count > 1).any():
            raise ScenarioError(
                f"equalise {self.select!r}: no task has a match on another rank; "
                "it needs two ranks that do the same work"
            )
        ordered = dur[tasks[order]]
        low, high = ordered[first + (count - 1) // 2], ordered[first + count // 2]
        level = low + (high - low) // 2 if self.to == "median" else ordered[first]
        dur[tasks[order]] = np.repeat(level, count)
        return graph.with_durations(dur)


def matching_tasks(graph: JobGraph, tasks: I64) -> I64:
    """Number of the match of each task, shape ``(k,)``; equal numbers match across ranks."""
    stream = np.append(np.where(graph.lanes.device >= 0, graph.lanes.number, -1), -1)
    what: list[np.ndarray] = [
        graph.kind[tasks],
        graph.name[tasks],
        graph.step[tasks],
        stream[graph.lane[tasks]],
    ]
    on_rank = codes([graph.rank[tasks], *what])
    # Within a rank the recorded order counts; tasks without an event have only their own.
    order = np.lexsort((tasks, graph.event[tasks], on_rank))
    first, count = runs(on_rank[order])
    number, several = np.empty(len(tasks), np.int64), np.empty(len(tasks), np.int64)
    number[order] = np.arange(len(tasks)) - np.repeat(first, count)
    several[order] = np.repeat(count, count)
    return codes([*what, several, number])


def codes(columns: list[np.ndarray]) -> I64:
    """One number per distinct row of columns, shape ``(k,)``."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, value = np.unique(column, return_inverse=True)
        _, code = np.unique(code * (int(value.max(initial=0)) + 1) + value, return_inverse=True)
    return code


def runs(ordered: I64) -> tuple[I64, I64]:
    """First position and length of each run of equal values."""
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    return first, np.diff(np.append(first, len(ordered)))
