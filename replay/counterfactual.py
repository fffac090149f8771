"""The check that decides: cut one rank's waits out of its recording and let the replay find them.

A model that merely copies what it was given reproduces any step. One whose waits follow from
its dependencies gives back waits that its input no longer holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from foretrace.replay.accuracy import collective_waiting, sync_waiting
from foretrace.replay.build import Build, Recording, build_from_arrays
from foretrace.replay.build.columns import RankEvents
from foretrace.replay.engine import replay
from foretrace.replay.graph import I64, TaskKind, Timeline
from foretrace.replay.timeline import measured


@dataclass(frozen=True, slots=True)
class Recovery:
    """Waits of one rank, as measured and as found again without them in the input.

    Attributes:
        rank: the rank whose waits were cut.
        measured_ns: waits in collectives and blocking calls, as recorded.
        recovered_ns: the same from a replay of the cut recording.
    """

    rank: int
    measured_ns: int
    recovered_ns: int

    @property
    def error(self) -> float:
        """(recovered - measured) / measured."""
        return (self.recovered_ns - self.measured_ns) / max(self.measured_ns, 1)


def recover_waits(recording: Recording, build: Build, rank: int) -> Recovery:
    """Cut a rank's waits and replay what is left.

    Args:
        recording: the whole recording.
        build: what was built from it.
        rank: whose waits are cut.
    """
    events, collectives = recording.tables[rank]
    cut = dict(recording.tables)
    cut[rank] = (without_waits(events, build, rank), collectives)
    rebuilt = build_from_arrays(replace(recording, tables=cut), borrow=frozenset({rank}))
    return Recovery(
        rank,
        waiting(measured(build.graph), rank),
        waiting(replay(rebuilt.graph), rank),
    )


def waiting(timeline: Timeline, rank: int) -> int:
    """A rank's waits in collectives and in blocking calls, ns."""
    rank_of = timeline.graph.rank
    comm, in_comm = collective_waiting(timeline)
    sync, in_sync = sync_waiting(timeline)
    total = in_comm[rank_of[comm] == rank].sum() + in_sync[rank_of[sync] == rank].sum()
    return int(total)


def without_waits(events: RankEvents, build: Build, rank: int) -> RankEvents:
    """The rank's rows with its waits taken out.

    A communication kernel keeps its end and begins when its execution begins. A blocking call
    keeps its own cost, and everything that the rank's host did later moves up.
    """
    graph = build.graph
    real = measured(graph)
    start, end = events.start.copy(), events.end.copy()
    host = events.is_host
    sync, waited = sync_waiting(real)
    mine = graph.rank[sync] == rank
    rows = graph.event[sync[mine]]
    # A call ends with its own cost, and a stall where it returned late; on the rank's clock.
    moved = build.alignment.correct(rank, events.end[rows]) - events.end[rows]
    until = graph.measured_start_ns[sync[mine]] - moved
    warp = _warp(np.maximum(until - waited[mine], events.start[rows]), until)
    start[host], end[host] = warp(events.start[host]), warp(events.end[host])
    comm = np.flatnonzero(
        (graph.kind == TaskKind.COMM) & (graph.rank == rank) & (graph.collective >= 0)
    )
    start[graph.event[comm]] = events.end[graph.event[comm]] - graph.dur_ns[comm]
    return replace(events, start=start, end=end)


class _warp:  # noqa: N801  (a function with state, made once and called on arrays)
    """Host time without the given intervals: an instant moves up by what was cut before it."""

    def __init__(self, begin: I64, end: I64) -> None:
        order = np.argsort(begin)
        begin, end = begin[order], end[order]
        # Overlapping waits (of two threads) are cut once.
        reach = np.maximum.accumulate(np.concatenate([[np.iinfo(np.int64).min], end[:-1]]))
        self.begin = np.maximum(begin, reach)
        self.end = np.maximum(end, self.begin)
        self.before = np.concatenate([[0], np.cumsum(self.end - self.begin)])

    def __call__(self, time: I64) -> I64:
        """The instants on the cut clock."""
        if not len(self.begin):
            return time
        at = np.searchsorted(self.begin, time, side="right") - 1
        inside = np.where(at >= 0, np.minimum(time, self.end[at]) - self.begin[at], 0)
        cut: I64 = self.before[np.maximum(at, 0)] * (at >= 0) + inside
        return time - cut
