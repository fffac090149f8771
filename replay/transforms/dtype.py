"""Communicate in another data type: fewer bytes, the same operations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.replay.graph import JobGraph, TaskKind
from foretrace.replay.scenario import parse_length_ns
from foretrace.replay.selection import selected
from foretrace.replay.transforms.base import Factor, Transform
from foretrace.replay.transforms.linkcosts import latency_part
from foretrace.traces.errors import ScenarioError

BITS = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "float8": 8, "int8": 8,
    "float4": 4,
}  # fmt: skip
"""Size of an element of each type that ``now`` and ``to`` know."""


class Dtype(Transform, frozen=True, kw_only=True):
    """The selected operations move other bytes; their latency stays.

    What casting costs is not in the trace and left out.

    Attributes:
        now: the type that was recorded, one of BITS.
        to: the type to use instead.
        ratio: bytes after over bytes before, instead of the two types.
        per_operation: latency of an operation, where the trace's sizes cannot tell it.
    """

    select: str = "comm"
    now: str = ""
    to: str = ""
    ratio: Factor | None = None
    per_operation: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._bytes_ratio()
        if self.per_operation:
            parse_length_ns(self.per_operation, "dtype: per_operation")

    def __call__(self, graph: JobGraph) -> JobGraph:
        """The job with other bytes on the wire."""
        mask = selected(graph, self.select) & (graph.kind == TaskKind.COMM)
        if not mask.any():
            raise ScenarioError(f"dtype: {self.select!r} selects no communication")
        tasks, ratio = np.flatnonzero(mask), self._bytes_ratio()
        fixed = latency_part(graph, tasks, "dtype", self.per_operation)
        dur = graph.dur_ns.copy()
        dur[tasks] = np.rint(fixed + (dur[tasks] - fixed) * ratio).astype(np.int64)
        size = graph.collectives.bytes.copy()
        which = np.unique(graph.collective[tasks])
        size[which] = np.rint(size[which] * ratio).astype(np.int64)
        table = replace(graph.collectives, bytes=size)
        return replace(graph.with_durations(dur), collectives=table)

    def _bytes_ratio(self) -> float:
        if self.ratio is not None and not (self.now or self.to):
            return self.ratio
        if self.ratio is None and self.now in BITS and self.to in BITS:
            return BITS[self.to] / BITS[self.now]
        raise ScenarioError(
            f"dtype: expected ratio, or now and to out of {', '.join(BITS)}; "
            f"found now = {self.now!r}, to = {self.to!r}, ratio = {self.ratio}"
        )
