"""A job graph under construction: tasks and edges added in blocks by the rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from foretrace.replay.build.labelkernel import grouped
from foretrace.replay.build.rules import DEFAULT_RULE, RULES, EdgeOrigins, Rule
from foretrace.replay.engine import sort_tasks
from foretrace.replay.graph import (
    I64,
    Collectives,
    EdgeKind,
    JobGraph,
    Lanes,
    StepMarks,
    TaskKind,
)

TASK_COLUMNS = {
    "rank": np.int32,
    "lane": np.int32,
    "kind": np.int8,
    "dur_ns": np.int64,
    "name": np.int32,
    "event": np.int64,
    "collective": np.int32,
    "step": np.int32,
    "measured_start_ns": np.int64,
    "measured_end_ns": np.int64,
}


@dataclass(slots=True)
class GraphParts:
    """Blocks of tasks and edges, joined by :meth:`finish`.

    Attributes:
        tasks: column name -> blocks.
        edges: blocks of (source, target, kind, rule, confidence).
        size: tasks so far.
        lanes: (rank, device, number) -> lane.
        dropped: why edges were left out -> how many.
    """

    tasks: dict[str, list[np.ndarray]] = field(
        default_factory=lambda: {name: [] for name in TASK_COLUMNS}
    )
    edges: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    size: int = 0
    lanes: dict[tuple[int, int, int], int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def lane(self, rank: int, device: int, number: int) -> int:
        """The lane of a host thread (device -1) or device stream."""
        return self.lanes.setdefault((rank, device, number), len(self.lanes))

    def add_tasks(
        self,
        kind: TaskKind | np.ndarray,
        dur_ns: I64,
        start_ns: I64,
        end_ns: I64,
        **columns: np.ndarray | int,
    ) -> I64:
        """Add a block of tasks.

        Args:
            kind: one kind for all, or one each.
            dur_ns: durations without waiting, shape ``(k,)``.
            start_ns: measured starts, for comparison only.
            end_ns: measured ends, for comparison only.
            **columns: rank, lane, name, event, collective, step; a number stands for all;
                what is left out is -1 (name: 0).

        Returns:
            The new tasks' numbers, shape ``(k,)``.
        """
        given = {
            "kind": kind,
            "dur_ns": dur_ns,
            "measured_start_ns": start_ns,
            "measured_end_ns": end_ns,
            **columns,
        }
        count = len(dur_ns)
        for name, dtype in TASK_COLUMNS.items():
            value = given.get(name, 0 if name == "name" else -1)
            column = np.asarray(value, dtype)
            whole = column.shape == (count,)
            self.tasks[name].append(column if whole else np.full(count, column))
        first, self.size = self.size, self.size + count
        return np.arange(first, self.size)

    def add_edges(
        self,
        source: I64,
        target: I64,
        kind: EdgeKind,
        rule: Rule | None = None,
        confidence: np.ndarray | None = None,
    ) -> None:
        """Add edges ``source[i] -> target[i]``; rows with a negative end are left out.

        Args:
            source: tasks waited for.
            target: tasks that wait.
            kind: why.
            rule: the rule that says so; the kind's usual one by default.
            confidence: of each edge, 0 to 1; the rule's by default.
        """
        source, target = np.asarray(source, np.int64), np.asarray(target, np.int64)
        keep = (source >= 0) & (target >= 0)
        count = int(keep.sum())
        by = DEFAULT_RULE[kind] if rule is None else rule
        rules, kinds = np.full(count, by, np.int8), np.full(count, kind, np.int8)
        if confidence is None:
            sure = np.full(count, RULES[by].confidence, np.float32)
        else:
            sure = confidence[keep].astype(np.float32)
        self.edges.append((source[keep], target[keep], kinds, rules, sure))

    def column(self, name: str) -> np.ndarray:
        """All values of a task column so far."""
        blocks = self.tasks[name]
        return np.concatenate(blocks) if blocks else np.zeros(0, TASK_COLUMNS[name])

    def count_dropped(self, why: str, how_many: int) -> None:
        """Note edges that were left out."""
        if how_many:
            self.dropped[why] = self.dropped.get(why, 0) + how_many

    def finish(
        self,
        names: tuple[str, ...],
        collectives: Collectives,
        groups: tuple[tuple[int, ...], ...],
        steps: StepMarks,
    ) -> tuple[JobGraph, EdgeOrigins]:
        """The finished graph, its tasks in topological order, and where its edges come from.

        Raises:
            GraphError: the edges contradict each other.
        """
        source, target, kind, rule, sure = (
            np.concatenate([block[i] for block in self.edges]) if self.edges else np.zeros(0)
            for i in range(5)
        )
        by_target, ptr = grouped(target.astype(np.int64), self.size)
        lanes = np.array(list(self.lanes) or np.zeros((0, 3)), np.int64).reshape(-1, 3)
        graph = JobGraph(
            **{name: self.column(name) for name in TASK_COLUMNS},
            pred_ptr=ptr,
            pred=source[by_target].astype(np.int64),
            edge_kind=kind[by_target].astype(np.int8),
            # The edges' numbers ride through the sort in the column of delays.
            edge_delay_ns=by_target.astype(np.int64),
            names=names,
            lanes=Lanes(lanes[:, 0].astype(np.int32), lanes[:, 1].astype(np.int32), lanes[:, 2]),
            collectives=collectives,
            groups=groups,
            steps=steps,
        )
        graph = sort_tasks(graph)
        number = graph.edge_delay_ns
        origins = EdgeOrigins(rule[number].astype(np.int8), sure[number].astype(np.float32))
        return replace(graph, edge_delay_ns=np.zeros_like(number)), origins
