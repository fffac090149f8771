"""Replay of a large recording, a pool of ranks at a time, in parallel."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np

from foretrace.replay.align import Alignment
from foretrace.replay.build.context import pools
from foretrace.replay.build.meetings import members_by_rank
from foretrace.replay.contract.blocks import Block, BlockJob, build_block
from foretrace.replay.contract.solve import expanded, joined
from foretrace.replay.contract.talks import Meetings, meet, read_talks
from foretrace.replay.engine import replay
from foretrace.replay.graph import I64, EdgeKind, Timeline
from foretrace.replay.timeline import StepWindows
from foretrace.traces.store import TraceSet


@dataclass(frozen=True, slots=True)
class LargeReplay:
    """A replay that knows of each rank what others can notice, exact to the nanosecond.

    Attributes:
        timeline: the reduced job: communication between ranks, step marks, and the end of each
            rank's device work in each step.
        expanded: the ranks that were asked for in full; None where none was.
        ranks: all ranks, ascending.
        alignment: clock corrections.
        null: the steps of the null replay.
        stall_ns: host stalls of each rank, shape ``(ranks,)``.
        tasks: tasks of the whole job.
        edges: edges of the whole job.
        dropped: why edges were left out -> how many.
        unmatched: rank -> communication operations without a counterpart.
        stood_in: rank -> operations in which others stand in for ranks that were not recorded.
    """

    timeline: Timeline
    expanded: Timeline | None
    ranks: tuple[int, ...]
    alignment: Alignment
    null: StepWindows
    stall_ns: I64
    tasks: int
    edges: int
    dropped: dict[str, int]
    unmatched: dict[int, int]
    stood_in: dict[int, int]


def replay_large(
    trace: TraceSet,
    ranks: Sequence[int] | None = None,
    expand: Iterable[int] = (),
    executor: Executor | None = None,
) -> LargeReplay:
    """Replay a recording of very many ranks.

    Args:
        trace: an open trace set.
        ranks: only these ranks; all by default.
        expand: ranks that are wanted in full.
        executor: where the ranks are worked on; processes of this machine by default. It must
            see the trace set under the same path.

    Raises:
        GraphError: nothing to replay, or the recorded order contradicts itself.
    """
    groups = pools(trace.ranks if ranks is None else ranks)
    path = str(trace.path)
    with _processes(executor) as pool:
        talks = [t for some in pool.map(read_talks, [path] * len(groups), groups) for t in some]
        meetings = meet(trace, talks)
        del talks
        one_step = not trace.steps
        wanted = frozenset(expand)
        blocks = _blocks(pool, path, groups, meetings, wanted, one_step)
        if any(b.marks for b in blocks) == one_step:  # the manifests do not say what rows say
            blocks = _blocks(pool, path, groups, meetings, wanted, not one_step)
    graph = joined([b.graph for b in blocks], meetings)
    timeline = replay(graph)
    whole = [own for block in blocks for own in block.whole.values()]
    dropped: dict[str, int] = {}
    for block in blocks:
        for why, count in block.dropped.items():
            dropped[why] = dropped.get(why, 0) + count
    return LargeReplay(
        timeline=timeline,
        expanded=expanded(whole, timeline) if whole else None,
        ranks=tuple(r for group in groups for r in group),
        alignment=meetings.alignment,
        null=_together([b.null for b in blocks]),
        stall_ns=np.concatenate([b.stall_ns for b in blocks]),
        tasks=sum(b.tasks for b in blocks) + len(meetings.matches.kind),
        edges=sum(b.edges for b in blocks) + _rendezvous_edges(timeline),
        dropped=dropped,
        unmatched={r: len(rows) for r, rows in meetings.matches.unmatched.items()},
        stood_in=meetings.matches.stood_in(),
    )


@contextmanager
def _processes(executor: Executor | None) -> Iterator[Executor]:
    """The given executor, or one process for each processor that may be used."""
    if executor is not None:
        yield executor
        return
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ProcessPoolExecutor(count, get_context("spawn"), initializer=_single) as own:
        yield own


def _single() -> None:
    """In a worker: one thread decodes tables, and nobody looks for cycles among arrays.

    There are as many workers as processors; threads of Arrow's would only get in their way.
    """
    import gc

    import pyarrow as pa

    gc.disable()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def _blocks(
    pool: Executor,
    path: str,
    groups: list[list[int]],
    meetings: Meetings,
    whole: frozenset[int],
    one_step: bool,
) -> list[Block]:
    """All pools of ranks, reduced."""
    members = members_by_rank(meetings.matches)
    none = np.zeros(0, np.int64)
    jobs = []
    for group in groups:
        own = {r: members.get(r, none) for r in group}
        jobs.append(
            BlockJob(
                path=path,
                ranks=group,
                whole=whole.intersection(group),
                alignment=_of_ranks(meetings.alignment, group),
                origin_ns=meetings.origin_ns,
                one_step=one_step,
                operation={r: meetings.matches.operation[m] for r, m in own.items()},
                exec_ns={r: meetings.halves.exec_ns[m] for r, m in own.items()},
            )
        )
    return list(pool.map(build_block, jobs))


def _of_ranks(alignment: Alignment, ranks: list[int]) -> Alignment:
    """The corrections of some ranks."""
    return replace(
        alignment,
        offset_ns={r: alignment.offset_ns.get(r, 0) for r in ranks},
        drift_ppm={r: alignment.drift_ppm[r] for r in ranks if r in alignment.drift_ppm},
        rank_residual_ns={},
    )


def _together(windows: list[StepWindows]) -> StepWindows:
    """Steps of the whole job from those of its parts."""
    steps = np.unique(np.concatenate([w.step for w in windows]))
    start = np.full(len(steps), np.iinfo(np.int64).max)
    end = np.full(len(steps), np.iinfo(np.int64).min)
    for w in windows:
        row = np.searchsorted(steps, w.step)
        start[row] = np.minimum(start[row], w.start_ns)
        end[row] = np.maximum(end[row], w.end_ns)
    return StepWindows(steps.astype(np.int32), start, end)


def _rendezvous_edges(timeline: Timeline) -> int:
    """Edges between ranks."""
    graph = timeline.graph
    return int((graph.edge_kind != EdgeKind.SEGMENT).sum())
