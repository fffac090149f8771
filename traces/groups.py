"""Process groups as the profiler writes them: configuration lists and cut-off texts."""

from __future__ import annotations

import re
from typing import Any

from foretrace.traces.manifest import GroupInfo

MOST_RANKS = 1 << 20
"""No job has more ranks; a larger number is damage, and a list of them would fill the memory."""

_NUMBER = re.compile(r"\d+")
_MOST_DIGITS = 18


def ranks_from(first: int, size: int, stride: int = 1) -> list[int]:
    """``size`` ranks at a fixed distance; empty where the numbers cannot be a group's."""
    last = first + (size - 1) * stride
    if size < 1 or size > MOST_RANKS or first < 0 or stride < 1 or last >= MOST_RANKS:
        return []
    return list(range(first, last + 1, stride))


def ranks_of(value: Any) -> list[int]:
    """Ranks out of a list or of its text; empty if it was cut off by ``...`` or is damaged."""
    if isinstance(value, str):
        value = [] if "..." in value else _NUMBER.findall(value)
    if not isinstance(value, list):
        return []
    texts = [str(v) for v in value]
    whole = all(_NUMBER.fullmatch(t) and len(t) <= _MOST_DIGITS for t in texts)
    return [int(t) for t in texts] if whole else []


class GroupTable:
    """The groups of one rank; one row per distinct (name, members).

    Args:
        world_size: ranks of the job, 0 unknown.
        rank: the rank itself, -1 unknown.
    """

    def __init__(self, world_size: int, rank: int = -1) -> None:
        self.groups: list[GroupInfo] = []
        self.rank = rank
        self._world_size = world_size
        self._by_key: dict[tuple[str, tuple[int, ...]], int] = {}
        self._by_name: dict[str, list[int]] = {}

    def add_config(self, config: Any) -> None:
        """Take in ``distributedInfo.pg_config``."""
        for entry in config if isinstance(config, list) else []:
            if not isinstance(entry, dict):
                continue
            name = str(entry.get("pg_name", entry.get("uid", "")))
            size = entry.get("pg_size")
            size = size if isinstance(size, int) else 0
            ranks = ranks_of(entry.get("ranks"))
            if not ranks and size and size == self._world_size:
                ranks = ranks_from(0, size)
            self.row(name, ranks, size or len(ranks), str(entry.get("pg_desc", "")))

    def row(self, name: str, ranks: list[int], size: int = 0, description: str = "") -> int:
        """Row of the group, made if new; -1 if neither name nor ranks are known.

        A group named without its ranks is the one of that name, if there is only one of
        that size.
        """
        if not name and not ranks:
            return -1
        size = size if 0 <= size <= MOST_RANKS else 0
        key = (name, tuple(ranks))
        if key in self._by_key:
            return self._by_key[key]
        named = self._by_name.get(name, [])
        if not ranks:
            fitting = [i for i in named if size in (0, self.groups[i].size)]
            if len(fitting) == 1:
                return fitting[0]
        for i in named if ranks else []:
            if not self.groups[i].ranks and self.groups[i].size in (0, len(ranks)):
                self.groups[i].ranks = ranks
                self.groups[i].size = len(ranks)
                self._by_key[key] = i
                return i
        self.groups.append(
            GroupInfo(name=name, description=description, ranks=ranks, size=size or len(ranks))
        )
        row = len(self.groups) - 1
        self._by_key[key] = row
        self._by_name.setdefault(name, []).append(row)
        return row
