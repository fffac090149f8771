"""Ranks that enter the recorded step later than others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace.analysis.causes.case import Case, Cause
from foretrace.analysis.causes.wording import ms, named_ranks
from foretrace.replay.graph import TaskKind


def late_starts(case: Case) -> Iterator[Cause]:
    """All ranks enter the record together."""
    graph = case.graph
    tasks = np.flatnonzero(graph.kind == TaskKind.SKEW)
    if not len(tasks):
        return
    rank = graph.rank[tasks]
    enters = np.full(int(graph.rank.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(enters, rank, graph.dur_ns[tasks])
    late = enters[rank] - enters.min()
    if not late.any():
        return
    by_rank = np.where(enters == np.iinfo(np.int64).max, 0, enters - enters.min())
    worst = int(np.argmax(by_rank))
    ranks = tuple(int(r) for r in np.flatnonzero(by_rank >= 0.5 * by_rank[worst]))
    yield Cause(
        kind="late_start",
        title=f"Rank {worst} begins {ms(float(by_rank[worst]))} after the first rank",
        ranks=ranks,
        tasks=tasks,
        dur_ns=graph.dur_ns[tasks] - late,
        evidence=(
            f"{named_ranks(ranks)} begin late; what held them back lies before the record",
            "priced as if all ranks began together",
        ),
        action=(
            "Record one more step before this one, and check the clock alignment: "
            "an offset between hosts looks the same."
        ),
        confidence=1,
    )
