"""Which operations of several ranks are one collective: by identity, never by bare position.

Best first: the group's recorded ranks, the communicator id, and where a trace records neither,
the layout that fits what is known of each communicator: the rank's number in the group, the
group's size, the sequence of operation kinds, and how well the operations' ends agree.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.communicators import Communicator
from foretrace.replay.build.layouts import search_layouts
from foretrace.replay.build.lineup import line_up
from foretrace.replay.build.messages import SEND, Messages, pair_messages
from foretrace.replay.graph import F32, I8, I32, I64

BY_LAYOUT, WEAK = 0.7, 0.4
"""How sure a match is that rests on the layout, and one of kernels without any record."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Collectives matched across ranks. Members are CSR: shape ``(members,)``.

    Attributes:
        ptr: members of match i are ``ptr[i]:ptr[i + 1]``.
        rank: global rank of each member.
        operation: row of the member's collectives.
        kind: kind of each match.
        p2p: whether each match is point-to-point.
        weak: whether its kernels communicate without a record.
        group: index into ``groups``.
        confidence: 0 to 1.
        groups: global ranks of each group.
        absent: members of each match's group that were not recorded, shape as ``kind``.
        unmatched: rank -> rows of operations without a counterpart.
    """

    ptr: I64
    rank: I32
    operation: I64
    kind: I8
    p2p: np.ndarray
    weak: np.ndarray
    group: I32
    confidence: F32
    groups: tuple[tuple[int, ...], ...]
    absent: I32
    unmatched: dict[int, I64]

    def stood_in(self) -> dict[int, int]:
        """Rank -> its operations in which others stand in for members that were not recorded."""
        partial = self.rank[np.repeat(self.absent > 0, np.diff(self.ptr))]
        ranks, count = np.unique(partial, return_counts=True)
        return dict(zip(ranks.tolist(), count.tolist(), strict=True))


def match(comms: list[Communicator], sent: Messages, shift_ns: dict[int, int]) -> Matches:
    """Join the communicators of all ranks, then their operations.

    Args:
        comms: communicators of all ranks.
        sent: sends and receives, which meet one by one.
        shift_ns: clock correction of each rank, added to its times.
    """
    named = [c for c in comms if c.handle]
    sets = [(members, 1.0) for members in _same_group(named)]
    for weak, sure in ((False, BY_LAYOUT), (True, WEAK)):
        nameless = [c for c in comms if not c.handle and c.weak == weak]
        sets += [(members, sure) for members in search_layouts(nameless, shift_ns)]
    return _with_messages(_match_operations(comms, sets), sent)


def _same_group(comms: list[Communicator]) -> list[list[Communicator]]:
    """Communicators of one recorded group.

    Several groups may have the same ranks. Their names tell them apart where all members use
    the same ones (names and pointers may be each rank's own), else the order of first use.
    """
    by_ranks: dict[tuple[int, ...], dict[int, list[Communicator]]] = defaultdict(
        lambda: defaultdict(list)
    )
    alone: dict[str, list[Communicator]] = defaultdict(list)
    for comm in comms:
        if comm.ranks:
            by_ranks[comm.ranks][comm.rank].append(comm)
        else:
            alone[comm.handle].append(comm)
    result = list(alone.values())
    for members in by_ranks.values():
        names = [{c.handle for c in own} for own in members.values()]
        alike = all(n == names[0] for n in names)
        groups: dict[str | int, list[Communicator]] = defaultdict(list)
        for own in members.values():
            for position, comm in enumerate(own):
                groups[comm.handle if alike else position].append(comm)
        result += groups.values()
    return result


def _with_messages(matches: Matches, sent: Messages) -> Matches:
    """Add the pairs of sends and receives; those without a counterpart are unmatched."""
    pairs = pair_messages(sent)
    groups = {g: i for i, g in enumerate(matches.groups)}
    ends = np.sort(np.stack([sent.rank[pairs[:, 0]], sent.rank[pairs[:, 1]]], axis=1), axis=1)
    number = [groups.setdefault((int(a), int(b)), len(groups)) for a, b in ends]
    alone = np.ones(len(sent.rank), bool)
    alone[pairs.ravel()] = False
    unmatched = dict(matches.unmatched)
    for rank in np.unique(sent.rank[alone]):
        rows = sent.operation[alone & (sent.rank == rank)]
        unmatched[int(rank)] = np.union1d(unmatched.get(int(rank), rows[:0]), rows)
    count = np.full(len(pairs), 2)
    flat = pairs.ravel()
    return Matches(
        ptr=np.concatenate([matches.ptr, matches.ptr[-1] + np.cumsum(count)]),
        rank=np.concatenate([matches.rank, sent.rank[flat]]),
        operation=np.concatenate([matches.operation, sent.operation[flat]]),
        kind=np.concatenate([matches.kind, np.full(len(pairs), SEND, np.int8)]),
        p2p=np.concatenate([matches.p2p, np.ones(len(pairs), bool)]),
        weak=np.concatenate([matches.weak, np.zeros(len(pairs), bool)]),
        group=np.concatenate([matches.group, np.array(number, np.int32)]),
        confidence=np.concatenate([matches.confidence, np.ones(len(pairs), np.float32)]),
        groups=tuple(groups),
        absent=np.concatenate([matches.absent, np.zeros(len(pairs), np.int32)]),
        unmatched=unmatched,
    )


def _match_operations(
    comms: list[Communicator], sets: list[tuple[list[Communicator], float]]
) -> Matches:
    """Line up the operations of each group's members: by sequence number, else by order."""
    blocks: list[tuple[np.ndarray, ...]] = []
    groups: dict[tuple[int, ...], int] = {}
    for members, sure in sets:
        if len(members) < 2:
            continue
        first, count = members[0], len(members)
        ranks = tuple(sorted(c.rank for c in members))
        number = groups.setdefault(first.ranks or ranks, len(groups))
        rows, by_seq = line_up(members)
        rows = rows[_of_one_kind(members, rows)]
        own = [c.operations[rows[:, i]] for i, c in enumerate(members)]
        every = np.ones(len(rows), np.int64)
        blocks.append((
            count * every,
            np.tile([c.rank for c in members], len(rows)),
            np.stack(own, axis=1).ravel(),
            first.kinds[rows[:, 0]],
            every * all(c.p2p for c in members),
            every * first.weak,
            every * number,
            every * (sure if by_seq else min(sure, 0.9)),
            every * (max(len(first.ranks), first.group_size) - count),
        ))  # fmt: skip
    types = (np.int64, np.int32, np.int64, np.int8, bool, bool, np.int32, np.float32, np.int32)
    counts, rank, operation, kind, p2p, weak, group, confidence, absent = (
        np.concatenate([np.zeros(0, kept), *(block[i] for block in blocks)]).astype(kept)
        for i, kept in enumerate(types)
    )
    return Matches(
        ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        rank=rank,
        operation=operation,
        kind=kind,
        p2p=p2p,
        weak=weak,
        group=group,
        confidence=confidence,
        groups=tuple(groups),
        absent=absent,
        unmatched=_unmatched(comms, rank, operation),
    )


def _unmatched(comms: list[Communicator], rank: I32, operation: I64) -> dict[int, I64]:
    """Rank -> rows of operations that no match holds.

    Args:
        comms: communicators of all ranks.
        rank: rank of each matched member.
        operation: its operation.
    """
    every: dict[int, list[I64]] = defaultdict(list)
    for c in comms:
        every[c.rank].append(c.operations)
    order = np.argsort(rank, kind="stable")
    ranks = sorted(every)
    first, stop = (np.searchsorted(rank[order], ranks, side=side) for side in ("left", "right"))
    result = {}
    for r, lo, hi in zip(ranks, first, stop, strict=True):
        rest = np.setdiff1d(np.concatenate(every[r]), operation[order[lo:hi]])
        if len(rest):
            result[r] = rest
    return result


def _of_one_kind(members: list[Communicator], rows: I64) -> np.ndarray:
    """Which lined-up operations are of one kind on all members."""
    kinds = np.stack([c.kinds[rows[:, i]] for i, c in enumerate(members)])
    same: np.ndarray = (kinds == kinds[0]).all(axis=0)
    return same
