"""A second replay with rates: slow, in exact fractions, and worked out anew at every instant.

It shares no code with the engine. Between two instants at which anything starts or ends, every
running task progresses at its rate; rates are recomputed from all that runs and waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from foretrace.replay.graph import EdgeKind, JobGraph, TaskKind
from foretrace.replay.rates import Sharing

FROM_START = {int(EdgeKind.LAUNCH), int(EdgeKind.OVERLAP), int(EdgeKind.SEGMENT)}


@dataclass
class Slow:
    """One run.

    Attributes:
        graph: the job; durations are work.
        sharing: what its tasks take and feel.
        start: start of each task that began.
        end: end of each task that ended.
        left: work left of each task that runs.
    """

    graph: JobGraph
    sharing: Sharing
    start: dict[int, Fraction] = field(default_factory=dict)
    end: dict[int, Fraction] = field(default_factory=dict)
    left: dict[int, Fraction] = field(default_factory=dict)

    def run(self) -> Slow:
        """Run to the end."""
        now = Fraction(0)
        while len(self.end) < len(self.graph):
            while self._one_step_at(now):
                pass
            if len(self.end) == len(self.graph):
                break
            slow = {task: self.slowdown(task) for task in self.left}
            ends = [now + left * slow[task] for task, left in self.left.items()]
            begins = [at for at in map(self.ready, self._waiting()) if at is not None]
            then = min(at for at in [*ends, *begins] if at > now)
            for task in self.left:
                self.left[task] -= (then - now) / slow[task]
            now = then
        return self

    def _one_step_at(self, now: Fraction) -> bool:
        """End or begin one task that can at this instant."""
        for task, left in self.left.items():
            if left == 0:
                self.end[task] = now
                del self.left[task]
                return True
        for task in self._waiting():
            at = self.ready(task)
            if at is not None and at <= now:
                self.start[task] = now
                self.left[task] = Fraction(int(self.graph.dur_ns[task]))
                return True
        return False

    def _waiting(self) -> list[int]:
        return [task for task in range(len(self.graph)) if task not in self.start]

    def ready(self, task: int) -> Fraction | None:
        """When all that a task waits for allows it, None where that is not known yet."""
        g, at = self.graph, Fraction(0)
        for edge in range(int(g.pred_ptr[task]), int(g.pred_ptr[task + 1])):
            times = self.start if int(g.edge_kind[edge]) in FROM_START else self.end
            source = int(g.pred[edge])
            if source not in times:
                return None
            at = max(at, times[source] + int(g.edge_delay_ns[edge]))
        return at

    def slowdown(self, task: int) -> Fraction:
        """How much slower than alone a running task runs now."""
        g, s = self.graph, self.sharing
        if g.kind[task] == TaskKind.COMM and self.arrival(task) is not None:
            same = [t for t in self.left if self.moves_with(t, task)]
            beside = any(self.computing(self.device(t)) for t in same)
            return Fraction(float(s.disturbed[task])) if beside else Fraction(1)
        if s.row[task] < 0 or self.device(task) is None:
            return Fraction(1)
        held, moving = 0, Fraction(0)
        for comm in range(len(g)):
            arrive = self.arrival(comm)
            if arrive is None or self.device(comm) != self.device(task):
                continue
            if arrive in self.start and comm not in self.end:
                held += int(s.holds[comm])
            if comm in self.left:
                moving += Fraction(round(float(s.moves[comm]) * 10**6), 10**6)
        level = min(held, s.table.shape[1] - 1)
        slow = Fraction(float(s.table[s.row[task], level]))
        if s.evicted[task] >= 0:
            share = min(moving, Fraction(9, 10))
            slow = max(slow, (1 + Fraction(float(s.evicted[task])) * share) / (1 - share))
        return slow

    def moves_with(self, task: int, other: int) -> bool:
        """Whether two running tasks are members of one operation."""
        of = self.graph.collective
        return task == other or (of[task] >= 0 and of[task] == of[other]
                                 and self.graph.kind[task] == TaskKind.COMM)  # fmt: skip

    def computing(self, device: object) -> bool:
        """Whether anything that slows down computes on a device."""
        return any(
            self.sharing.row[t] >= 0 and self.device(t) == device and self.arrival(t) is None
            for t in self.left
        )

    def arrival(self, task: int) -> int | None:
        """The arrival of a communication task's own kernel."""
        g = self.graph
        if g.kind[task] != TaskKind.COMM or self.device(task) is None:
            return None
        before = g.pred[g.pred_ptr[task] : g.pred_ptr[task + 1]].tolist()
        own = [p for p in before if g.kind[p] == TaskKind.ARRIVE and g.lane[p] == g.lane[task]]
        return own[-1] if own else None

    def device(self, task: int) -> tuple[int, int] | None:
        """Rank and device that a task runs on, None for a host."""
        g = self.graph
        lane = int(g.lane[task])
        if lane < 0 or g.lanes.device[lane] < 0:
            return None
        return int(g.lanes.rank[lane]), int(g.lanes.device[lane])


def simulate_with_rates(graph: JobGraph, sharing: Sharing) -> Callable[[str], list[Fraction]]:
    """Run a job; the result gives ``start`` or ``end`` of all tasks, ns."""
    done = Slow(graph, sharing).run()
    return lambda which: [getattr(done, which)[t] for t in range(len(graph))]
