"""CUDA graphs: what a host thread launches in one go becomes a single launch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.replay.graph import I64, EdgeKind, JobGraph, TaskKind
from foretrace.replay.scenario import parse_length_ns
from foretrace.replay.selection import selected_with_arrivals
from foretrace.replay.transforms.base import Transform
from foretrace.replay.transforms.edit import Edges, edges_of
from foretrace.replay.transforms.hostchain import Stretches, stretches
from foretrace.traces.errors import ScenarioError

REMOVED = (TaskKind.HOST, TaskKind.CALL, TaskKind.STALL)


class CudaGraphs(Transform, frozen=True, kw_only=True):
    """One launch per phase: from one stop of the host to the next.

    A phase is what a host thread launches without a blocking call, a step mark, a hand-off to
    another thread or a launch of work that is not selected in between. Its first launch stays;
    the others, and the host work between the first and the last, take no time.

    Attributes:
        launch: duration of a graph launch, with its unit; that of the phase's first launch
            by default.
        gap: longest gap between two kernels of a graph, with its unit.
    """

    select: str = "compute|copy"
    launch: str = ""
    gap: str = "1us"

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_length_ns(self.launch or "0", "cuda_graphs: launch")
        parse_length_ns(self.gap, "cuda_graphs: gap")

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job with one launch per phase."""
        edges = edges_of(graph)
        mask = selected_with_arrivals(graph, self.select)
        host = stretches(graph, edges, mask)
        first, last = _span(host)
        if not (last > first).any():
            raise ScenarioError(
                f"cuda_graphs: the host launches no two tasks of {self.select!r} in one go"
            )
        place = np.arange(len(host.task))
        graphed = last[host.number] > first[host.number]
        inside = graphed & (place > first[host.number]) & (place <= last[host.number])
        dur = graph.dur_ns.copy()
        gone = host.task[inside]
        dur[gone[np.isin(graph.kind[gone], REMOVED)]] = 0
        heads = host.task[first[last > first]]
        if self.launch:
            dur[heads] = round(parse_length_ns(self.launch, "cuda_graphs: launch"))
        delay = self._gaps(graph, edges, host, graphed)
        return replace(graph.with_durations(dur), edge_delay_ns=delay)

    def _gaps(self, graph: JobGraph, edges: Edges, host: Stretches, graphed: np.ndarray) -> I64:
        """Delays between kernels of one graph, cut to ``gap``."""
        phase = np.full(len(graph), -1, np.int64)
        caller = np.full(len(graph), -1, np.int64)
        phase[host.task[graphed]] = host.number[graphed]
        launch = edges.kind == EdgeKind.LAUNCH
        caller[edges.target[launch]] = phase[edges.source[launch]]
        within = np.isin(edges.kind, (EdgeKind.STREAM, EdgeKind.EVENT))
        within &= caller[edges.target] >= 0
        within &= caller[edges.source] == caller[edges.target]
        most = round(parse_length_ns(self.gap, "cuda_graphs: gap"))
        return np.where(within, np.minimum(edges.delay_ns, most), edges.delay_ns)


def _span(host: Stretches) -> tuple[I64, I64]:
    """First and last place of a launch in each stretch; last 0 and first large without any."""
    count = int(host.number.max(initial=0)) + 1
    first, last = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    place = np.flatnonzero(host.launches)
    np.minimum.at(first, host.number[place], place)
    np.maximum.at(last, host.number[place], place)
    return first, last
