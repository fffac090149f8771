"""Host threads that stay in a device synchronisation after the device has drained.

Everything launched before the call has ended, so no wait is left to explain the rest: what
exceeds the usual return is a stall of the host, like one between two rows.
"""

from __future__ import annotations

import numpy as np

from foretrace.replay.build.calls import Calls
from foretrace.replay.build.columns import RankEvents
from foretrace.replay.build.gaps import TypicalGaps
from foretrace.replay.build.launches import Launches
from foretrace.replay.build.memorycalls import drained_at
from foretrace.replay.build.syncs import device_syncs
from foretrace.replay.graph import I64

RETURN_PAIR = -2
"""Label of the time between the device's last end and a synchronisation's return."""


def returns(
    events: RankEvents, calls: Calls, launched: Launches, names: tuple[str, ...]
) -> tuple[I64, I64]:
    """Device synchronisations, as positions in ``calls``, and how long each took to return, ns.

    Counted from the end of everything launched before, or from the call's start.
    """
    at = np.flatnonzero(device_syncs(events, calls.row, names) & calls.blocks)
    rows = calls.row[at]
    return at, np.maximum(events.end[rows] - drained_at(events, launched, rows), 0)


def late_returns(
    events: RankEvents,
    calls: Calls,
    launched: Launches,
    names: tuple[str, ...],
    typical: TypicalGaps,
) -> I64:
    """How long each call's thread stood still after its wait was over, ns, shape ``(calls,)``."""
    late = np.zeros(len(calls.row), np.int64)
    at, took = returns(events, calls, launched, names)
    late[at] = typical.excess(np.full(len(at), RETURN_PAIR), took)
    return late
