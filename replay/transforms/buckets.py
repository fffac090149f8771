"""Other gradient buckets: larger, smaller, fused or split collectives."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from foretrace.replay.engine import replay
from foretrace.replay.graph import I64, JobGraph, TaskKind
from foretrace.replay.scenario import parse_length_ns
from foretrace.replay.selection import selected
from foretrace.replay.transforms.base import Count, Positive, Transform
from foretrace.replay.transforms.linkcosts import task_bytes
from foretrace.replay.transforms.rebucket import rebucketed
from foretrace.traces.errors import ScenarioError
from foretrace.traces.schema import COLLECTIVE_KINDS

BUCKETED = ("all_reduce", "reduce_scatter")
_SIZE = re.compile(r"(\d+(?:\.\d*)?)\s*([kKMG]i?)?B$")
_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "ki": 2**10,
          "Mi": 2**20, "Gi": 2**30}  # fmt: skip


MOST_BUCKETS = 10_000
"""Of one group and step; more are typing errors, and would not fit into memory."""


class Bucketing(NamedTuple):
    """The buckets of one group in one step, and what they shall become.

    Attributes:
        collective: collectives in order, shape ``(k,)``.
        ends: bytes up to the end of each, shape ``(k,)``.
        new_ends: bytes up to the end of each new bucket, shape ``(j,)``.
    """

    collective: I64
    ends: I64
    new_ends: I64


class Buckets(Transform, frozen=True, kw_only=True):
    """The selected collectives of each group and step become other ones of the same bytes.

    They count as one run of gradients in the order in which they were issued. A new bucket is
    ready when its last gradient is; gradients inside an old bucket became ready evenly over the
    work between it and the one before. A new collective takes the latency of one operation, and
    of each old one its share of the rest. Exactly one of the first four fields is given.

    Attributes:
        size: bytes of a bucket, such as ``25MB`` or ``25MiB``.
        factor: size times that of the largest recorded bucket of the group.
        split: each into so many.
        fuse: so many into one.
        per_operation: latency of an operation, where the trace's sizes cannot tell it.
    """

    select: str = "all_reduce|reduce_scatter"
    size: str = ""
    factor: Positive | None = None
    split: Count | None = None
    fuse: Count | None = None
    per_operation: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [self.size or None, self.factor, self.split, self.fuse]
        if sum(value is not None for value in given) != 1:
            raise ScenarioError("buckets: give exactly one of size, factor, split and fuse")
        if self.size:
            _bytes(self.size)
        if self.per_operation:
            parse_length_ns(self.per_operation, "buckets: per_operation")

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job with other buckets."""
        comm = np.flatnonzero(selected(graph, self.select) & (graph.kind == TaskKind.COMM))
        comm = comm[graph.collective[comm] >= 0]
        kinds = [COLLECTIVE_KINDS.index(kind) for kind in BUCKETED]
        comm = comm[np.isin(graph.collectives.kind[graph.collective[comm]], kinds)]
        if not len(comm):
            raise ScenarioError(
                f"buckets: {self.select!r} selects no {' or '.join(BUCKETED)} with a counterpart"
            )
        task_bytes(graph, comm, "buckets")
        plans = [Bucketing(which, ends, self._new_ends(ends)) for which, ends in _runs(graph, comm)]
        plans = [plan for plan in plans if not np.array_equal(plan.ends, plan.new_ends)]
        return rebucketed(graph, plans, self.per_operation) if plans else graph

    def _new_ends(self, ends: I64) -> I64:
        """Ends of the new buckets of a run, in bytes."""
        sizes = np.diff(ends, prepend=0)
        if self.fuse is not None:
            return np.union1d(ends[self.fuse - 1 :: self.fuse], ends[-1:])
        if self.split is not None:
            _check_count(self.split * len(ends))
            parts = np.arange(1, self.split + 1) / self.split
            begins = (ends - sizes)[:, None]
            new = np.rint(begins + parts * sizes[:, None]).astype(np.int64)
            return np.unique(new)
        if self.factor == 1.0:
            return ends
        size = _bytes(self.size) if self.size else round(int(sizes.max()) * (self.factor or 1.0))
        size = max(size, 1)
        _check_count(int(ends[-1]) // size)
        return np.union1d(np.arange(size, ends[-1], size), ends[-1:])


def _check_count(count: int) -> None:
    if count > MOST_BUCKETS:
        raise ScenarioError(
            f"buckets: {count:,} buckets of one group in one step; at most {MOST_BUCKETS:,} are "
            "possible"
        )


def _runs(graph: JobGraph, comm: I64) -> list[tuple[I64, I64]]:
    """Collectives of each (group, kind, step) in order, and the bytes up to the end of each."""
    table, start = graph.collectives, replay(graph).start_ns
    which, first = np.unique(graph.collective[comm], return_index=True)
    begin = np.full(len(table.kind), np.iinfo(np.int64).max)
    np.minimum.at(begin, graph.collective[comm], start[comm])
    step = graph.step[comm[first]]
    order = np.lexsort((which, begin[which], step, table.kind[which], table.group[which]))
    which, step = which[order].astype(np.int64), step[order]
    which, step = which[table.bytes[which] > 0], step[table.bytes[which] > 0]
    code = np.stack([table.group[which], table.kind[which], step])
    cuts = np.flatnonzero((code[:, 1:] != code[:, :-1]).any(axis=0)) + 1
    runs = np.split(which.astype(np.int64), cuts)
    return [(run, np.cumsum(table.bytes[run])) for run in runs if len(run)]


def _bytes(text: str) -> int:
    match = _SIZE.match(text.strip())
    if not match or float(match[1]) <= 0:
        raise ScenarioError(f"buckets: size: expected a size such as 25MB or 64KiB, found {text!r}")
    return round(float(match[1]) * _UNITS[match[2] or ""])
