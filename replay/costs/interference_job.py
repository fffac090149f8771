"""A recorded job whose simulated overlap slows its work down, and what-ifs of it.

Recorded durations hold the slowdown that the recorded overlap brought. They are divided by it
once; from then on whatever a what-if does to the overlap changes the slowdown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import F64, I64, JobGraph, TaskKind, Timeline
from foretrace.replay.rates import Sharing, bare_work, replay_with_rates


@dataclass(frozen=True, slots=True)
class SharedJob:
    """A job and what its tasks take from their devices.

    Attributes:
        graph: the job; its durations are work: what each task takes alone.
        sharing: of the tasks of ``graph``.
    """

    graph: JobGraph
    sharing: Sharing

    def replay(self, changed: JobGraph | None = None, label: str = "replayed") -> Timeline:
        """Replay the job, or what a what-if made of ``graph``, with rates.

        Args:
            changed: the changed job; the one as recorded by default.
            label: name of the result.

        Raises:
            GraphError: the changed job's tasks are not sorted.
        """
        if changed is None:
            return replay_with_rates(self.graph, self.sharing, label)
        return replay_with_rates(changed, self.sharing_of(changed), label)

    def sharing_of(self, changed: JobGraph) -> Sharing:
        """What the tasks of a changed job take: those of their originals.

        A task's original is the one of the same kind, rank and recorded event. An operation that
        takes another time for its bytes takes another share of the memory bandwidth.
        """
        if changed is self.graph:
            return self.sharing
        old = self._originals(changed)
        base, known = self.sharing, old >= 0
        return Sharing(
            np.where(known, base.row[old], -1).astype(np.int32),
            base.table,
            np.where(known, base.evicted[old], -1.0),
            np.where(known, base.holds[old], 0),
            np.where(known, base.moves[old] * self._faster(changed, old), 0.0),
            np.where(known, base.disturbed[old], 1.0),
        )

    def _originals(self, changed: JobGraph) -> I64:
        """Task of ``graph`` that each task of ``changed`` stems from, -1 for none."""
        event = max(int(g.event.max(initial=0)) for g in (self.graph, changed)) + 1

        def key(graph: JobGraph) -> I64:
            kind = (graph.kind == TaskKind.COMM).astype(np.int64)
            number: I64 = (graph.rank.astype(np.int64) * 2 + kind) * event + graph.event
            return number

        ours = np.flatnonzero(_shares(self.graph))
        ours = ours[np.argsort(key(self.graph)[ours], kind="stable")]
        result = np.full(len(changed), -1, np.int64)
        theirs = np.flatnonzero(_shares(changed))
        if len(ours) and len(theirs):
            keys, asked = key(self.graph)[ours], key(changed)[theirs]
            at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
            result[theirs] = np.where(keys[at] == asked, ours[at], -1)
        return result

    def _faster(self, changed: JobGraph, old: I64) -> F64:
        """Bytes a second of each operation against its original's, shape ``(n,)``."""
        ratio = self.graph.dur_ns[old] / np.maximum(changed.dur_ns, 1)
        before = np.append(self.graph.collectives.bytes, -1)[self.graph.collective[old]]
        now = np.append(changed.collectives.bytes, -1)[changed.collective]
        known = (before > 0) & (now > 0)
        faster: F64 = np.where(known, ratio * now / np.maximum(before, 1), ratio)
        return np.minimum(faster, 1e6)  # an operation that takes no time moves for no time


def shared_job(recorded: Timeline, sharing: Sharing) -> SharedJob:
    """A job from durations that hold the slowdown of their own overlap.

    Args:
        recorded: the timeline that the durations are from.
        sharing: what its tasks take and feel.
    """
    graph = recorded.graph
    return SharedJob(graph.with_durations(bare_work(recorded, sharing)), sharing)


def _shares(graph: JobGraph) -> np.ndarray:
    """Tasks that stand for a recorded kernel."""
    return np.isin(graph.kind, (TaskKind.KERNEL, TaskKind.COMM)) & (graph.event >= 0)
