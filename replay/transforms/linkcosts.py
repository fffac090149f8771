"""What of a communication task depends on its size, and which link it crosses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace.replay.graph import I64, JobGraph, TaskKind
from foretrace.replay.scenario import parse_time_ns
from foretrace.replay.selection import Mask
from foretrace.traces.errors import ScenarioError
from foretrace.traces.schema import COLLECTIVE_KINDS

SPREAD = 2.0
"""Sizes tell latency from bandwidth only where the largest is this many times the smallest."""

_P2P = [COLLECTIVE_KINDS.index(k) for k in ("send", "recv", "send_recv")]
_BARRIER = COLLECTIVE_KINDS.index("barrier")


def latency_part(graph: JobGraph, tasks: I64, what: str, given: str = "") -> I64:
    """The part of each communication task that does not grow with its bytes, ns.

    The fastest execution of the smallest and of the largest operation of the same kind and group
    give a line; where these have one size, those of the same kind among groups of equal size,
    then the whole group's, then those of groups of equal size, then all.

    Args:
        graph: the job graph.
        tasks: COMM tasks, shape ``(k,)``.
        what: the transform, for messages.
        given: the latency of an operation, with its unit; then nothing is estimated.

    Returns:
        ns, shape ``(k,)``, never more than the task's duration.

    Raises:
        ScenarioError: a size is unknown, or all operations have one size.
    """
    size = task_bytes(graph, tasks, what)
    dur = graph.dur_ns[tasks]
    free = (size == 0) | (graph.collectives.kind[graph.collective[tasks]] == _BARRIER)
    if given:
        each = np.full(len(tasks), parse_time_ns(given, f"{what}: per_operation"))
    else:
        each = _estimated(graph, tasks[~free], what)
        each = each[np.maximum(np.cumsum(~free) - 1, 0)] if len(each) else np.zeros(len(tasks))
    part: I64 = np.where(free, dur, np.minimum(np.rint(each).astype(np.int64), dur))
    return part


def task_bytes(graph: JobGraph, tasks: I64, what: str) -> I64:
    """Bytes of each communication task's operation, shape ``(k,)``.

    Raises:
        ScenarioError: a size is unknown.
    """
    collective = graph.collective[tasks]
    size = np.append(graph.collectives.bytes, -1)[collective]
    barrier = np.append(graph.collectives.kind == _BARRIER, False)[collective]
    size = np.where(barrier, np.maximum(size, 0), size)
    unknown = int((size < 0).sum())
    if unknown:
        raise ScenarioError(
            f"{what}: the trace does not say how large {unknown} of {len(tasks)} selected "
            "communication tasks are; select others, or change their durations with scale"
        )
    return size


def crosses_nodes(graph: JobGraph, ranks_per_node: int) -> Mask:
    """Which operations leave a node, shape ``(collectives,)``; none for ``ranks_per_node`` 0."""
    count = len(graph.collectives.kind)
    if not ranks_per_node:
        return np.zeros(count, bool)
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    tasks = np.flatnonzero((graph.kind == TaskKind.COMM) & (graph.collective >= 0))
    node = graph.rank[tasks] // ranks_per_node
    np.minimum.at(low, graph.collective[tasks], node)
    np.maximum.at(high, graph.collective[tasks], node)
    several = [len({r // ranks_per_node for r in ranks}) > 1 for ranks in graph.groups]
    whole = ~np.isin(graph.collectives.kind, _P2P)  # p2p concerns only its own two ends
    group = graph.collectives.group
    leaves: Mask = (high > low) | (whole & np.append(np.array(several, bool), False)[group])
    return leaves


def _estimated(graph: JobGraph, tasks: I64, what: str) -> np.ndarray:
    """Latency of each task from the trace's own operations, ns, shape ``(k,)``."""
    table = graph.collectives
    every = np.flatnonzero((graph.kind == TaskKind.COMM) & (graph.collective >= 0))
    fastest = np.full(len(table.kind), np.iinfo(np.int64).max)
    np.minimum.at(fastest, graph.collective[every], graph.dur_ns[every])
    known = (fastest < np.iinfo(np.int64).max) & (table.bytes > 0)
    latency = np.full(len(table.kind), -1.0)
    wanted = np.unique(graph.collective[tasks])
    for code in _classes(graph):
        for value in np.unique(code[wanted[latency[wanted] < 0]]):
            of_class = np.flatnonzero((code == value) & known)
            found = _intercept(table.bytes[of_class], fastest[of_class])
            latency[wanted[(code[wanted] == value) & (latency[wanted] < 0)]] = found
    if (latency[wanted] < 0).any():
        raise ScenarioError(
            f"{what}: all communication has one size, which does not tell latency from "
            'bandwidth; give the latency of an operation, such as per_operation = "20us"'
        )
    return latency[graph.collective[tasks]]


def _classes(graph: JobGraph) -> Iterator[I64]:
    """Operations that may stand for each other, closest first; codes of shape ``(c,)``."""
    table = graph.collectives
    members = np.append([len(ranks) for ranks in graph.groups], 0).astype(np.int64)[table.group]
    kinds = table.kind.astype(np.int64)
    many = int(members.max(initial=0)) + len(graph.groups) + 1
    yield kinds * many + table.group
    yield kinds * many + members
    yield table.group.astype(np.int64)
    yield members
    yield np.zeros(len(kinds), np.int64)


def _intercept(size: I64, time_ns: I64) -> float:
    """Time of an operation of size 0 by its smallest and largest samples, -1 unknown."""
    if not len(size) or size.max() < SPREAD * size.min():
        return -1.0
    small, large = int(size.min()), int(size.max())
    low, high = int(time_ns[size == small].min()), int(time_ns[size == large].min())
    slope = max((high - low) / (large - small), 0.0)
    return max(low - slope * small, 0.0)
