"""Fuse neighbouring kernels into one."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from foretrace.replay.graph import I64, EdgeKind, JobGraph, TaskKind
from foretrace.replay.selection import Mask, selected
from foretrace.replay.transforms.base import Factor, Transform
from foretrace.replay.transforms.edit import Edges, edges_of, rebuilt
from foretrace.traces.errors import ScenarioError

FUSED = (TaskKind.KERNEL, TaskKind.MEMCPY, TaskKind.MEMSET)
_ORDER = (EdgeKind.STREAM, EdgeKind.OVERLAP, EdgeKind.LAUNCH)


class Fuse(Transform, frozen=True, kw_only=True):
    """Selected kernels that follow each other on a stream become one, launched once.

    A kernel that waits for other work than its stream's begins a new one, and one that other work
    waits for ends one: fusing across it would hold that work up. The launches of the others take
    no time; host work between them stays.

    Attributes:
        keep: share of the fused kernels' summed duration that remains.
        most: at most so many kernels become one; 0 is any number.
    """

    keep: Factor = 1.0
    most: Annotated[int, msgspec.Meta(ge=0)] = 0

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job with fused kernels."""
        edges = edges_of(graph)
        mask = selected(graph, self.select) & np.isin(graph.kind, FUSED)
        tasks, head = self._runs(graph, edges, mask)
        follows = tasks != head
        if not follows.any():
            raise ScenarioError(f"fuse: no two kernels of {self.select!r} follow each other")
        total = np.zeros(len(graph), np.int64)
        np.add.at(total, head, graph.dur_ns[tasks])
        dur = graph.dur_ns.copy()
        heads, size = np.unique(head, return_counts=True)
        heads = heads[size > 1]
        dur[tasks[follows]] = 0
        dur[heads] = np.rint(total[heads] * self.keep).astype(np.int64)
        followers = np.zeros(len(graph), bool)
        followers[tasks[follows]] = True
        own = (edges.kind == EdgeKind.LAUNCH) & followers[edges.target]
        dur[_only_for(graph, edges, own)] = 0
        delay = edges.delay_ns.copy()
        delay[(edges.kind == EdgeKind.STREAM) & followers[edges.target]] = 0
        freed = Edges(edges.source, edges.target, edges.kind, delay).keep(~own)
        return rebuilt(graph.with_durations(dur), freed, "fuse")

    def _runs(self, graph: JobGraph, edges: Edges, mask: Mask) -> tuple[I64, I64]:
        """Selected kernels by stream and order, and the first kernel of each one's run."""
        waits, awaited = np.zeros(len(graph), bool), np.zeros(len(graph), bool)
        outside = ~np.isin(edges.kind, _ORDER)
        waits[edges.target[outside]] = True
        awaited[edges.source[outside]] = True
        device = np.flatnonzero(np.isin(graph.kind, (*FUSED, TaskKind.ARRIVE)))
        device = device[np.argsort(graph.lane[device], kind="stable")]
        begins = waits[device] | ~mask[device]
        begins[1:] |= ~mask[device[:-1]] | awaited[device[:-1]]
        for column in (graph.lane, graph.step):
            begins[1:] |= column[device[1:]] != column[device[:-1]]
        begins[:1] = True
        place = np.arange(len(device))
        first = np.maximum.accumulate(np.where(begins, place, 0))
        if self.most:
            first += (place - first) // self.most * self.most
        ours = mask[device]
        return device[ours], device[first][ours]


def _only_for(graph: JobGraph, edges: Edges, own: Mask) -> I64:
    """Calls that launch nothing but what ``own`` edges launch."""
    calls = np.unique(edges.source[own])
    others = np.unique(edges.source[(edges.kind == EdgeKind.LAUNCH) & ~own])
    return np.setdiff1d(calls, others)
