"""Copies and fills on the critical path."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace.analysis.causes.case import Case, Cause
from foretrace.analysis.causes.wording import by_rank, ms
from foretrace.replay.graph import TaskKind


def copies(case: Case) -> Iterator[Cause]:
    """Each kind of copy costs nothing."""
    graph = case.graph
    every = np.flatnonzero(case.of_kind(TaskKind.MEMCPY, TaskKind.MEMSET))
    for name in np.unique(graph.name[every]).tolist():
        tasks = every[graph.name[every] == name]
        ranks, shares = by_rank(case, tasks)
        yield Cause(
            kind="copy",
            title=f"{graph.names[name]} takes {ms(shares[0])} a step on rank {ranks[0]}",
            ranks=ranks,
            tasks=tasks,
            dur_ns=np.zeros(len(tasks), np.int64),
            evidence=(
                f"{len(tasks) / case.steps:,.3g} a step over all ranks, "
                f"{ms(case.on_path(tasks))} on the critical path",
            ),
            action=(
                "Copy from pinned memory with non_blocking=True on a stream of its own, prefetch "
                "the next batch, or keep the data on the device."
            ),
            confidence=2,
        )
