"""What the ranks of a pool teach together: typical gaps, costs of blocking calls, constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.replay.build import context as context_
from foretrace.replay.build import gaps, returns
from foretrace.replay.build.columns import NameTable
from foretrace.replay.build.constants import Constant, with_constants
from foretrace.replay.build.context import Context, pools
from foretrace.replay.build.rank import Rank
from foretrace.replay.graph import JobGraph
from foretrace.replay.subgraph import of_tasks

SYNC_COST_PERCENTILE = 10.0
"""The own cost of a blocking call: what the quickest of them took, having nothing to wait for."""


def host_context(prepared: dict[int, Rank], names: NameTable, origin_ns: int) -> Context:
    """Typical gaps of some ranks, and what their blocking calls cost.

    Args:
        prepared: the ranks of one pool.
        names: the job's names.
        origin_ns: begin of the recorded window on the aligned clock.
    """
    samples = []
    for p in prepared.values():
        gap = p.boundaries.gap.copy()
        gap[p.handoffs.gap] = 0
        gap[np.isin(p.boundaries.row, p.calls.row[p.calls.cost >= 0])] = 0
        threads = p.handoffs.worker >= 0
        use = gap > 0
        samples.append((p.boundaries.pair[use], gap[use]))
        time = p.boundaries.time
        began = p.handoffs.burst_first >= 0
        wake = np.concatenate([
            (time[p.handoffs.burst_first] - time[p.handoffs.gap])[began],
            (time[p.handoffs.gap + 1] - time[p.handoffs.burst_last])[threads],
        ])  # fmt: skip
        samples.append((np.full(len(wake), gaps.WAKE_PAIR, np.int64), wake))
        took = returns.returns(p.events, p.calls, p.launched, names.names())[1]
        samples.append((np.full(len(took), returns.RETURN_PAIR, np.int64), took))
    return Context(
        typical=gaps.typical_gaps(samples),
        sync_cost_ns=_sync_cost(prepared),
        origin_ns=origin_ns,
        wake_name=names.number(context_.WAKE_NAME),
        stall_name=names.number(context_.STALL_NAME),
        skew_name=names.number(context_.SKEW_NAME),
        outside_name=names.number(context_.OUTSIDE_NAME),
    )


def _sync_cost(prepared: dict[int, Rank]) -> int:
    """What a blocking call itself costs, ns, pooled over its ranks: never its waiting.

    The time from its start, or from the last device work that ended inside it, to its return.
    """
    took = []
    for p in prepared.values():
        events = p.events
        rows = p.calls.row[p.calls.blocks & ~p.calls.launches]
        done = np.sort(events.end[events.is_device_work])
        at = np.searchsorted(done, events.end[rows], side="right") - 1
        last = done[at] if len(done) else events.start[rows]
        ready = np.where(at >= 0, np.maximum(last, events.start[rows]), events.start[rows])
        took.append(events.end[rows] - ready)
    every = np.concatenate(took)
    return int(np.percentile(every, SYNC_COST_PERCENTILE)) if len(every) else 0


def with_pooled_constants(
    graph: JobGraph, borrow: frozenset[int]
) -> tuple[JobGraph, tuple[Constant, ...]]:
    """Estimate the constants of each pool of ranks and set them as the delays of their edges.

    Args:
        graph: the job graph, its edges without delays.
        borrow: ranks whose own times say nothing; they take the constants of their pool.
    """
    groups = pools(np.unique(graph.rank[graph.rank >= 0]).tolist())
    if len(groups) == 1:
        return with_constants(graph, borrow)
    delay = graph.edge_delay_ns.copy()
    constants: list[Constant] = []
    for pool in groups:
        part = of_tasks(graph, np.flatnonzero(np.isin(graph.rank, pool)))
        found, own = with_constants(part.graph, borrow)
        delay[part.edge] = found.edge_delay_ns
        constants += own
    return replace(graph, edge_delay_ns=delay), tuple(constants)
