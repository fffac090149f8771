"""Take the overlap of some device work with all other away, or make it perfect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from foretrace.replay.engine import replay
from foretrace.replay.graph import I64, EdgeKind, JobGraph, TaskKind
from foretrace.replay.selection import Mask, host_computation, selected
from foretrace.replay.transforms.base import Transform
from foretrace.replay.transforms.edit import (
    Edges,
    by_lane,
    edges_of,
    joined,
    new_edges,
    rebuilt,
)
from foretrace.traces.errors import ScenarioError

WORK = (TaskKind.KERNEL, TaskKind.MEMCPY, TaskKind.MEMSET, TaskKind.COMM)


class Overlap(Transform, frozen=True, kw_only=True):
    """The selected device work overlaps with nothing, or holds nothing up.

    Attributes:
        mode: ``none``: on each rank, selected and other work run one after the other, in the
            order in which they began; on ranks without a device the host's computation is work.
            ``perfect``: other streams and the host no longer wait for the selected work; the end
            of a step still does.
    """

    select: str = "comm"
    mode: Literal["none", "perfect"] = "none"

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job with the other overlap."""
        work = np.isin(graph.kind, WORK)
        if self.mode == "none":  # without a device it is the host that computes
            work |= host_computation(graph)
        mask = selected(graph, self.select) & work
        if not mask.any():
            raise ScenarioError(f"overlap: {self.select!r} selects no device work")
        edges = edges_of(graph)
        if self.mode == "none":
            added = _one_after_the_other(graph, mask, np.flatnonzero(work))
            return rebuilt(graph, joined(edges, added), "overlap")
        holds = np.isin(edges.kind, (EdgeKind.EVENT, EdgeKind.SYNC)) & mask[edges.source]
        holds &= graph.lane[edges.source] != graph.lane[edges.target]
        return rebuilt(graph, edges.keep(~holds), "overlap")


def _one_after_the_other(graph: JobGraph, mask: Mask, work: I64) -> Edges:
    """Edges between selected and other work of each rank, in the order of their starts.

    That order agrees with all dependencies of the job, so that nothing can wait for itself.
    """
    start, join = replay(graph).start_ns, _awaited_joins(graph)
    found = [new_edges(np.zeros(0, np.int64), np.zeros(0, np.int64), EdgeKind.STREAM)]
    for selected_lane, other_lane in _lane_pairs(graph, mask, work):
        ours, others = (
            lane[np.lexsort((lane, start[lane]))] for lane in (selected_lane, other_lane)
        )
        before = _last_before(start, others, ours)
        found.append(_held(start, join, before, ours))
        before = _last_before(start, ours, others)
        found.append(_held(start, join, before, others))
    return joined(*found)


def _lane_pairs(graph: JobGraph, mask: Mask, work: I64) -> Iterator[tuple[I64, I64]]:
    """Selected work of one lane and other work of another lane of the same rank.

    Threads that carry out communication send and receive beside each other, so that each of their
    operations counts as a lane of its own.
    """
    by_rank: dict[int, list[I64]] = {}
    for lane, tasks in by_lane(graph, work).items():
        several = by_rank.setdefault(int(graph.lanes.rank[lane]), [])
        several += np.split(tasks, len(tasks)) if graph.lanes.device[lane] == -2 else [tasks]
    for several in by_rank.values():
        for a in several:
            for b in several:
                ours, others = a[mask[a]], b[~mask[b]]
                if a is not b and len(ours) and len(others):
                    yield ours, others


def _last_before(start: I64, earlier: I64, tasks: I64) -> I64:
    """The last of ``earlier`` that began before each task, by number where both began at once."""
    both = np.concatenate([earlier, tasks])
    order = np.lexsort((both, start[both]))
    is_earlier = order < len(earlier)
    count = np.cumsum(is_earlier)[~is_earlier] - 1
    # ``tasks`` are in that order already, so the counts belong to them one by one.
    return np.where(count >= 0, earlier[np.maximum(count, 0)], -1)


def _awaited_joins(graph: JobGraph) -> I64:
    """The JOIN that each task waits for, -1 for none (small sends leave early), shape ``(n,)``."""
    edges = edges_of(graph)
    waits = graph.kind[edges.source] == TaskKind.JOIN
    join = np.full(len(graph), -1, np.int64)
    join[edges.target[waits]] = edges.source[waits]
    return join


def _held(start: I64, joins: I64, before: I64, tasks: I64) -> Edges:
    """Each task waits for the one before it; a collective's members all do, if they still can."""
    fresh = before >= 0
    fresh[1:] &= before[1:] != before[:-1]  # the lane's own order does the rest
    source, target = before[fresh], tasks[fresh]
    join = joins[target]
    at_join = join >= 0
    at_join &= (start[source] < start[join]) | ((start[source] == start[join]) & (source < join))
    return new_edges(source, np.where(at_join, join, target), EdgeKind.STREAM)
