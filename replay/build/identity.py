"""Which operations of several ranks are one collective: by identity, never by bare position.

Best first: the group's recorded ranks, the communicator id, and where a trace records neither,
the layout that fits what is known of each communicator: the rank's number in the group, the
group's size, the sequence of operation kinds, and how well the operations' ends agree.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import product

import numpy as np

from foretrace.replay.build.columns import RankCollectives, RankEvents
from foretrace.replay.graph import F32, I8, I32, I64
from foretrace.traces.schema import COLLECTIVE_KINDS

SEND, RECV = (COLLECTIVE_KINDS.index(k) for k in ("send", "recv"))
DIRECTED = (SEND, RECV)

AGREEMENT_NS = 30_000
"""Ends of one collective agree this well on one host (NCCL on 8 GPUs: 2 to 31 us seen)."""

MAX_SEARCHED_RANKS = 64
"""Without any recorded identity, layouts are searched up to this many ranks."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """One rank's operations on one communicator.

    Attributes:
        rank: global rank.
        operations: rows of the rank's collectives, in issue order.
        kinds: their kinds, shape ``(operations,)``.
        ends: measured ends, ns.
        starts: measured starts, ns.
        ranks: the group's global ranks where recorded, else empty.
        handle: what identifies it beside its ranks (name, communicator id).
        group_rank: own number in the group, -1 unknown.
        group_size: members, -1 unknown.
        seq: sequence numbers, -1 unknown.
        p2p: whether all operations are point-to-point.
    """

    rank: int
    operations: I64
    kinds: I8
    ends: I64
    starts: I64
    ranks: tuple[int, ...]
    handle: str
    group_rank: int
    group_size: int
    seq: I64
    p2p: bool


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


def communicators(
    rank: int, events: RankEvents, c: RankCollectives, groups: list[tuple[int, ...]]
) -> list[Communicator]:
    """Split one rank's operations by communicator.

    Where the group is not recorded, a device stream stands for the communicator: NCCL process
    groups use one stream each.
    """
    has_work = c.work >= 0
    stream = np.where(has_work, events.stream[c.work], -1)
    device = np.where(has_work, events.device[c.work], -1)
    members: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i in np.flatnonzero(~(np.isin(c.kind, DIRECTED) & (c.peer >= 0))).tolist():
        if c.group[i] >= 0 and groups[c.group[i]]:
            members["group", groups[c.group[i]], c.key[i]].append(i)
        elif c.comm_id[i]:
            members["comm", (), f"{c.comm_id[i]:x}"].append(i)
        else:
            members["stream", (), f"{device[i]}:{stream[i]}"].append(i)
    result = []
    for key, rows in members.items():
        at = np.array(rows, np.int64)
        work = c.work[at]
        result.append(
            Communicator(
                rank=rank,
                operations=at,
                kinds=c.kind[at],
                ends=np.where(work >= 0, events.end[work], -1),
                starts=np.where(work >= 0, events.start[work], -1),
                ranks=key[1],  # type: ignore[arg-type]
                handle=f"{key[0]}:{key[2]}" if key[0] != "stream" else "",
                group_rank=_mode(c.group_rank[at]),
                group_size=_mode(c.group_size[at]),
                seq=c.seq[at],
                p2p=bool(c.p2p[at].all()),
            )
        )
    return result


def _mode(values: I32) -> int:
    """The most frequent recorded value, -1 where none is."""
    known = values[values >= 0]
    return int(np.bincount(known).argmax()) if len(known) else -1


@dataclass(frozen=True, slots=True)
class Messages:
    """Sends and receives whose peer is recorded, of all ranks; shape ``(messages,)``.

    Attributes:
        rank: global rank.
        operation: row of the rank's collectives.
        sends: whether it sends.
        peer: global rank of the other side.
        group: number of the process group (same ranks, same number), -1 unknown.
        seq: sequence number, -1 unknown.
    """

    rank: I32
    operation: I64
    sends: np.ndarray
    peer: I32
    group: I32
    seq: I64


def messages(
    tables: dict[int, RankCollectives], groups: dict[int, list[tuple[int, ...]]]
) -> Messages:
    """Sends and receives of all ranks, each rank's in issue order."""
    numbers: dict[tuple[int, ...], int] = {}
    blocks = []
    for rank, c in tables.items():
        rows = np.flatnonzero(np.isin(c.kind, DIRECTED) & (c.peer >= 0))
        known = [numbers.setdefault(g, len(numbers)) if g else -1 for g in groups[rank]]
        group = np.array([*known, -1], np.int32)[c.group[rows]]
        own = np.full(len(rows), rank, np.int32)
        blocks.append((own, rows, c.kind[rows] == SEND, c.peer[rows], group, c.seq[rows]))
    return Messages(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def pair_messages(m: Messages) -> I64:
    """Which send meets which receive: ``(send, receive)`` positions, shape ``(pairs, 2)``.

    The n-th send from one rank to another meets the n-th receive there from it, within one
    process group; n is the recorded sequence number where every message has one.
    """
    source = np.where(m.sends, m.rank, m.peer)
    target = np.where(m.sends, m.peer, m.rank)
    number = m.seq if (m.seq >= 0).all() else _ordinals(source, target, m.group, m.sends)
    order = np.lexsort((~m.sends, number, m.group, target, source))
    a, b = order[:-1], order[1:]
    meets = m.sends[a] & ~m.sends[b]
    for column in (source, target, m.group, number):
        meets &= column[a] == column[b]
    return np.stack([a[meets], b[meets]], axis=1)


def _ordinals(source: I32, target: I32, group: I32, sends: np.ndarray) -> I64:
    """Position of each message among those of its direction, in issue order."""
    order = np.lexsort((np.arange(len(source)), sends, group, target, source))
    keys = np.stack([source, target, group, sends.astype(np.int32)])[:, order]
    new = np.ones(len(order), bool)
    new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    first = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    result = np.empty(len(order), np.int64)
    result[order] = np.arange(len(order)) - first
    return result


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


def search_layouts(comms: list[Communicator], shift_ns: dict[int, int]) -> list[list[Communicator]]:
    """Find the groups of communicators whose ranks are not recorded.

    Candidates are regular sets of ranks (``base + i * stride``, and products of two such). One
    fits when each member's number in the group and the group's size agree with what is recorded,
    the operations are the same, and their ends agree. Larger groups win among equally good ones.
    """
    families: dict[tuple[object, ...], list[Communicator]] = defaultdict(list)
    for comm in comms:
        families[tuple(comm.kinds.tolist()), comm.group_size].append(comm)
    world = sorted({c.rank for c in comms})
    found: list[list[Communicator]] = []
    if len(world) > MAX_SEARCHED_RANKS:
        return found
    shapes = rank_sets(len(world))
    for family in families.values():
        scored = []
        for shape in shapes:
            ranks = tuple(world[i] for i in shape)
            members = _members(family, ranks, shift_ns)
            if members:
                scored.append((_spread(members, shift_ns), members))
        found += _choose(scored)
    return found


def rank_sets(world_size: int) -> list[tuple[int, ...]]:
    """Regular subsets of ``range(world_size)`` with at least two members, largest first."""
    steps = [s for s in range(1, world_size) if world_size % s == 0 or s < world_size]
    lines = {
        tuple(range(0, n * s, s))
        for s in steps
        for n in range(2, world_size // s + 1)
        if world_size % n == 0
    }
    shapes = set(lines)
    for a, b in product(lines, lines):
        if a[1] * len(a) <= b[1]:
            shapes.add(tuple(x + y for y in b for x in a))
    sets = {
        tuple(base + x for x in shape) for shape in shapes for base in range(world_size - shape[-1])
    }
    return sorted(sets, key=lambda s: (-len(s), s))


def _members(
    family: list[Communicator], ranks: tuple[int, ...], shift_ns: dict[int, int]
) -> list[Communicator]:
    """One communicator per rank that may be these ranks' group; empty where none fits."""
    options = []
    for number, rank in enumerate(ranks):
        fit = [
            c
            for c in family
            if c.rank == rank and c.group_rank in (-1, number) and c.group_size in (-1, len(ranks))
        ]
        if not fit:
            return []
        options.append(fit)
    best: list[Communicator] = []
    for first in options[0]:
        near = [min(fit, key=lambda c: _spread([first, c], shift_ns)) for fit in options[1:]]
        chosen = [first, *near]
        if not best or _spread(chosen, shift_ns) < _spread(best, shift_ns):
            best = chosen
    return best


def _spread(members: list[Communicator], shift_ns: dict[int, int]) -> float:
    """Median over operations of how far the members' ends lie apart, ns; p2p: 0."""
    if members[0].p2p or not len(members[0].ends):
        return 0.0
    ends = np.stack([c.ends + shift_ns.get(c.rank, 0) for c in members])
    return float(np.median(ends.max(axis=0) - ends.min(axis=0)))


def _choose(scored: list[tuple[float, list[Communicator]]]) -> list[list[Communicator]]:
    """Disjoint groups: largest first among those whose ends agree about as well as the best."""
    if not scored:
        return []
    best = min(score for score, _ in scored)
    limit = max(3 * best, best + AGREEMENT_NS)
    scored.sort(key=lambda item: (-len(item[1]), item[0]))
    used: set[int] = set()
    chosen = []
    for score, members in scored:
        if score <= limit and not used & {id(c) for c in members}:
            used |= {id(c) for c in members}
            chosen.append(members)
    return chosen


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
