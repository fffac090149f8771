"""Random small jobs, replayed or with measured times that contradict the replay a little."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.analysis.graphs import Edge, GraphBuilder

from foretrace.replay.graph import EdgeKind, TaskKind, Timeline
from foretrace.replay.timeline import measured

DEVICE_EDGES = (EdgeKind.STREAM, EdgeKind.EVENT)
ON_DEVICE = (TaskKind.KERNEL, TaskKind.KERNEL, TaskKind.MEMCPY)
ON_HOST = (TaskKind.HOST, TaskKind.CALL, TaskKind.SYNC, TaskKind.STALL)
HOST_EDGES = (EdgeKind.HOST_ORDER, EdgeKind.THREAD, EdgeKind.SYNC)


SMALL = st.integers(0, 9)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """A timeline of one to three ranks, with and without devices, of one or two steps."""
    job = RandomJob(draw)
    for step in range(draw(st.integers(1, 2))):
        job.add_step(step)
    replayed = job.b.replayed()
    if draw(st.booleans()):
        return replayed
    return _measured(job.b, replayed, draw(st.integers(0, 2**32 - 1)))


class RandomJob:
    """Adds random tasks, each behind up to two tasks of its own rank."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.ranks = range(draw(st.integers(1, 3)))
        self.with_device = [draw(st.booleans()) for _ in self.ranks]
        self.b = GraphBuilder(groups=[tuple(self.ranks)])
        self.seen = [[self.b.task(TaskKind.SKEW, r, draw(SMALL), stream=1)] for r in self.ranks]

    def edges(self, rank: int, kinds: tuple[EdgeKind, ...]) -> list[Edge]:
        draw = self.draw
        return [
            (draw(st.sampled_from(self.seen[rank])), draw(st.sampled_from(kinds)), draw(SMALL) % 4)
            for _ in range(draw(st.integers(0, 2)))
        ]

    def add_step(self, step: int) -> None:
        begins = [
            self.b.task(TaskKind.MARK, r, 0, *self.edges(r, HOST_EDGES), stream=1, step=step)
            for r in self.ranks
        ]
        for rank, begin in enumerate(begins):
            self.seen[rank].append(begin)
        for _ in range(self.draw(st.integers(1, 8))):
            if len(self.ranks) > 1 and self.draw(st.integers(0, 3)) == 0:
                self.add_collective(step)
            else:
                self.add_task(self.draw(st.sampled_from(self.ranks)), step)
        for rank, begin in enumerate(begins):
            after = [(begin, EdgeKind.HOST_ORDER), *self.edges(rank, HOST_EDGES)]
            end = self.b.task(TaskKind.MARK, rank, 0, *after, stream=1, step=step)
            self.b.mark(step, rank, begin, end)
            self.seen[rank].append(end)

    def add_collective(self, step: int) -> None:
        before = {r: self.edges(r, (*DEVICE_EDGES, EdgeKind.LAUNCH)) for r in self.ranks}
        dur = {r: self.draw(SMALL) for r in self.ranks}
        for rank, task in self.b.collective("all_reduce", 0, before, dur, step=step).items():
            self.seen[rank].append(task)

    def add_task(self, rank: int, step: int) -> None:
        draw = self.draw
        on_device = self.with_device[rank] and draw(st.booleans())
        kind = draw(st.sampled_from(ON_DEVICE if on_device else ON_HOST))
        kinds = (*DEVICE_EDGES, EdgeKind.LAUNCH) if on_device else HOST_EDGES
        stream = draw(st.integers(7, 8) if on_device else st.integers(1, 2))
        edges = self.edges(rank, kinds)
        task = self.b.task(kind, rank, draw(SMALL), *edges, stream=stream, step=step)
        self.seen[rank].append(task)


def _measured(b: GraphBuilder, replayed: Timeline, seed: int) -> Timeline:
    """The same job as if recorded: starts jump to and fro by some nanoseconds."""
    jump = np.random.default_rng(seed).integers(-4, 5, len(b.tasks))
    for task, start, by in zip(b.tasks, replayed.start_ns.tolist(), jump.tolist(), strict=True):
        late = 0 if task["kind"] == TaskKind.MARK else by
        task["measured_start_ns"] = 1_000 + start + late
        task["measured_end_ns"] = 1_000 + start + late + task["dur_ns"]
    return measured(b.build())
