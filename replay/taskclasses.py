"""Ways to sort tasks into classes: by kind of work, rank, name, collective."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import I64, JobGraph, TaskKind
from foretrace.replay.selection import number_ranges
from foretrace.traces.errors import ScenarioError
from foretrace.traces.schema import COLLECTIVE_KINDS

_HEAD = re.compile(r"(?:void |\(anonymous namespace\)::)*([^<(\[{]*)")
_PARTS = re.compile(r"::|[./]")

KIND_NAMES = {
    TaskKind.HOST: "host", TaskKind.CALL: "launch", TaskKind.SYNC: "sync",
    TaskKind.STALL: "stall", TaskKind.KERNEL: "compute", TaskKind.MEMCPY: "memcpy",
    TaskKind.MEMSET: "memset", TaskKind.COMM: "comm", TaskKind.SKEW: "skew",
}  # fmt: skip
"""Kinds that have a duration, by the words of ``kind:``."""


@dataclass(frozen=True, slots=True)
class TaskClasses:
    """Each task's class.

    Attributes:
        names: names of the classes.
        label: index into ``names`` of each task, -1 for none, shape ``(n,)``.
    """

    names: tuple[str, ...]
    label: I64


def classify(graph: JobGraph, by: str, depth: int = 2) -> TaskClasses:
    """Sort the tasks of a graph.

    Args:
        graph: the job graph.
        by: one of BY.
        depth: how many parts of a name count (by ``layer``).

    Raises:
        ScenarioError: no such way.
    """
    check_way(by)
    return _by_layer(graph, depth) if by == "layer" else BY[by](graph)


def check_way(by: str) -> None:
    """Refuse a way to sort tasks that does not exist.

    Raises:
        ScenarioError: no such way; says which there are.
    """
    if by not in BY:
        raise ScenarioError(f"tasks are sorted by {', '.join(BY)}; there is no {by!r}")


def name_prefix(name: str, depth: int) -> str:
    """The first parts of a name: ``model.layers`` of ``model.layers.3.mlp``, templates left out."""
    match = _HEAD.match(name)
    head = match[1].strip() if match else ""
    cuts = list(_PARTS.finditer(head))
    return (head[: cuts[depth - 1].start()] if len(cuts) >= depth else head) or name


def _by_kind(graph: JobGraph) -> TaskClasses:
    table = np.full(len(TaskKind), -1, np.int64)
    table[list(KIND_NAMES)] = np.arange(len(KIND_NAMES))
    return TaskClasses(tuple(KIND_NAMES.values()), table[graph.kind])


def _by_rank(graph: JobGraph) -> TaskClasses:
    there = np.bincount(graph.rank[graph.rank >= 0])
    ranks = np.flatnonzero(there)
    label = np.append(np.cumsum(there > 0) - 1, -1)[graph.rank]
    return TaskClasses(tuple(f"rank {rank}" for rank in ranks), label)


def _by_layer(graph: JobGraph, depth: int = 2) -> TaskClasses:
    prefixes = [name_prefix(name, depth) for name in graph.names]
    names = tuple(dict.fromkeys(prefixes))
    number = {name: i for i, name in enumerate(names)}
    of_name = np.array([number[prefix] for prefix in prefixes], np.int64)
    return TaskClasses(names, of_name[graph.name] if len(of_name) else graph.name.astype(np.int64))


def _by_collective(graph: JobGraph) -> TaskClasses:
    table = graph.collectives
    code = table.kind.astype(np.int64) * (len(graph.groups) + 1) + table.group
    found, of_collective = np.unique(code, return_inverse=True)
    names = []
    for kind, group in zip(*np.divmod(found, len(graph.groups) + 1), strict=True):
        ranks = graph.groups[group] if group < len(graph.groups) else ()
        names.append(f"{COLLECTIVE_KINDS[kind]} {number_ranges(ranks)}")
    comm = graph.kind == TaskKind.COMM
    lone = len(names)
    label = np.append(of_collective, lone)[graph.collective]
    return TaskClasses((*names, "without a counterpart"), np.where(comm, label, -1))


BY: dict[str, Callable[[JobGraph], TaskClasses]] = {
    "kind": _by_kind,
    "rank": _by_rank,
    "layer": _by_layer,
    "collective": _by_collective,
}
"""Ways to sort tasks; ``layer`` is a prefix of the name. Adding one is one line here."""
