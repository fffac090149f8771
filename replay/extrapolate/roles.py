"""Ranks that do the same are one role: the coarsest equitable partition of ranks and groups.

Two ranks have one role if they start out alike (stage, speed, cost of their groups) and each of
their groups holds equally many ranks of every role. Replaying one rank of each role then gives
every rank's times exactly, because a rendezvous waits for the same roles wherever it happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.graph import I64

U64 = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles, numbered in the order of their first ranks.

    Attributes:
        of_rank: role of each rank, shape ``(ranks,)``.
        rank: first rank of each role, shape ``(roles,)``.
        count: ranks of each role, shape ``(roles,)``.
        group: for each kind of group the number of the role's group; roles that meet in one
            group have equal numbers. Shape ``(roles,)`` each.
    """

    of_rank: I64
    rank: I64
    count: I64
    group: dict[str, I64]

    def __len__(self) -> int:
        return len(self.rank)


def fold(traits: Sequence[NDArray[np.generic]], groups: Mapping[str, I64]) -> Roles:
    """Find the roles by colour refinement.

    Args:
        traits: what tells ranks apart to begin with, each of shape ``(ranks,)``.
        groups: for each kind the group of every rank, shape ``(ranks,)``, numbered from 0.
    """
    colour = _numbered(traits)
    while True:
        seen = [_signature(colour, group)[group] for group in groups.values()]
        finer = _numbered([colour, *seen])
        if finer.max(initial=0) == colour.max(initial=0):
            break
        colour = finer
    rank = np.unique(colour, return_index=True)[1].astype(np.int64)
    same = {kind: _numbered([_signature(colour, group)]) for kind, group in groups.items()}
    found = {kind: same[kind][groups[kind][rank]] for kind in groups}
    return Roles(colour, rank, np.bincount(colour).astype(np.int64), found)


def unfolded(groups: Mapping[str, I64]) -> Roles:
    """Every rank a role of its own."""
    first = next(iter(groups.values()))
    each = np.arange(len(first))
    return Roles(each, each, np.ones(len(first), np.int64), dict(groups))


def _signature(colour: I64, group: I64) -> U64:
    """A number for the colours in each group, equal for equal ones; shape ``(groups,)``."""
    total = np.zeros(int(group.max(initial=-1)) + 1, np.uint64)
    np.add.at(total, group, _scrambled(colour))
    return total


def _scrambled(colour: I64) -> U64:
    """64 well-mixed bits for each colour (the finaliser of splitmix64), so that sums tell sets."""
    x = (colour.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _numbered(columns: Sequence[NDArray[np.generic]]) -> I64:
    """A number for each different row of the columns, in the order of their first rows."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, value = np.unique(column, return_inverse=True)
        code = code * (int(value.max(initial=0)) + 1) + value.reshape(-1)
        _, code = np.unique(code, return_inverse=True)
        code = code.reshape(-1).astype(np.int64)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    place = np.empty(len(first), np.int64)
    place[np.argsort(first, kind="stable")] = np.arange(len(first))
    result: I64 = place[code.reshape(-1)]
    return result
