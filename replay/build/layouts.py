"""The groups of communicators whose ranks a trace does not record.

Candidates are regular sets of ranks; what is known of each communicator decides: its number in
the group, the group's size, the sequence of operation kinds, and how well the ends agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations, product

import numpy as np

from foretrace.replay.build.communicators import Communicator

AGREEMENT_NS = 100_000
"""Groups whose ends agree worse than the best one's by more than this are not taken for groups.
NCCL's ends on 8 GPUs of one host were seen to agree within 2 to 31 us."""

MIN_OPERATIONS = 4
"""Communicators with fewer operations are compared by their raw ends, clocks and all."""

MAX_SEARCHED_RANKS = 64
"""Without any recorded identity, layouts are searched up to this many ranks."""


def search_layouts(comms: list[Communicator], shift_ns: dict[int, int]) -> list[list[Communicator]]:
    """Find the groups of communicators whose ranks are not recorded.

    Candidates are the groups of regular meshes (see :func:`rank_sets`). One
    fits when each member's number in the group and the group's size agree with what is recorded,
    the operations are the same, and their ends agree. Larger groups win among equally good ones.
    Point-to-point operations meet in pairs only.

    Args:
        comms: communicators without recorded ranks.
        shift_ns: clock correction of each rank, added to its times.
    """
    families: dict[tuple[object, ...], list[Communicator]] = defaultdict(list)
    for comm in comms:
        families[tuple(comm.kinds.tolist()), comm.group_size].append(comm)
    present = {c.rank for c in comms}
    found: list[list[Communicator]] = []
    if len(present) > MAX_SEARCHED_RANKS:
        return found
    regular = _candidate_sets(present)
    pairs = list(combinations(sorted(present), 2))
    for family in families.values():
        chosen = _fitting(family, regular, shift_ns)
        # A pipeline's first and last stage are no regular set: pairs of what is left over.
        used = {id(c) for members in chosen for c in members}
        rest = [c for c in family if id(c) not in used]
        found += chosen + _fitting(rest, pairs, shift_ns)
    return found


def _fitting(
    family: list[Communicator], sets: Sequence[tuple[int, ...]], shift_ns: dict[int, int]
) -> list[list[Communicator]]:
    """Disjoint groups of a family over the given sets of ranks."""
    scored = []
    for ranks in sets:
        if family and (len(ranks) == 2 or not family[0].p2p):
            members = _members(family, ranks, shift_ns)
            if members:
                scored.append((_spread(members, shift_ns), members))
    return _choose(scored)


def _candidate_sets(present: set[int]) -> list[tuple[int, ...]]:
    """Regular sets of which at least two ranks were recorded, largest first.

    The job may be larger than its highest recorded rank says, so the next power of two counts
    as its size too.
    """
    if not present:
        return []
    size = max(present) + 1
    sets = {*rank_sets(size), *rank_sets(1 << (size - 1).bit_length())}
    seen = [s for s in sets if len(present.intersection(s)) > 1]
    return sorted(seen, key=lambda s: (-len(s), s))


def rank_sets(world_size: int) -> list[tuple[int, ...]]:
    """The groups that meshes over ``range(world_size)`` can have, largest first.

    A mesh axis of size n and stride s (both dividing the world) makes lines ``base + i * s``;
    two axes together make products of two lines.
    """
    axes = [
        (n, s)
        for s in range(1, world_size)
        if world_size % s == 0
        for n in range(2, world_size // s + 1)
        if world_size % (n * s) == 0
    ]
    sets = {_mesh_group(base, (axis,)) for axis in axes for base in range(world_size)}
    for inner, outer in product(axes, axes):
        if inner[0] * inner[1] <= outer[1]:
            sets |= {_mesh_group(base, (inner, outer)) for base in range(world_size)}
    return sorted(sets, key=lambda s: (-len(s), s))


def _mesh_group(member: int, axes: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """The group of one rank along mesh axes given as (size, stride)."""
    ranks = [member]
    for size, stride in axes:
        ranks = [r + (i - r // stride % size) * stride for r in ranks for i in range(size)]
    return tuple(sorted(ranks))


def _members(
    family: list[Communicator], ranks: tuple[int, ...], shift_ns: dict[int, int]
) -> list[Communicator]:
    """One communicator per recorded rank that may be these ranks' group; empty where none fits.

    A group some of whose ranks were not recorded must have the recorded size.
    """
    options = []
    present = {c.rank for c in family}
    partial = not present.issuperset(ranks)
    for number, rank in enumerate(ranks):
        if rank not in present:
            continue
        fit = [
            c
            for c in family
            if c.rank == rank
            and c.group_rank in (-1, number)
            and c.group_size in ((len(ranks),) if partial else (-1, len(ranks)))
        ]
        if not fit:
            return []
        options.append(fit)
    if len(options) < 2:
        return []
    best: list[Communicator] = []
    for first in options[0]:
        near = [min(fit, key=lambda c: _spread([first, c], shift_ns)) for fit in options[1:]]
        chosen = [first, *near]
        if not best or _spread(chosen, shift_ns) < _spread(best, shift_ns):
            best = chosen
    return best


def _spread(members: list[Communicator], shift_ns: dict[int, int]) -> float:
    """Median over operations of how far the members' ends lie apart, ns; p2p: 0.

    With enough operations each member's median difference is taken out first: a clock that is
    off must not hide a group. The raw distance, cut off, then only breaks ties.
    """
    if members[0].p2p or not len(members[0].ends):
        return 0.0
    ends = np.stack([c.ends + shift_ns.get(c.rank, 0) for c in members])
    raw = float(np.median(np.ptp(ends, axis=0)))
    if ends.shape[1] < MIN_OPERATIONS:
        return raw
    apart = ends - ends[0]
    apart = apart - np.median(apart, axis=1, keepdims=True)
    return float(np.median(np.ptp(apart, axis=0))) + 0.01 * min(raw, 1e6)


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
