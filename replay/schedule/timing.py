"""How long a schedule takes when every operation of a phase and stage lasts equally long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import I64
from foretrace.replay.kernels import longest_path
from foretrace.replay.schedule.order import Schedule, dependencies
from foretrace.replay.wavefront import by_level


@dataclass(frozen=True, slots=True)
class Spans:
    """When a schedule's operations run; ns from the first one.

    Attributes:
        start_ns: shape ``(ops,)``.
        end_ns: shape ``(ops,)``.
    """

    start_ns: I64
    end_ns: I64

    @property
    def total_ns(self) -> int:
        """From the first start to the last end."""
        return int(self.end_ns.max(initial=0) - self.start_ns.min(initial=0))


def run(schedule: Schedule, dur_ns: I64, transfer_ns: int = 0) -> Spans:
    """Run a schedule.

    Args:
        schedule: the schedule.
        dur_ns: duration of each operation, shape ``(ops,)``, ns.
        transfer_ns: time from a stage to its neighbour on another rank, ns.

    Raises:
        LayoutError: the schedule is not complete.
        GraphError: it never ends (see ``order.check``).
    """
    edges = dependencies(schedule)
    levels = by_level(len(schedule), edges.source, edges.target)
    source, target = levels.number[edges.source], levels.number[edges.target]
    across = schedule.rank[edges.source] != schedule.rank[edges.target]
    delay = np.where(edges.transfer & across, transfer_ns, 0).astype(np.int64)
    by_target = np.argsort(target, kind="stable")
    ptr = np.zeros(len(schedule) + 1, np.int64)
    np.cumsum(np.bincount(target, minlength=len(schedule)), out=ptr[1:])
    sorted_ns = np.ascontiguousarray(dur_ns, np.int64)[levels.order]
    from_start = np.zeros(len(target), np.bool_)
    start, _ = longest_path(sorted_ns, ptr, source[by_target], from_start, delay[by_target])
    start = start[levels.number]
    return Spans(start, start + dur_ns)


def idle_ns(schedule: Schedule, spans: Spans) -> I64:
    """Time each rank does nothing between its first start and last end, shape ``(ranks,)``, ns.

    Time in which two operations run together counts once.
    """
    begin = np.full(schedule.ranks, np.iinfo(np.int64).max)
    end = np.zeros(schedule.ranks, np.int64)
    np.minimum.at(begin, schedule.rank, spans.start_ns)
    np.maximum.at(end, schedule.rank, spans.end_ns)
    busy = np.zeros(schedule.ranks, np.int64)
    order = np.lexsort((spans.start_ns, schedule.rank))
    rank = schedule.rank[order]
    head = np.append(True, rank[1:] != rank[:-1])
    # An operation adds what reaches beyond all operations of its rank before it.
    offset = rank.astype(np.int64) * (int(spans.end_ns.max(initial=0)) + 1)
    until = np.maximum.accumulate(spans.end_ns[order] + offset) - offset
    before = np.where(head, spans.start_ns[order], np.append(0, until[:-1]))
    added = np.maximum(until - np.maximum(before, spans.start_ns[order]), 0)
    np.add.at(busy, rank, added)
    idle: I64 = end - begin - busy
    return idle
