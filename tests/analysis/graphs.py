"""Small job graphs written by hand, for tests of the analyses."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from foretrace.replay.engine import replay
from foretrace.replay.graph import (
    DEVICE_KINDS,
    Collectives,
    EdgeKind,
    JobGraph,
    Lanes,
    StepMarks,
    TaskKind,
    Timeline,
)
from foretrace.traces.schema import COLLECTIVE_KINDS

Edge = tuple[int, EdgeKind] | tuple[int, EdgeKind, int]


class GraphBuilder:
    """Collects tasks in an order in which each follows its predecessors."""

    def __init__(self, groups: Iterable[tuple[int, ...]] = ((0, 1),)) -> None:
        self.tasks: list[dict[str, int]] = []
        self.edges: list[list[Edge]] = []
        self.names: list[str] = []
        self.lanes: list[tuple[int, int, int]] = []
        self.collectives: list[tuple[int, int, int]] = []
        self.marks: list[tuple[int, int, int, int]] = []
        self.groups = tuple(groups)

    def task(
        self,
        kind: TaskKind,
        rank: int,
        dur: int,
        *edges: Edge,
        name: str = "",
        stream: int = 7,
        collective: int = -1,
        step: int = 0,
        at: int = 0,
        on_host: bool = False,
    ) -> int:
        """Append a task; ``stream`` is the thread of host tasks; ``at`` its measured start."""
        device = 0 if kind in DEVICE_KINDS and not on_host else -1
        lane = (rank, device, stream)
        if rank >= 0 and lane not in self.lanes:
            self.lanes.append(lane)
        label = name or kind.name.lower()
        if label not in self.names:
            self.names.append(label)
        self.tasks.append(
            {
                "rank": rank,
                "lane": self.lanes.index(lane) if rank >= 0 else -1,
                "kind": int(kind),
                "dur_ns": dur,
                "name": self.names.index(label),
                "event": len(self.tasks),
                "collective": collective,
                "step": step,
                "measured_start_ns": at,
                "measured_end_ns": at + dur,
            }
        )
        self.edges.append(list(edges))
        return len(self.tasks) - 1

    def collective(
        self,
        kind: str,
        group: int,
        before: dict[int, list[Edge]],
        dur: int | dict[int, int],
        *,
        size_bytes: int = -1,
        step: int = 0,
        stream: int = 20,
        on_host: bool = False,
    ) -> dict[int, int]:
        """A collective whose members arrive behind ``before[rank]``; gives its COMM tasks."""
        number = len(self.collectives)
        self.collectives.append((COLLECTIVE_KINDS.index(kind), group, size_bytes))
        more = {
            "collective": number,
            "step": step,
            "stream": stream,
            "name": kind,
            "on_host": on_host,
        }
        arrive = {
            rank: self.task(TaskKind.ARRIVE, rank, 0, *edges, **more)
            for rank, edges in before.items()
        }
        met = [(task, EdgeKind.RENDEZVOUS) for task in arrive.values()]
        join = self.task(TaskKind.JOIN, -1, 0, *met, collective=number, step=step)
        return {
            rank: self.task(
                TaskKind.COMM,
                rank,
                dur if isinstance(dur, int) else dur[rank],
                (arrive[rank], EdgeKind.RENDEZVOUS),
                (join, EdgeKind.RENDEZVOUS),
                **more,
            )
            for rank in before
        }

    def mark(self, step: int, rank: int, begin: int, end: int) -> None:
        self.marks.append((step, rank, begin, end))

    def build(self) -> JobGraph:
        column = {
            key: np.array([t[key] for t in self.tasks], np.int64)
            for key in (self.tasks[0] if self.tasks else ())
        }
        narrow = {
            key: column[key].astype(np.int8 if key == "kind" else np.int32)
            for key in ("rank", "lane", "kind", "name", "collective", "step")
        }
        flat = [(*e, 0)[:3] for edges in self.edges for e in edges]
        lanes = np.array(self.lanes, np.int64).reshape(-1, 3)
        met = np.array(self.collectives, np.int64).reshape(-1, 3)
        marks = np.array(self.marks, np.int64).reshape(-1, 4)
        return JobGraph(
            **{**column, **narrow},
            pred_ptr=np.concatenate([[0], np.cumsum([len(e) for e in self.edges])]).astype(
                np.int64
            ),
            pred=np.array([e[0] for e in flat], np.int64),
            edge_kind=np.array([e[1] for e in flat], np.int8),
            edge_delay_ns=np.array([e[2] for e in flat], np.int64),
            names=tuple(self.names),
            lanes=Lanes(lanes[:, 0].astype(np.int32), lanes[:, 1].astype(np.int32), lanes[:, 2]),
            collectives=Collectives(
                met[:, 0].astype(np.int8),
                met[:, 1].astype(np.int32),
                met[:, 2],
                np.ones(len(met), np.float32),
            ),
            groups=self.groups,
            steps=StepMarks(
                marks[:, 0].astype(np.int32), marks[:, 1].astype(np.int32), marks[:, 2], marks[:, 3]
            ),
        )

    def replayed(self) -> Timeline:
        return replay(self.build())


def two_ranks(steps: int = 1) -> GraphBuilder:
    """Two GPUs whose step of 93 ns is known by hand: rank 1 computes longer and its host stalls.

    ::

        rank 0  host    begin, HOST 0-10, CALL 10-15, CALL 15-20, end
                stream  gemm 12-32         all_reduce: arrives 32, runs 62-80    copy 83-93
        rank 1  host    begin, HOST 0-10, CALL 10-15, STALL 15-60, CALL 60-65, end
                stream  gemm 12-52         all_reduce: arrives 62, runs 62-80    copy 83-93

    A further step begins on each host when its copy has ended.
    """
    b = GraphBuilder()
    after: dict[int, list[Edge]] = {0: [], 1: []}
    for step in range(steps):
        before = {}
        for rank, work, stall in ((0, 20, 0), (1, 40, 45)):
            end, before[rank] = _host_and_kernel(b, step, rank, (work, stall), after[rank])
            after[rank] = [(end, EdgeKind.HOST_ORDER)]
        comm = b.collective("all_reduce", 0, before, 18, size_bytes=1_000, step=step)
        for rank, done in comm.items():
            copy = b.task(
                TaskKind.MEMCPY, rank, 10, (done, EdgeKind.EVENT, 3), name="copy", step=step
            )
            after[rank].append((copy, EdgeKind.SYNC))
    return b


def _host_and_kernel(
    b: GraphBuilder, step: int, rank: int, work: tuple[int, int], after: list[Edge]
) -> tuple[int, list[Edge]]:
    """One rank up to its all-reduce: the end of its step, and what its arrival waits for."""
    order, (gemm, stall) = EdgeKind.HOST_ORDER, work
    begin = b.task(TaskKind.MARK, rank, 0, *after, stream=1, step=step)
    host = b.task(TaskKind.HOST, rank, 10, (begin, order), stream=1, step=step)
    call = b.task(TaskKind.CALL, rank, 5, (host, order), stream=1, step=step)
    kernel = b.task(TaskKind.KERNEL, rank, gemm, (call, EdgeKind.LAUNCH, 2), name="gemm", step=step)
    previous = call
    if stall:
        previous = b.task(TaskKind.STALL, rank, stall, (call, order), stream=1, step=step)
    second = b.task(TaskKind.CALL, rank, 5, (previous, order), stream=1, step=step)
    end = b.task(TaskKind.MARK, rank, 0, (second, order), stream=1, step=step)
    b.mark(step, rank, begin, end)
    return end, [(kernel, EdgeKind.EVENT), (second, EdgeKind.LAUNCH, 2)]
