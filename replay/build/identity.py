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
from foretrace.replay.build.messages import SEND, Messages, pair_messages
from foretrace.replay.graph import F32, I8, I32, I64


@dataclass(frozen=True, slots=True)
class Matches:
    """Collectives matched across ranks. Members are CSR: shape ``(members,)``.

    Attributes:
        ptr: members of match i are ``ptr[i]:ptr[i + 1]``.
        rank: global rank of each member.
        operation: row of the member's collectives.
        kind: kind of each match.
        group: index into ``groups``.
        confidence: 0 to 1.
        groups: global ranks of each group.
        unmatched: rank -> rows of operations without a counterpart.
    """

    ptr: I64
    rank: I32
    operation: I64
    kind: I8
    group: I32
    confidence: F32
    groups: tuple[tuple[int, ...], ...]
    unmatched: dict[int, I64]


def match(comms: list[Communicator], sent: Messages, shift_ns: dict[int, int]) -> Matches:
    """Join the communicators of all ranks, then their operations.

    Args:
        comms: communicators of all ranks.
        sent: sends and receives, which meet one by one.
        shift_ns: clock correction of each rank, added to its times.
    """
    named: dict[tuple[str, tuple[int, ...]], list[Communicator]] = defaultdict(list)
    nameless = []
    for comm in comms:
        if comm.handle:
            named[comm.handle, comm.ranks].append(comm)
        else:
            nameless.append(comm)
    sets = [(members, 1.0) for members in named.values()]
    sets += [(members, 0.7) for members in search_layouts(nameless, shift_ns)]
    return _with_messages(_match_operations(comms, sets), sent)


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
        group=np.concatenate([matches.group, np.array(number, np.int32)]),
        confidence=np.concatenate([matches.confidence, np.ones(len(pairs), np.float32)]),
        groups=tuple(groups),
        unmatched=unmatched,
    )


def _match_operations(
    comms: list[Communicator], sets: list[tuple[list[Communicator], float]]
) -> Matches:
    """Line up the operations of each group's members: by sequence number, else by order."""
    counts: list[int] = []
    rank: list[I32] = []
    operation: list[I64] = []
    kind: list[int] = []
    group: list[int] = []
    confidence: list[float] = []
    groups: dict[tuple[int, ...], int] = {}
    matched: dict[int, I64] = defaultdict(lambda: np.zeros(0, np.int64))
    for members, sure in sets:
        if len(members) < 2:
            continue
        ranks = tuple(sorted(c.rank for c in members))
        number = groups.setdefault(members[0].ranks or ranks, len(groups))
        numbers, by_seq = _positions(members)
        common = sorted(set.intersection(*(set(n) for n in numbers)))
        for key in common:
            at = [n[key] for n in numbers]
            counts.append(len(members))
            rank.append(np.array([c.rank for c in members], np.int32))
            operation.append(
                np.array([c.operations[i] for c, i in zip(members, at, strict=True)], np.int64)
            )
            kind.append(int(members[0].kinds[at[0]]))
            group.append(number)
            confidence.append(sure if by_seq else min(sure, 0.9))
        for c, n in zip(members, numbers, strict=True):
            done = np.array([n[key] for key in common], np.int64)
            matched[c.rank] = np.concatenate([matched[c.rank], c.operations[done]])
    unmatched = {}
    for r in sorted({c.rank for c in comms}):
        every = np.concatenate([c.operations for c in comms if c.rank == r])
        rest = np.setdiff1d(every, matched[r])
        if len(rest):
            unmatched[r] = rest
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Matches(
        ptr=ptr,
        rank=np.concatenate(rank) if rank else np.zeros(0, np.int32),
        operation=np.concatenate(operation) if operation else np.zeros(0, np.int64),
        kind=np.array(kind, np.int8),
        group=np.array(group, np.int32),
        confidence=np.array(confidence, np.float32),
        groups=tuple(groups),
        unmatched=unmatched,
    )


def _positions(members: list[Communicator]) -> tuple[list[dict[int, int]], bool]:
    """Key -> operation index for each member: the sequence number where all have one."""
    by_seq = all((c.seq >= 0).all() and len(np.unique(c.seq)) == len(c.seq) for c in members)
    if by_seq:
        return [{int(s): i for i, s in enumerate(c.seq)} for c in members], True
    shifts = _window_shifts(members)
    return [
        {i + shift: i for i in range(len(c.kinds))}
        for c, shift in zip(members, shifts, strict=True)
    ], False


def _window_shifts(members: list[Communicator]) -> list[int]:
    """How many operations later than the first member's each member's window begins.

    The shift under which most operations are of one kind; ties go to the smallest. Windows that
    start one collective apart must not pair an operation with its neighbour.
    """
    reference = members[0].kinds
    result = [0]
    for comm in members[1:]:
        scores = {s: _agreement(reference, comm.kinds, s) for s in range(-8, 9)}
        result.append(max(scores, key=lambda s: (scores[s], -abs(s))))
    return result


def _agreement(a: I8, b: I8, shift: int) -> float:
    """Share of operations of one kind when ``b[i]`` stands beside ``a[i + shift]``."""
    lo, hi = max(0, shift), min(len(a), len(b) + shift)
    if hi <= lo:
        return 0.0
    same = (a[lo:hi] == b[lo - shift : hi - shift]).sum()
    return float(same) / max(len(a), len(b))
