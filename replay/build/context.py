"""What the rules of all ranks share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from foretrace.replay.build.gaps import TypicalGaps

WAKE_NAME = "(thread wake-up)"
STALL_NAME = "(host stall)"
SKEW_NAME = "(enters the window)"
OUTSIDE_NAME = "(outside of any operator)"
JOIN_NAME = "(last arrival)"


POOL_RANKS = 64
"""What is typical is learnt over so many ranks together. A pool of every rank would say no more,
and could not be learnt without holding all of a large job."""


def pools(ranks: Iterable[int]) -> list[list[int]]:
    """The ranks that learn together: neighbours, POOL_RANKS at a time."""
    ordered = sorted(ranks)
    return [ordered[i : i + POOL_RANKS] for i in range(0, len(ordered), POOL_RANKS)]


@dataclass(frozen=True, slots=True)
class Context:
    """What the ranks of a pool share while their tasks are added.

    Attributes:
        typical: typical gaps, pooled over its ranks.
        sync_cost_ns: a blocking call's own cost.
        origin_ns: begin of the recorded window on the aligned clock.
        wake_name: name number of thread wake-ups.
        stall_name: name number of stalls.
        skew_name: name number of initial conditions.
        outside_name: name number of host work outside of any recorded row.
    """

    typical: TypicalGaps
    sync_cost_ns: int
    origin_ns: int
    wake_name: int
    stall_name: int
    skew_name: int
    outside_name: int
