"""Host threads that stand still longer than is typical for what they do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace.analysis.causes.case import Case, Cause
from foretrace.analysis.causes.wording import by_rank, ms, named_ranks
from foretrace.replay.graph import TaskKind


def stalls(case: Case) -> Iterator[Cause]:
    """All host stalls gone."""
    tasks = np.flatnonzero(case.of_kind(TaskKind.STALL))
    if not len(tasks):
        return
    ranks, shares = by_rank(case, tasks)
    longest = int(tasks[np.argmax(case.graph.dur_ns[tasks])])
    yield Cause(
        kind="host_stall",
        title=f"The host of {named_ranks(ranks)} stalls, {ms(shares[0])} a step on rank {ranks[0]}",
        ranks=ranks,
        tasks=tasks,
        dur_ns=np.zeros(len(tasks), np.int64),
        evidence=(
            f"{len(tasks)} stalls, {ms(case.per_step(tasks))} a step over all ranks, "
            f"{ms(case.on_path(tasks))} of it on the critical path",
            f"longest: {ms(float(case.graph.dur_ns[longest]))} at {case.where(longest)}",
        ),
        action=(
            "See what the launching thread does there: data loading, logging, garbage "
            "collection (gc.freeze, gc.disable), a lock held by another thread, or a core "
            "shared with other processes (pin threads, check cgroup limits)."
        ),
        confidence=3,
    )
