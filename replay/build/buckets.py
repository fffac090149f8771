"""Gradient buckets whose waits leave no record (DistributedDataParallel)."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from foretrace.replay.build.columns import KIND, NETWORK, RankCollectives, RankEvents
from foretrace.replay.build.named import matching
from foretrace.replay.graph import I64

STREAM_WAIT = re.compile(r"StreamWaitEvent")


def with_bucket_waits(
    events: RankEvents, collectives: RankCollectives, call_of: I64, names: tuple[str, ...]
) -> RankCollectives:
    """Find the waits that DistributedDataParallel leaves no record of.

    When the last gradient bucket has been launched, the reducer makes the current stream wait
    for each bucket in the order of their launches, then uses it: stream waits on the launching
    thread that belong to no other call, as many as there are buckets nobody waited for yet.
    """
    pending = np.flatnonzero(
        (collectives.work >= 0) & (collectives.wait < 0) & (call_of[collectives.work] >= 0)
    )
    pending = pending[events.device[collectives.work[pending]] != NETWORK]
    pending = pending[~collectives.weak[pending]]
    stray = stray_waits(events, collectives, names)
    if not len(pending) or not len(stray):
        return collectives
    launch = call_of[collectives.work[pending]]
    wait = collectives.wait.copy()
    for thread in np.unique(events.thread[launch]):
        mine = pending[events.thread[launch] == thread]
        at = events.start[call_of[collectives.work[mine]]]
        own = stray[events.thread[stray] == thread]
        # A run of launches ends where a stray wait follows; its waits end at the next launch.
        run = np.searchsorted(events.start[own], at)
        for first in np.unique(run):
            members = mine[run == first]
            until = np.searchsorted(events.start[own], at[run > first].min(initial=1 << 62))
            waits = own[first:until][: len(members)]
            wait[members[: len(waits)]] = waits
    return replace(collectives, wait=wait)


def stray_waits(events: RankEvents, collectives: RankCollectives, names: tuple[str, ...]) -> I64:
    """Stream waits outside of the calls that issue or await a communication operation."""
    named = matching(STREAM_WAIT, names)[events.name]
    rows = np.flatnonzero(named & (events.kind == KIND["runtime"]))
    known = np.concatenate([collectives.call, collectives.wait])
    known = known[known >= 0]
    inside = np.zeros(len(rows), bool)
    for thread in np.unique(events.thread[known]):
        spans = known[events.thread[known] == thread]
        spans = spans[np.argsort(events.start[spans])]
        at = np.searchsorted(events.start[spans], events.start[rows], side="right") - 1
        within = (at >= 0) & (events.end[spans[at]] >= events.end[rows])
        inside |= within & (events.thread[rows] == thread)
    return rows[~inside]
