"""The groups of communicators whose ranks a trace does not record.

Candidates are regular sets of ranks; what is known of each communicator decides: its number in
the group, the group's size, the sequence of operation kinds, and how well the ends agree.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np

from foretrace.replay.build.communicators import Communicator

AGREEMENT_NS = 30_000
"""Ends of one collective agree this well on one host (NCCL on 8 GPUs: 2 to 31 us seen)."""

MAX_SEARCHED_RANKS = 64
"""Without any recorded identity, layouts are searched up to this many ranks."""


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
