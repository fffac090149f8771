"""Drop dependencies, or have them twice."""

from __future__ import annotations

from typing import Literal

import numpy as np

from foretrace.replay.graph import EdgeKind, JobGraph
from foretrace.replay.scenario import parse_selector, parse_time_ns
from foretrace.replay.selection import Mask, selected_with_arrivals
from foretrace.replay.transforms.base import Transform
from foretrace.replay.transforms.edit import edges_of, joined, new_edges, rebuilt
from foretrace.traces.errors import ScenarioError

EDGES = tuple(kind.name.lower() for kind in EdgeKind)
"""Values of ``edge``."""


class Dependency(Transform, frozen=True, kw_only=True):
    """Dependencies of one kind that lead to the selected tasks go, or count twice.

    A task that nothing precedes any more starts at the begin of the recording.

    Attributes:
        select: tasks that wait; all by default.
        after: tasks that they wait for; all by default.
        edge: kind of the dependency, one of EDGES.
        action: ``drop``, or ``duplicate``: a second dependency beside each, ``delay`` later.
        delay: a time with its unit.
    """

    select: str = ""
    after: str = ""
    edge: str
    action: Literal["drop", "duplicate"] = "drop"
    delay: str = "0"

    def __post_init__(self) -> None:
        for text in filter(None, (self.select, self.after)):
            parse_selector(text)
        if self.edge not in EDGES:
            raise ScenarioError(f"dependency: no edge {self.edge!r}; one of {', '.join(EDGES)}")
        parse_time_ns(self.delay, "dependency: delay")

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job with other dependencies."""
        edges = edges_of(graph)
        chosen = edges.kind == EDGES.index(self.edge)
        chosen &= _ends(graph, self.select)[edges.target] & _ends(graph, self.after)[edges.source]
        if not chosen.any():
            there = [EDGES[k] for k in np.unique(graph.edge_kind)]
            raise ScenarioError(
                f"dependency: no {self.edge} dependency leads from {self.after or 'any task'!r} to "
                f"{self.select or 'any task'!r}; kinds in this graph: {', '.join(there)}"
            )
        if self.action == "drop":
            return rebuilt(graph, edges.keep(~chosen), "dependency")
        again = edges.keep(chosen)
        later = again.delay_ns + round(parse_time_ns(self.delay, "dependency: delay"))
        copies = new_edges(again.source, again.target, EdgeKind(EDGES.index(self.edge)), later)
        return rebuilt(graph, joined(edges, copies), "dependency")


def _ends(graph: JobGraph, select: str) -> Mask:
    """Tasks that a selector means, arrivals at its operations included; all without one."""
    return selected_with_arrivals(graph, select) if select else np.ones(len(graph), bool)
