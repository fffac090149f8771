"""Whose records those of the NCCL plugins are: they tell ranks within communicators only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from foretrace.traces.groups import GroupTable, ranks_from


@dataclass(frozen=True, slots=True)
class Member:
    """One device's place in one communicator.

    Attributes:
        who: the device: whatever tells it from all others.
        comm: communicator id.
        rank: its number there.
        size: members of the communicator.
        name: what the communicator is called; "" where it has no name.
    """

    who: Hashable
    comm: int
    rank: int
    size: int
    name: str = ""


@dataclass(slots=True)
class Ranks:
    """Global ranks of all devices, and who belongs to which communicator.

    Attributes:
        of: device -> global rank.
        world_size: ranks of the job; 0 unknown.
        rank_from: how the ranks were found.
        comms: communicator -> its members by device.
    """

    of: dict[Hashable, int]
    world_size: int
    rank_from: str
    comms: dict[int, dict[Hashable, Member]] = field(default_factory=dict)

    def groups(self, who: Hashable) -> tuple[GroupTable, dict[int, int]]:
        """The groups of one device, and the row of each of its communicators."""
        table = GroupTable(self.world_size, self.of[who])
        rows = {}
        for comm, members in self.comms.items():
            if who not in members:
                continue
            own = members[who]
            numbers = {m.rank: self.of[m.who] for m in members.values()}
            known = [numbers[number] for number in sorted(numbers)]
            if own.size == self.world_size:
                known = ranks_from(0, own.size)
            ranks = known if len(known) == own.size else []
            rows[comm] = table.row(hex(comm), ranks, own.size, own.name)
        return table, rows


def find_ranks(members: Iterable[Member]) -> Ranks:
    """Global ranks: the numbers in the largest communicator, which is taken for the world.

    Where several communicators are that large, or devices belong to none that is, the
    devices are numbered in order.
    """
    comms: dict[int, dict[Hashable, Member]] = {}
    everyone: dict[Hashable, None] = {}
    for member in members:
        known = comms.setdefault(member.comm, {})
        if member.name or member.who not in known:
            known[member.who] = member
        everyone[member.who] = None
    largest = max((m.size for c in comms.values() for m in c.values()), default=0)
    worlds = [c for c in comms.values() if next(iter(c.values())).size == largest]
    if len(worlds) == 1:
        of = {m.who: m.rank for m in worlds[0].values()}
        if len(set(of.values())) == len(everyone):
            return Ranks(of, largest, "collectives", comms)
    of = {who: i for i, who in enumerate(sorted(everyone, key=str))}
    return Ranks(of, 0, "order", comms)
