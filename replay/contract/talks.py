"""What the ranks of a large job have to do with each other, read without the rest of their events.

Matching and clocks need the rows that communicate and nothing else: some hundred rows of a rank's
tens of thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa

from foretrace.replay.align import Alignment
from foretrace.replay.build import meetings
from foretrace.replay.build.columns import (
    COLLECTIVE_COLUMNS,
    KIND,
    NameTable,
    RankCollectives,
    RankEvents,
    collectives_from_table,
    read_rank,
    with_network_lanes,
)
from foretrace.replay.build.identity import Matches
from foretrace.replay.build.rendezvous import Split
from foretrace.replay.graph import I64
from foretrace.traces.errors import GraphError
from foretrace.traces.store import TraceSet

_COLUMNS = ("start_ns", "dur_ns", "thread", "device", "stream")


@dataclass(frozen=True, slots=True)
class Talk:
    """One rank's communication.

    Attributes:
        events: the rows that carry it out, in the order of the operations.
        collectives: its operations; ``work`` counts within ``events``.
        first_ns: start of the rank's first event on its own clock.
        rows: events of the rank.
    """

    events: RankEvents
    collectives: RankCollectives
    first_ns: int
    rows: int


@dataclass(frozen=True, slots=True)
class Meetings:
    """Where ranks meet.

    Attributes:
        matches: matched operations.
        alignment: clock corrections.
        halves: waiting apart from execution, of each member.
        bytes: size of each member's operation, -1 unknown.
        origin_ns: begin of the recorded window on the aligned clock.
    """

    matches: Matches
    alignment: Alignment
    halves: Split
    bytes: I64
    origin_ns: int


def read_talks(path: str, ranks: Sequence[int]) -> list[Talk]:
    """Read the communication of some ranks; runs in any process.

    Args:
        path: the trace set.
        ranks: which of its ranks.
    """
    trace = TraceSet.open(path)
    return [_read_talk(trace, rank) for rank in ranks]


def _read_talk(trace: TraceSet, rank: int) -> Talk:
    table = trace.events(rank, columns=list(_COLUMNS))
    talks: pa.Table = trace.collectives(rank, columns=list(COLLECTIVE_COLUMNS))
    collectives = collectives_from_table(talks.slice(0, 0) if not len(table) else talks)
    kept = np.flatnonzero(collectives.work >= 0)
    work = collectives.work[kept]
    if _says_who(collectives) and work.max(initial=-1) < len(table):
        events = _rows(rank, table, work)
        small = with_network_lanes(events, _within(collectives, kept))
    else:  # names say more; and tables that do not belong together are refused
        events, collectives = read_rank(trace, rank, NameTable())
        small = replace(events, **{f.name: getattr(events, f.name)[work] for f in _ARRAYS})
    first = int(table["start_ns"].to_numpy()[0]) if len(table) else 0
    return Talk(small, _within(collectives, kept), first, len(table))


_ARRAYS = tuple(f for f in fields(RankEvents) if f.name != "rank")


def _says_who(c: RankCollectives) -> bool:
    """Whether every operation names its group, communicator or peer."""
    known = (c.group >= 0) | (c.comm_id != 0) | (c.seq >= 0) | (c.peer >= 0) | (c.call >= 0)
    return bool(known.all())


def _within(collectives: RankCollectives, kept: I64) -> RankCollectives:
    """Operations whose work counts within the rows that carry it out."""
    place = np.full(len(collectives.work), -1, np.int64)
    place[kept] = np.arange(len(kept))
    none = np.full(len(place), -1, np.int64)
    return replace(collectives, work=place, call=none, wait=none)


def _rows(rank: int, table: pa.Table, rows: I64) -> RankEvents:
    """Some rows of an events table, without what only the rules within a rank read."""
    start, dur, thread, device, stream = (table[c].to_numpy()[rows] for c in _COLUMNS)
    none = np.full(len(rows), -1, np.int64)
    zero = np.zeros(len(rows), np.int32)
    return RankEvents(
        rank=rank,
        kind=np.full(len(rows), KIND["kernel"], np.int8),
        name=zero,
        start=start,
        end=start + dur,
        thread=thread,
        device=device.astype(np.int32),
        stream=stream,
        correlation=none,
        step=zero,
        wait_stream=none,
        wait_correlation=none,
        backward=zero > 0,
        shape=zero,
    )


def meet(trace: TraceSet, talks: Sequence[Talk]) -> Meetings:
    """Match the operations of all ranks, solve for the clocks, split waiting from execution.

    Args:
        trace: the trace set.
        talks: what its ranks have to do with each other.

    Raises:
        GraphError: the ranks hold no events.
    """
    tables = {t.events.rank: (t.events, t.collectives) for t in talks}
    groups = {r: [tuple(g.ranks) for g in trace.info(r).groups] for r in tables}
    matches, alignment = meetings.match_and_align(tables, groups)
    moved = {r: (meetings.aligned(e, alignment), c) for r, (e, c) in tables.items()}
    halves = meetings.split_members(moved, matches)
    size = meetings.member_column(matches, {r: c.bytes for r, (_, c) in tables.items()})
    first = [
        int(alignment.correct(t.events.rank, np.array([t.first_ns]))[0]) for t in talks if t.rows
    ]
    if not first:
        raise GraphError("the trace set holds no events; record or import it again")
    return Meetings(matches, alignment, halves, size, min(first))
