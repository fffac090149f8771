"""Communication operations of a job graph as rows of a rank's collectives table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from foretrace.replay.graph import I64, JobGraph, TaskKind
from foretrace.traces.schema import COLLECTIVE_KINDS
from foretrace.traces.store import TraceSet

Row = dict[str, Any]

_RECORDED = ("kind", "group", "bytes_in", "bytes_out", "dtype", "peer", "p2p")


@dataclass(frozen=True, slots=True)
class Operations:
    """What is known of each communication task.

    Attributes:
        graph: the job graph.
        groups: those of the graph, then those that only unmatched operations have.
        recorded: (rank, event) -> the operation's row, where the recording is at hand; ``group``
            is an index into ``groups``.
        sender: the sending rank of each matched message, -1 for other operations;
            shape ``(collectives,)``.
    """

    graph: JobGraph
    groups: tuple[tuple[int, ...], ...]
    recorded: dict[tuple[int, int], Row]
    sender: I64

    @staticmethod
    def of(graph: JobGraph, traces: TraceSet | None) -> Operations:
        """Look up all operations.

        Args:
            graph: the job graph.
            traces: what it was built from, if that is at hand.
        """
        number = {tuple(g): i for i, g in enumerate(graph.groups)}
        recorded = {} if traces is None else _recorded(traces, number)
        return Operations(graph, tuple(number), recorded, _senders(graph))

    def row(self, task: int) -> Row:
        """The operation that a COMM task carries out; empty if nothing is known of it.

        Matched operations have the number of their match as ``seq`` on all ranks, whatever they
        were numbered when they were recorded; others have a number that nobody else has.
        """
        rank, match = int(self.graph.rank[task]), int(self.graph.collective[task])
        known = self.recorded.get((rank, int(self.graph.event[task])), {})
        if match < 0:
            return {**known, "seq": len(self.graph.collectives.kind) + task} if known else {}
        kind = known.get("kind") or self._kind(match, rank)
        return {**self._of_graph(match, rank, kind), **known, "seq": match}

    def _kind(self, match: int, rank: int) -> str:
        if self.sender[match] >= 0:
            return "send" if rank == self.sender[match] else "recv"
        return COLLECTIVE_KINDS[self.graph.collectives.kind[match]]

    def _of_graph(self, match: int, rank: int, kind: str) -> Row:
        group = int(self.graph.collectives.group[match])
        size = int(self.graph.collectives.bytes[match])
        members = self.groups[group] if group >= 0 else ()
        shard = size // len(members) if members and size >= 0 else size
        others = [m for m in members if m != rank]
        return {
            "kind": kind,
            "group": group,
            "bytes_in": {"all_gather": shard, "recv": 0}.get(kind, size),
            "bytes_out": {"reduce_scatter": shard, "send": 0}.get(kind, size),
            "peer": others[0] if kind in ("send", "recv") and len(others) == 1 else -1,
        }


def _recorded(traces: TraceSet, number: dict[tuple[int, ...], int]) -> dict[tuple[int, int], Row]:
    """(rank, event) -> row of each operation; groups that have no number yet get one."""
    found: dict[tuple[int, int], Row] = {}
    for rank in traces.ranks:
        own = [tuple(g.ranks) for g in traces.info(rank).groups]
        table: pa.Table = traces.collectives(rank, [*_RECORDED, "work_event"])
        for row in table.to_pylist():
            members = own[row["group"]] if row["group"] >= 0 else ()
            row["group"] = number.setdefault(members, len(number)) if members else -1
            found[rank, row.pop("work_event")] = row
    return found


def _senders(graph: JobGraph) -> I64:
    """The rank that sends in each matched message: its arrival is the join's first one."""
    sender = np.full(len(graph.collectives.kind), -1, np.int64)
    message = graph.collectives.kind == COLLECTIVE_KINDS.index("send")
    joins = np.flatnonzero(graph.kind == TaskKind.JOIN)
    joins = joins[(graph.collective[joins] >= 0) & (np.diff(graph.pred_ptr)[joins] > 0)]
    joins = joins[message[graph.collective[joins]]]
    sender[graph.collective[joins]] = graph.rank[graph.pred[graph.pred_ptr[joins]]]
    return sender
