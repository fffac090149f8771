"""Which ranks of a world do the same, so that each role is traced once.

Training scripts are the same program on all ranks; what a rank does follows from its place in
the groups. Members of a group that only ever meet in collectives do the same on different data.
Members that send to each other (the stages of a pipeline) do not. So ranks can differ only by
their places in groups with sends, and one rank for each such place is traced. Ranks found to
make the same calls are then one role.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from foretrace.collector.calls import OPERATORS
from foretrace.collector.dryrun.spec import Record
from foretrace.traces.errors import ForetraceError
from foretrace.traces.store import RankTables

MOST_ROLES = 64
"""More places than this are not traced without being asked for."""

Family = tuple[str, int]
"""Description and size of groups that were made alike."""


def family_of(record: Record, members: Sequence[int]) -> Family:
    """The family that a group of ``members`` belongs to."""
    described = [d for d, ranks in record.families if ranks == list(members)]
    return (described[-1] if described else "", len(members))


def families_with_sends(record: Record) -> set[Family]:
    """Families of the groups in which a rank sends or receives."""
    groups = record.recording.groups
    used = {c.group for c in record.recording.calls if OPERATORS[c.operator].p2p}
    return {family_of(record, groups[i].ranks) for i in used}


def places(record: Record, families: set[Family]) -> list[tuple[int, ...]]:
    """The place of every rank of the world in groups of each family.

    Args:
        record: of any rank: each rank makes the groups of all.
        families: families that make a difference.

    Returns:
        For each rank of the world its number within its group of each family, -1 where it is
        in none.
    """
    world = record.recording.world_size
    found = [[-1] * len(families) for _ in range(world)]
    for column, family in enumerate(sorted(families)):
        for description, members in record.families:
            if (description, len(members)) == family:
                for place, rank in enumerate(members):
                    found[rank][column] = place
    return [tuple(row) for row in found]


def candidates(record: Record, families: set[Family]) -> dict[int, list[int]]:
    """One rank for each place, and all ranks that have it.

    Raises:
        ForetraceError: there are too many places to trace them all.
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(places(record, families)):
        alike.setdefault(place, []).append(rank)
    if len(alike) > MOST_ROLES:
        raise ForetraceError(
            f"--ranks unique: ranks send to each other in groups of "
            f"{', '.join(str(size) for _, size in sorted(families))}, which makes {len(alike)} "
            f"places; more than {MOST_ROLES} are not traced unasked: name ranks with --ranks"
        )
    return {ranks[0]: ranks for ranks in alike.values()}


def signature(tables: RankTables) -> str:
    """The same for two ranks that call the same operators on the same shapes and collectives.

    Peers count from the rank's own place in the group; what a root alone holds is left aside.
    """
    digest = sha256()
    events = tables.events.select(["kind", "name", "shapes", "dtypes"]).to_pylist()
    for event in events:
        if event["kind"] == "host_op":
            digest.update(repr((event["name"], event["shapes"], event["dtypes"])).encode())
    groups = tables.info.groups
    for row in tables.collectives.to_pylist():
        group = groups[row["group"]]
        peer = -1
        if row["p2p"] and row["peer"] in group.ranks:
            peer = (group.ranks.index(row["peer"]) - row["group_rank"]) % len(group.ranks)
        size = max(row["bytes_in"], row["bytes_out"])
        splits = (row["in_splits"], row["out_splits"])
        digest.update(repr((row["kind"], len(group.ranks), peer, size, splits)).encode())
    return digest.hexdigest()
