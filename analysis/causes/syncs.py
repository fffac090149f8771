"""Calls that make the host wait for the device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace.analysis.causes.case import Case, Cause
from foretrace.analysis.causes.wording import by_rank, named_ranks
from foretrace.replay.graph import EdgeKind


def blocking_calls(case: Case) -> Iterator[Cause]:
    """Each kind of blocking call no longer waits for the device."""
    graph = case.graph
    waits = np.flatnonzero(graph.edge_kind == EdgeKind.SYNC)
    target = np.searchsorted(graph.pred_ptr, waits, side="right") - 1
    inside = case.in_steps[target]
    waits, target = waits[inside], target[inside]
    for name in np.unique(graph.name[target[case.path_edge[waits]]]).tolist():
        mine = graph.name[target] == name
        tasks = np.unique(target[mine])
        ranks, _ = by_rank(case, tasks, least=0)
        yield Cause(
            kind="blocking_call",
            title=f"{graph.names[name]} holds up the host of {named_ranks(ranks)}",
            ranks=ranks,
            tasks=np.empty(0, np.int64),
            dur_ns=np.empty(0, np.int64),
            edges=waits[mine],
            evidence=(
                f"{len(tasks) / case.steps / len(ranks):,.3g} a step and rank, some of them on "
                "the critical path",
                "priced as if the host went on without waiting",
            ),
            action=(
                "Find the call in the timeline: .item(), .cpu(), printing a tensor, a copy from "
                "pageable memory, torch.cuda.synchronize. Use non_blocking copies from pinned "
                "memory and log every n steps."
            ),
            confidence=1,
        )
