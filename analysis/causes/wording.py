"""How causes speak of times and ranks."""

from __future__ import annotations

import numpy as np

from foretrace.analysis.causes.case import Case
from foretrace.analysis.groups import ranks_text
from foretrace.replay.graph import I64


def ms(time_ns: float) -> str:
    """A time for people: three digits and a unit."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(time_ns) >= scale:
            return (
                f"{time_ns / scale:.3g} {unit}"
                if time_ns < scale * 1e3
                else f"{time_ns / scale:,.0f} {unit}"
            )
    return f"{time_ns:.0f} ns"


def by_rank(case: Case, tasks: I64, least: float = 0.1) -> tuple[tuple[int, ...], list[float]]:
    """Ranks by what these tasks take on them, most first, ns per step.

    Args:
        case: the job.
        tasks: shape ``(k,)``.
        least: ranks below this share of the first rank's are left out.
    """
    rank = case.graph.rank[tasks]
    total = np.bincount(rank, weights=case.graph.dur_ns[tasks]) / case.steps
    order = np.argsort(-total, kind="stable")
    kept = [int(r) for r in order if total[r] > 0 and total[r] >= least * total[order[0]]]
    return tuple(kept) or (int(order[0]),), [float(total[r]) for r in kept] or [0.0]


def named_ranks(ranks: tuple[int, ...]) -> str:
    """Such as ``rank 3`` or ``8 ranks (0-7)``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"{len(ranks)} ranks ({ranks_text(sorted(ranks))})"
