"""Where ranks meet: their matched operations, their clocks, waiting apart from execution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from foretrace.replay.align import ANCHOR_KINDS, Alignment, align
from foretrace.replay.build import identity, rendezvous
from foretrace.replay.build.columns import RankCollectives, RankEvents
from foretrace.replay.build.communicators import communicators
from foretrace.replay.build.messages import SEND, messages
from foretrace.replay.causality import MessageTimes, bridged
from foretrace.replay.graph import I64, Collectives


def match_and_align(
    tables: dict[int, tuple[RankEvents, RankCollectives]],
    groups: dict[int, list[tuple[int, ...]]],
) -> tuple[identity.Matches, Alignment]:
    """Match the operations of all ranks and solve for their clocks.

    Args:
        tables: rank -> events and communication operations, each on the rank's own clock.
        groups: rank -> global ranks of each of its recorded groups.
    """
    comms = [
        c
        for rank, (events, collectives) in tables.items()
        for c in communicators(rank, events, collectives, groups[rank])
    ]
    sent = messages({r: c for r, (_, c) in tables.items()}, groups)
    matches = identity.match(comms, sent, {})
    alignment = _clocks(tables, matches)
    if any(alignment.offset_ns.values()) and not all(c.handle for c in comms):
        # With the clocks known, groups of few operations can be told apart by their ends.
        matches = identity.match(comms, sent, alignment.offset_ns)
        alignment = _clocks(tables, matches)
    return matches, alignment


def _clocks(
    tables: dict[int, tuple[RankEvents, RankCollectives]], matches: identity.Matches
) -> Alignment:
    """Clock offsets from the ends of the matched collectives that are fit for it."""
    if _on_one_clock(tables):
        return Alignment(dict.fromkeys(tables, 0), {}, 0, -1, {}, 0)
    keep = np.isin(matches.kind, ANCHOR_KINDS) & ~matches.weak
    count = np.diff(matches.ptr)
    member = np.repeat(keep, count)
    ptr = np.concatenate([[0], np.cumsum(count[keep])]).astype(np.int64)
    start, end = (member_times(tables, matches, which) for which in ("start", "end"))
    alignment = align(ptr, matches.rank[member], end[member])
    return bridged(alignment, ptr, matches.rank[member], _message_times(matches, start, end))


def _on_one_clock(tables: Mapping[int, tuple[RankEvents, RankCollectives]]) -> bool:
    """Whether all ranks are known to share a clock that all their rows are on.

    Members of a ring over sockets leave it one after another, by far more than such a clock's
    error. Device rows are on clocks of their own, which the ends of their collectives tell.
    """
    clocks = {events.clock for events, _ in tables.values()}
    devices = any((events.device >= 0).any() for events, _ in tables.values())
    return len(clocks) == 1 and clocks != {""} and not devices


def _message_times(matches: identity.Matches, start: I64, end: I64) -> MessageTimes:
    """Messages between two ranks; of pairs with a direction the sender stands first."""
    pairs = np.flatnonzero(matches.p2p & (np.diff(matches.ptr) == 2))
    first = matches.ptr[pairs]
    return MessageTimes(
        sender=matches.rank[first],
        receiver=matches.rank[first + 1],
        sent_start_ns=start[first],
        sent_end_ns=end[first],
        received_end_ns=end[first + 1],
        directed=matches.kind[pairs] == SEND,
    )


def aligned(events: RankEvents, alignment: Alignment) -> RankEvents:
    """A rank's events on the job's clock."""
    start, end = (alignment.correct(events.rank, t) for t in (events.start, events.end))
    # Device work keeps its recorded duration to the nanosecond, and the rules for streams
    # allow for what a clock drifts meanwhile. Rows of a thread must go on touching.
    device = events.is_device_work
    end[device] = start[device] + (events.end - events.start)[device]
    return replace(events, start=start, end=end)


def member_column(matches: identity.Matches, columns: Mapping[int, np.ndarray]) -> np.ndarray:
    """A column of the ranks' operations, for each matched member.

    Args:
        matches: matched operations.
        columns: rank -> values, shape ``(operations,)``.

    Returns:
        Shape ``(members,)``.
    """
    ranks = np.array(sorted(columns), np.int64)
    blocks = [columns[r] for r in ranks.tolist()]
    first = np.concatenate([[0], np.cumsum([len(b) for b in blocks])]).astype(np.int64)
    rows: np.ndarray = np.concatenate(blocks)[
        first[np.searchsorted(ranks, matches.rank)] + matches.operation
    ]
    return rows


def member_times(
    tables: Mapping[int, tuple[RankEvents, RankCollectives]], matches: identity.Matches, which: str
) -> I64:
    """Start or end of each matched member's work row."""
    columns = {r: getattr(e, which)[c.work] for r, (e, c) in tables.items() if len(e.kind)}
    none = np.zeros(0, np.int64)
    return member_column(matches, {r: columns.get(r, none) for r in tables})


def split_members(
    tables: Mapping[int, tuple[RankEvents, RankCollectives]], matches: identity.Matches
) -> rendezvous.Split:
    """Waiting and execution of each matched member, from times on the job's clock."""
    root = member_column(matches, {r: c.peer for r, (_, c) in tables.items()})
    start, end = (member_times(tables, matches, which) for which in ("start", "end"))
    return rendezvous.split(matches, start, end, root)


def members_by_rank(matches: identity.Matches) -> dict[int, I64]:
    """Rank -> its members, ascending."""
    order = np.argsort(matches.rank, kind="stable")
    ranks, first = np.unique(matches.rank[order], return_index=True)
    parts = np.split(order, first[1:])
    return dict(zip(ranks.tolist(), parts, strict=True)) if len(ranks) else {}


def execution(
    events: RankEvents, collectives: RankCollectives, operation: I64, exec_ns: I64
) -> I64:
    """Execution of each communication row of a rank: from its match, else all of its duration.

    Args:
        events: the rank's events on the job's clock.
        collectives: its operations.
        operation: its matched operations.
        exec_ns: their execution without waiting.

    Returns:
        Shape ``(rows,)``, -1 for rows that do not communicate.
    """
    work = collectives.work[collectives.work >= 0]
    column = np.full(len(events.kind), -1, np.int64)
    column[work] = events.end[work] - events.start[work]
    # A fused kernel has several partners: it executes from the last one's arrival.
    np.minimum.at(column, collectives.work[operation], exec_ns)
    return column


def collective_table(matches: identity.Matches, size: np.ndarray) -> Collectives:
    """The graph's table of matched operations.

    Args:
        matches: matched operations.
        size: bytes of each member, -1 unknown.
    """
    largest = np.maximum.reduceat(size, matches.ptr[:-1]) if len(size) else size
    return Collectives(matches.kind, matches.group, largest, matches.confidence)
