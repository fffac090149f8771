"""A faster, slower or ideal network."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np

from foretrace.replay.graph import I64, JobGraph, TaskKind
from foretrace.replay.scenario import parse_length_ns
from foretrace.replay.selection import selected
from foretrace.replay.transforms.base import Factor, Positive, Transform
from foretrace.replay.transforms.linkcosts import crosses_nodes, latency_part
from foretrace.traces.errors import ScenarioError


class Network(Transform, frozen=True, kw_only=True):
    """Communication over some links gets another bandwidth or latency.

    The execution of an operation is split into latency and bytes / bandwidth by the fastest
    operations of the trace itself (see ``linkcosts``).

    Attributes:
        bandwidth: 2.0 is twice the bytes a second.
        latency: 0.5 is half the latency.
        ideal: communication takes no time; waiting for other ranks remains.
        link: only operations within a node (``intra``), only those that leave one (``inter``).
        ranks_per_node: ranks 0 to k - 1 are the first node and so on; 0 is one node for all.
        per_operation: latency of an operation, where the trace's sizes cannot tell it.
    """

    select: str = "comm"
    bandwidth: Positive = 1.0
    latency: Factor = 1.0
    ideal: bool = False
    link: Literal["all", "intra", "inter"] = "all"
    ranks_per_node: Annotated[int, msgspec.Meta(ge=0)] = 0
    per_operation: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_operation:
            parse_length_ns(self.per_operation, "network: per_operation")

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job on the other network."""
        tasks = self._tasks(graph)
        dur = graph.dur_ns.copy()
        if self.ideal:
            dur[tasks] = 0
            return graph.with_durations(dur)
        if self.bandwidth == self.latency == 1.0:
            return graph
        fixed = latency_part(graph, tasks, "network", self.per_operation)
        moved = dur[tasks] - fixed
        dur[tasks] = np.rint(fixed * self.latency + moved / self.bandwidth).astype(np.int64)
        return graph.with_durations(dur)

    def _tasks(self, graph: JobGraph) -> I64:
        mask = selected(graph, self.select) & (graph.kind == TaskKind.COMM)
        if not mask.any():
            raise ScenarioError(f"network: {self.select!r} selects no communication")
        if self.link != "all":
            # Operations without a counterpart are known to no table and leave no node.
            leaves = np.append(crosses_nodes(graph, self.ranks_per_node), False)[graph.collective]
            mask &= leaves if self.link == "inter" else ~leaves
        if not mask.any():
            raise ScenarioError(
                f"network: no operation of {self.select!r} is {self.link}-node with "
                f"ranks_per_node = {self.ranks_per_node}"
            )
        return np.flatnonzero(mask)
