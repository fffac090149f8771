"""What the rules of all ranks share."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.replay.build.gaps import TypicalGaps

WAKE_NAME = "(thread wake-up)"
STALL_NAME = "(host stall)"
SKEW_NAME = "(enters the window)"
OUTSIDE_NAME = "(outside of any operator)"
JOIN_NAME = "(last arrival)"


@dataclass(frozen=True, slots=True)
class Context:
    """What all ranks share while their tasks are added.

    Attributes:
        typical: typical gaps, pooled over ranks.
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
