"""Calls that make the host wait for the device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace.analysis.causes.case import Case, Cause
from foretrace.analysis.causes.wording import by_rank, named_ranks
from foretrace.replay.graph import I64, EdgeKind


def blocking_calls(case: Case) -> Iterator[Cause]:
    """Each kind of blocking call no longer holds up the host.

    The order on the device stays: what is launched after the call waits for what the call
    waited for, as if a stream had been told to wait in place of the host.
    """
    graph = case.graph
    waits = np.flatnonzero(graph.edge_kind == EdgeKind.SYNC)
    waits = waits[graph.lanes.device[graph.lane[graph.pred[waits]]] >= 0]
    target = np.searchsorted(graph.pred_ptr, waits, side="right") - 1
    inside = case.in_steps[target]
    waits, target = waits[inside], target[inside]
    for name in np.unique(graph.name[target[case.path_edge[waits]]]).tolist():
        mine = graph.name[target] == name
        tasks = np.unique(target[mine])
        ranks, _ = by_rank(case, tasks, least=0)
        source, later = _order_on_device(case, graph.pred[waits[mine]], target[mine])
        yield Cause(
            kind="blocking_call",
            title=f"{graph.names[name]} holds up the host of {named_ranks(ranks)}",
            ranks=ranks,
            gone=waits[mine],
            source=source,
            target=later,
            evidence=(
                f"{len(tasks) / case.steps / len(ranks):,.3g} a step and rank",
                "priced as if the host went on and the device's streams waited in its place",
            ),
            action=(
                "Find the call in the timeline: .item(), .cpu(), printing a tensor, a copy from "
                "pageable memory, torch.cuda.synchronize. Use non_blocking copies from pinned "
                "memory and log every n steps."
            ),
            confidence=1,
        )


def _order_on_device(case: Case, source: I64, call: I64) -> tuple[I64, I64]:
    """What the first task of each stream that is launched after a call would wait for.

    Args:
        case: the job.
        source: device task that each call waits for, shape ``(k,)``.
        call: blocking call, shape ``(k,)``.

    Returns:
        Sources and targets, at most one pair for each call and stream of its rank.
    """
    graph = case.graph
    launches = np.flatnonzero(graph.edge_kind == EdgeKind.LAUNCH)
    task = np.searchsorted(graph.pred_ptr, launches, side="right") - 1
    at = case.timeline.start_ns[graph.pred[launches]]
    order = np.lexsort((at, graph.lane[task]))
    task, at = task[order], at[order]
    lane = graph.lane[task]
    sources, targets = [], []
    for stream in np.unique(lane).tolist():
        queue = slice(*np.searchsorted(lane, (stream, stream + 1)))
        mine = np.flatnonzero(graph.rank[call] == graph.lanes.rank[stream])
        after = np.searchsorted(at[queue], case.timeline.end_ns[call[mine]])
        found = after < len(at[queue])
        later = task[queue][after[found]]
        ordered = later > source[mine[found]]
        sources.append(source[mine[found]][ordered])
        targets.append(later[ordered])
    if not sources:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(sources), np.concatenate(targets)
