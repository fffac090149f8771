"""Host threads that stand still longer than is typical for what they do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace.analysis.causes.case import Case, Cause
from foretrace.analysis.causes.wording import by_path, by_rank, ms, named_ranks
from foretrace.replay.graph import TaskKind


def stalls(case: Case) -> Iterator[Cause]:
    """All host stalls gone."""
    tasks = np.flatnonzero(case.of_kind(TaskKind.STALL))
    if not len(tasks):
        return
    ranks, _ = by_path(case, tasks)
    stalled, shares = by_rank(case, tasks)
    on_path = tasks[case.path_ns[tasks] > 0]
    longest = int(tasks[np.argmax(case.path_ns[tasks])])
    yield Cause(
        kind="host_stall",
        title=f"Host stalls hold up the step, {ms(case.on_path(tasks))} on the critical path "
        f"of {named_ranks(ranks)}",
        ranks=ranks,
        tasks=tasks,
        dur_ns=np.zeros(len(tasks), np.int64),
        evidence=(
            f"{len(on_path) / case.steps:,.3g} stalls a step on the critical path, the longest "
            f"{ms(float(case.graph.dur_ns[longest]))} at {case.where(longest)}",
            f"over all ranks {ms(case.per_step(tasks))} a step, most on rank {stalled[0]} "
            f"({ms(shares[0])}); time beyond what the same pair of host events typically takes",
        ),
        action=(
            "See what the launching thread does there: data loading, logging, garbage "
            "collection (gc.freeze, gc.disable), a lock held by another thread, or a core "
            "shared with other processes (pin threads, check cgroup limits)."
        ),
        confidence=3,
    )
