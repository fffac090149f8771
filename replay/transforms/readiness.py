"""When the gradients inside a bucket become ready, and what a new bucket's launch costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from foretrace.replay.graph import DEVICE_KINDS, I64, EdgeKind, JobGraph, TaskKind
from foretrace.replay.transforms.edit import Edges, MoreTasks, by_lane, joined, new_edges
from foretrace.replay.transforms.hostchain import HOST_KINDS

BACKWARD_SHARE = 2 / 3
"""Of the work before a lone bucket: a backward pass computes twice what a forward pass does."""

_PRODUCING = (TaskKind.KERNEL, TaskKind.MEMCPY, TaskKind.MEMSET)


@dataclass(slots=True)
class Producers:
    """What makes the buckets of a graph ready.

    Attributes:
        graph: the job graph.
        launch: call that launches each task, -1 without one, shape ``(n,)``.
        launch_delay_ns: delay of that launch, shape ``(n,)``.
        last: device task whose end makes each ARRIVE ready, -1 for the host, shape ``(n,)``.
        chains: lane -> its tasks in order.
        call_ns: what launching one more collective costs the host, by rank.
        inserted: host task -> launches to put into it, each with how far into it, ns.
    """

    graph: JobGraph
    launch: I64
    launch_delay_ns: I64
    last: I64
    chains: dict[int, I64]
    call_ns: dict[int, int]
    inserted: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def drop_calls(self, dur_ns: I64, arrive: I64) -> None:
        """Launches of buckets that no longer exist take no time."""
        calls = self.launch[arrive]
        dur_ns[calls[calls >= 0]] = 0

    def ready(
        self, more: MoreTasks, arrive: I64, bucket: int, share: float, begun: int
    ) -> list[Edges]:
        """Edges that make a new bucket ready inside an old one.

        Args:
            more: where new tasks go.
            arrive: ARRIVE tasks of the rank's old buckets, in order.
            bucket: which of them holds the new bucket's last byte.
            share: how far into it that byte lies, 0 to 1.
            begun: ARRIVE task of the new bucket.
        """
        task = int(arrive[bucket])
        producer = int(self.last[task])
        work = self._window(arrive, bucket, producer if producer >= 0 else int(self.launch[task]))
        if not len(work):  # nothing recorded in between: ready when the old bucket was
            return self._as_before(task, producer, begun)
        done = np.cumsum(self.graph.dur_ns[work])
        at = min(int(np.searchsorted(done, share * done[-1])), len(work) - 1)
        found = int(work[at])
        if producer < 0:
            inside = round(share * done[-1]) - int(done[at] - self.graph.dur_ns[found])
            return self._launched(more, (found, inside), task, begun)
        call = int(self.launch[found])
        call = call if call >= 0 else int(self.launch[task])
        ready = new_edges(np.array([found]), np.array([begun]), EdgeKind.EVENT)
        if call < 0:
            return [ready]
        behind = (call, int(self.graph.dur_ns[call]))
        return [ready, *self._launched(more, behind, task, begun)]

    def threaded(self, more: MoreTasks, dur_ns: I64, edges: Edges) -> Edges:
        """The edges with the new launches inside their host tasks, which are cut for them.

        Args:
            more: where the parts of cut tasks go.
            dur_ns: durations of the old tasks, changed in place.
            edges: the graph's edges.
        """
        tail = np.arange(len(self.graph))
        links: list[tuple[int, int]] = []
        for host, launches in self.inserted.items():
            last, at = host, 0
            whole = int(self.graph.dur_ns[host])
            # A call is not cut: it launches something itself.
            cut = self.graph.kind[host] in (TaskKind.HOST, TaskKind.STALL)
            for inside, call in sorted(launches):
                if cut and at == 0:
                    dur_ns[host] = at = min(inside, whole)
                elif cut and inside > at:
                    (part,) = more.add(np.array([host]), dur_ns=min(inside, whole) - at).tolist()
                    links.append((last, part))
                    last, at = part, min(inside, whole)
                links.append((last, call))
                last = call
            if cut and at < whole:
                (part,) = more.add(np.array([host]), dur_ns=whole - at).tolist()
                links.append((last, part))
                last = part
            tail[host] = last
        onward = (edges.kind == EdgeKind.HOST_ORDER) | (edges.kind == EdgeKind.THREAD)
        old = replace(edges, source=np.where(onward, tail[edges.source], edges.source))
        source, target = np.array(links, np.int64).reshape(-1, 2).T
        return joined(old, new_edges(source, target, EdgeKind.HOST_ORDER))

    def _window(self, arrive: I64, bucket: int, upto: int) -> I64:
        """Work that made one old bucket's gradients, in order; ``upto`` ends it."""
        if upto < 0:
            return np.zeros(0, np.int64)
        chain = self.chains[int(self.graph.lane[upto])]
        # The last kernel makes gradients; the host's launch itself does not.
        side: Literal["left", "right"] = (
            "left" if self.graph.kind[upto] == TaskKind.CALL else "right"
        )
        stop = int(np.searchsorted(chain, upto, side=side))
        own_lane = self.graph.lane[upto]
        marks = [self._mark(int(a)) for a in arrive[:bucket]]
        marks = [m for m in marks if m >= 0 and self.graph.lane[m] == own_lane and m < upto]
        if marks:
            between: I64 = chain[int(np.searchsorted(chain, max(marks), side="right")) : stop]
            return between
        before = chain[:stop]
        before = before[self.graph.step[before] == self.graph.step[upto]]
        done = np.cumsum(self.graph.dur_ns[before])
        length = self._first_length(arrive, bucket, upto, int(done[-1]) if len(done) else 0)
        first: I64 = before[done > (done[-1] if len(done) else 0) - length]
        return first

    def _mark(self, arrive: int) -> int:
        """The task that made a bucket ready."""
        return int(self.last[arrive]) if self.last[arrive] >= 0 else int(self.launch[arrive])

    def _first_length(self, arrive: I64, bucket: int, upto: int, whole: int) -> float:
        """How long the work behind the first bucket took, by the later buckets' pace, ns."""
        if bucket + 1 >= len(arrive):
            return BACKWARD_SHARE * whole
        table, number = self.graph.collectives, self.graph.collective
        ends = np.array([self._mark(int(a)) for a in arrive[bucket:]])
        chain = self.chains[int(self.graph.lane[upto])]
        side: Literal["left", "right"] = (
            "left" if self.graph.kind[upto] == TaskKind.CALL else "right"
        )
        lo = np.searchsorted(chain, upto, side="right")
        hi = np.searchsorted(chain, max(int(ends.max()), upto), side=side)
        took = int(self.graph.dur_ns[chain[lo:hi]].sum())
        moved = int(table.bytes[number[arrive[bucket + 1 :]]].sum())
        return min(took / max(moved, 1) * int(table.bytes[number[arrive[bucket]]]), whole)

    def _launched(
        self, more: MoreTasks, where: tuple[int, int], task: int, begun: int
    ) -> list[Edges]:
        """A launch of the new bucket, so far (ns) into a host task."""
        host, inside = where
        like = int(self.launch[task])
        (call,) = more.add(
            np.array([like if like >= 0 else host]),
            dur_ns=self.call_ns[int(self.graph.rank[task])],
            kind=TaskKind.CALL,
            lane=int(self.graph.lane[host]),
        ).tolist()
        self.inserted.setdefault(host, []).append((inside, call))
        delay = int(self.launch_delay_ns[task])
        return [new_edges(np.array([call]), np.array([begun]), EdgeKind.LAUNCH, delay)]

    def _as_before(self, task: int, producer: int, begun: int) -> list[Edges]:
        one, found = np.array([begun]), []
        if producer >= 0:
            found.append(new_edges(np.array([producer]), one, EdgeKind.EVENT))
        if self.launch[task] >= 0:
            delay = int(self.launch_delay_ns[task])
            call = np.array([self.launch[task]])
            found.append(new_edges(call, one, EdgeKind.LAUNCH, delay))
        return found


def producers(graph: JobGraph, edges: Edges, comm: I64, arrive: I64) -> Producers:
    """What makes the selected collectives ready.

    Args:
        graph: the job graph.
        edges: its edges.
        comm: COMM tasks of the collectives, shape ``(k,)``.
        arrive: ARRIVE task of each COMM task, shape ``(n,)``.
    """
    launch = np.full(len(graph), -1, np.int64)
    delay = np.zeros(len(graph), np.int64)
    launches = np.flatnonzero(edges.kind == EdgeKind.LAUNCH)
    launch[edges.target[launches]] = edges.source[launches]
    delay[edges.target[launches]] = edges.delay_ns[launches]
    last = np.full(len(graph), -1, np.int64)
    from_device = np.isin(graph.kind, DEVICE_KINDS)[edges.source] & (edges.kind == EdgeKind.EVENT)
    np.maximum.at(last, edges.target[from_device], edges.source[from_device])
    calls = launch[arrive[comm]]
    own = {
        int(rank): int(np.median(graph.dur_ns[calls[(graph.rank[comm] == rank) & (calls >= 0)]]))
        if ((graph.rank[comm] == rank) & (calls >= 0)).any()
        else 0
        for rank in np.unique(graph.rank[comm])
    }
    useful = np.flatnonzero(np.isin(graph.kind, (*_PRODUCING, *HOST_KINDS)) & (graph.lane >= 0))
    chains = by_lane(graph, useful)
    return Producers(graph, launch, delay, last, chains, own)
