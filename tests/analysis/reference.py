"""Slow and obvious: what a rank does in one nanosecond, asked nanosecond by nanosecond."""

from __future__ import annotations

from foretrace.analysis.activity import Activity
from foretrace.replay.graph import EdgeKind, TaskKind, Timeline

HOST = {TaskKind.HOST, TaskKind.CALL, TaskKind.SYNC}
HOST_EDGES = {
    EdgeKind.HOST_ORDER,
    EdgeKind.THREAD,
    EdgeKind.LAUNCH,
    EdgeKind.SYNC,
    EdgeKind.MARK,
}


class Rank:
    """One rank of a timeline."""

    def __init__(self, timeline: Timeline, rank: int) -> None:
        g = timeline.graph
        self.g, self.rank, self.tl = g, rank, timeline
        own = [i for i in range(len(g)) if g.rank[i] == rank]
        has_device = any(
            g.kind[i] in (TaskKind.KERNEL, TaskKind.MEMCPY, TaskKind.MEMSET) for i in own
        )
        computes = {TaskKind.KERNEL} if has_device else {TaskKind.KERNEL, *HOST}
        self.layers = [
            [i for i in own if g.kind[i] in kinds]
            for kinds in (computes, {TaskKind.COMM}, {TaskKind.MEMCPY, TaskKind.MEMSET})
        ]
        self.own = own

    def running(self, layer: int, ns: int) -> int:
        """Whose nanosecond it is: who had it keeps it, else the earliest begun."""
        holder = -1
        order = sorted(self.layers[layer], key=lambda i: (self.tl.start_ns[i], i))
        for i in order:
            if holder >= 0 and self.tl.end_ns[holder] > ns:
                break
            if self.tl.start_ns[i] <= ns < self.tl.end_ns[i]:
                return i
        return holder

    def at(self, ns: int, end: int) -> tuple[Activity, int, int]:
        """``(activity, culprit, hidden)`` of the nanosecond that begins at ``ns``."""
        owners = [self.running(layer, ns) for layer in range(3)]
        for layer, owner in enumerate(owners):
            if owner >= 0:
                return Activity(layer), -1, owners[1] if layer == 0 else -1
        return (*self.idle(ns, end), -1)

    def idle(self, ns: int, end: int) -> tuple[Activity, int]:
        ender = -1
        for later in range(ns + 1, end):
            ender = next((o for o in (self.running(k, later) for k in range(3)) if o >= 0), -1)
            if ender >= 0:
                break
        if ender < 0:
            marks = [m for m in self.g.steps.end.tolist() if self.g.rank[m] == self.rank]
            marks = [m for m in marks if self.tl.start_ns[m] > ns]
            if not marks:
                return Activity.IDLE_NO_WORK, -1
            ender = max(marks, key=lambda m: self.tl.start_ns[m])
        culprit = self.culprit(ender)
        if culprit >= 0:
            arrive = self.arrival(ender)
            if self.tl.start_ns[arrive] <= ns:
                return Activity.IDLE_RANK, culprit
            ender = arrive
        return self.cause(ender, ns)

    def arrival(self, comm: int) -> int:
        g = self.g
        before = g.pred[g.pred_ptr[comm] : g.pred_ptr[comm + 1]].tolist()
        own = [i for i in before if g.kind[i] == TaskKind.ARRIVE and g.rank[i] == self.rank]
        return own[0] if own else -1

    def culprit(self, comm: int) -> int:
        g, bound = self.g, self.tl.bound
        if g.kind[comm] != TaskKind.COMM or self.arrival(comm) < 0 or bound[comm] < 0:
            return -1
        source = g.pred[bound[comm]]
        if g.kind[source] == TaskKind.JOIN and bound[source] >= 0:
            source = g.pred[bound[source]]
        other = g.kind[source] == TaskKind.ARRIVE and g.rank[source] != self.rank
        return int(g.rank[source]) if other else -1

    def cause(self, task: int, ns: int) -> tuple[Activity, int]:
        """Walk back until the stretch that holds the nanosecond is found."""
        g, tl = self.g, self.tl
        high = int(tl.start_ns[task])
        while True:
            if tl.start_ns[task] <= ns < high:
                return self.named(task, "own")
            high = min(high, int(tl.start_ns[task]))
            edge = int(tl.bound[task])
            if edge < 0:
                return self.named(task, "outside")
            source = int(g.pred[edge])
            launch = g.edge_kind[edge] == EdgeKind.LAUNCH
            anchor = int(tl.start_ns[source] if launch else tl.end_ns[source])
            allowed = anchor + int(g.edge_delay_ns[edge])
            if allowed <= ns < high:
                return self.named(task, "late")
            high = min(high, allowed)
            if anchor <= ns < high:
                return self.named(task, "delay")
            high = min(high, anchor)
            task = source

    def named(self, task: int, part: str) -> tuple[Activity, int]:
        g = self.g
        if g.rank[task] not in (self.rank, -1):
            return Activity.IDLE_RANK, int(g.rank[task])
        if part == "own":
            return {
                TaskKind.STALL: Activity.IDLE_STALL,
                TaskKind.SKEW: Activity.IDLE_NO_WORK,
                **dict.fromkeys((*HOST, TaskKind.MARK), Activity.IDLE_HOST),
            }.get(TaskKind(g.kind[task]), Activity.IDLE_DEPENDENCY), -1
        if part == "delay":
            host = g.edge_kind[self.tl.bound[task]] in HOST_EDGES
            return (Activity.IDLE_HOST if host else Activity.IDLE_DEPENDENCY), -1
        return (Activity.IDLE_UNEXPLAINED if part == "late" else Activity.IDLE_NO_WORK), -1
