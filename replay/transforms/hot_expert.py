"""One expert that gets more tokens than the others."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from foretrace.replay.graph import I64, JobGraph, TaskKind
from foretrace.replay.selection import selected
from foretrace.replay.transforms.base import Rate, Transform
from foretrace.replay.transforms.linkcosts import task_bytes
from foretrace.traces.errors import ScenarioError


class HotExpert(Transform, frozen=True, kw_only=True):
    """The experts of one rank get a larger share of all tokens; they were shared evenly before.

    An all-to-all then lasts at least as long as the hot rank's link carries what goes to it or
    comes from it; and no less than it did, as much being sent by every rank as before.

    Attributes:
        select: the all-to-alls.
        rank: the hot rank.
        share: its share of all tokens, from 1 / members on.
        bytes_per_s: rate of its link, one way.
        experts: the computation that grows with a rank's tokens.
    """

    select: str = "all_to_all"
    rank: Annotated[int, msgspec.Meta(ge=0)]
    share: Annotated[float, msgspec.Meta(gt=0, le=1)]
    bytes_per_s: Rate
    experts: str

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job with a hot expert."""
        tasks = np.flatnonzero(selected(graph, self.select) & (graph.kind == TaskKind.COMM))
        tasks = tasks[graph.collective[tasks] >= 0]
        if not len(tasks):
            raise ScenarioError(f"hot_expert: {self.select!r} selects no all-to-all")
        dur = graph.dur_ns.copy()
        members = self._members(graph, tasks)
        there = task_bytes(graph, tasks, "hot_expert") * (members - 1) * self.share
        port_ns = np.rint(there / self.bytes_per_s * 1e9).astype(np.int64)
        dur[tasks] = np.maximum(dur[tasks], port_ns)
        work = np.flatnonzero(selected(graph, self.experts) & (graph.kind != TaskKind.COMM))
        count = int(members[0])
        even, hot = (1 - self.share) / (count - 1) * count, self.share * count
        factor = np.where(graph.rank[work] == self.rank, hot, even)
        dur[work] = np.rint(dur[work] * factor).astype(np.int64)
        return graph.with_durations(dur)

    def _members(self, graph: JobGraph, tasks: I64) -> I64:
        """Members of each all-to-all, shape ``(k,)``."""
        groups = graph.collectives.group[graph.collective[tasks]]
        size = np.array([len(ranks) for ranks in graph.groups], np.int64)[groups]
        has = np.array([self.rank in ranks for ranks in graph.groups])[groups]
        if not has.all() or (size != size[0]).any():
            raise ScenarioError(
                f"hot_expert: rank {self.rank} is no member of every selected all-to-all, or they "
                "differ in size; select those of one group (group:0-7)"
            )
        if self.share * size[0] < 1:
            raise ScenarioError(
                f"hot_expert: share {self.share} of {size[0]} ranks is less than an even one"
            )
        return size
