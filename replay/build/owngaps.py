"""The gap before a kernel on a busy stream is the kernel's own.

A kernel that needs more shared memory, or more of a set-up, than the one before it begins some
microseconds later, every time. So kernels that are seen often have a gap of their own, found like
every other constant. It may exceed the stream's usual gap by a few microseconds only: what is
later than that has some other reason, which must stay visible.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.replay.build.labelkernel import distinct, grouped
from foretrace.replay.build.slackkernel import low_ends
from foretrace.replay.build.slacks import MIN_SAMPLES, slacks
from foretrace.replay.graph import I64, EdgeKind, JobGraph, TaskKind

MAX_OWN_NS = 10_000
"""A kernel's own gap exceeds the stream's usual one by at most this."""


def with_own_gaps(graph: JobGraph, borrow: frozenset[int], in_time: I64) -> JobGraph:
    """Give kernels that are seen often their own gap behind another kernel of their stream.

    Args:
        graph: the job graph with its general constants.
        borrow: ranks whose own times say nothing; they take the other ranks' gaps.
        in_time: its tasks in order of time (see ``slacks.time_order``).
    """
    found = slacks(graph, borrow, in_time)
    between = _between_kernels(graph, found.edge, found.task)
    task, slack = found.task[between], found.slack_ns[between]
    target = np.repeat(np.arange(len(graph)), np.diff(graph.pred_ptr))
    edges = np.flatnonzero(_between_kernels(graph, np.arange(len(graph.pred)), target))
    # One gap for each kernel of each rank; what a rank shows too seldom is that of all ranks.
    labels, number = distinct(_labels(graph, np.concatenate([target[edges], task])))
    of_edge, of_sample = number[: len(edges)], number[len(edges) :]
    gap, samples = _gaps(slack, of_sample, len(labels))
    names, named = distinct(labels >> 32)
    pooled, seen = _gaps(slack, named[of_sample], len(names))
    gap = np.where(samples >= MIN_SAMPLES, gap, pooled[named])
    order, first = grouped(of_edge, len(labels))
    carries = np.diff(first) > 0
    usual = np.zeros(len(labels), np.int64)
    usual[carries] = graph.edge_delay_ns[edges[order[first[:-1][carries]]]]
    holds = (seen[named] >= MIN_SAMPLES) & (gap <= usual + MAX_OWN_NS)
    delay = graph.edge_delay_ns.copy()
    delay[edges] = np.where(holds[of_edge], gap[of_edge], delay[edges])
    return replace(graph, edge_delay_ns=delay)


def _labels(graph: JobGraph, tasks: I64) -> I64:
    """One number for each name on each rank."""
    return (graph.name[tasks].astype(np.int64) << 32) + graph.rank[tasks]


def _gaps(slack: I64, number: I64, count: int) -> tuple[I64, I64]:
    """The low end of the samples with each number, and how many they are."""
    order, first = grouped(number, count)
    return low_ends(slack[order], first[:-1], first[1:]), np.diff(first)


def _between_kernels(graph: JobGraph, edge: I64, target: I64) -> np.ndarray:
    """Which edges order two kernels of a stream."""
    kernels = (graph.kind[graph.pred[edge]] == TaskKind.KERNEL) & (
        graph.kind[target] == TaskKind.KERNEL
    )
    result: np.ndarray = kernels & (graph.edge_kind[edge] == EdgeKind.STREAM)
    return result
