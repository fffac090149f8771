"""Several sources of one rank as one: the first says when, the others fill in what it lacks.

Events are the same where their record-function ids are. Communication operations are the same
where their calls are, else where group and sequence number agree, else in their order, where
both sides have as many of one group, kind and size. Where two sources differ, the first one
stays and the difference is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foretrace.traces import arrow
from foretrace.traces.groups import GroupTable
from foretrace.traces.importers.partners import partners
from foretrace.traces.importers.tables import NO_TIMES, TIMES_LABEL, table_of
from foretrace.traces.manifest import Dropped, GroupInfo, RankInfo
from foretrace.traces.salvage import Losses
from foretrace.traces.schema import COLLECTIVES
from foretrace.traces.store import RankTables

I64 = NDArray[np.int64]
Row = dict[str, Any]

_EVENT_COLUMNS = ("shapes", "dtypes", "inputs", "sequence", "fwd_thread")
_COMPARED = (
    *("kind", "group_size", "group_rank", "bytes_in", "bytes_out", "dtype", "seq", "peer"),
    *("algorithm", "protocol", "channels"),
)
_FILLED = (*_COMPARED, "comm_id", "is_async", "exec_ns")
_NCCL_SOURCES = ("nccl", "inspector")
_LEVELS, _BY_PLACE = 7, 4  # keys of an operation, and the first of them without a number
_VAGUE_KINDS = ("unknown", "send_recv")
_ABSENT = {c.name: c.absent for c in COLLECTIVES}


def join(base: RankTables, extra: RankTables) -> RankTables:
    """One rank out of two sources of it; times are those of ``base``.

    Args:
        base: the source that has the better times.
        extra: what is known besides; its events fill in columns of events that both have.
    """
    losses, name = Losses(), short_name(extra.info)
    partner = partners(base.events, extra.events)
    unknown = len(extra.events) - int((partner >= 0).sum())
    losses.add(f"events of {name} without a counterpart (left out)", unknown)
    groups = GroupTable(base.info.world_size or extra.info.world_size, base.info.rank)
    for group in base.info.groups:
        groups.row(group.name, list(group.ranks), group.size, group.description)
    collectives = _join_collectives(base, extra, partner, groups, losses)
    info = _join_info(base.info, extra.info, groups.groups, losses)
    return RankTables(
        info,
        _fill_events(base.events, extra.events, partner),
        collectives,
        base.memory if base.memory is not None else extra.memory,
        base.dependencies
        if base.dependencies is not None
        else _moved(extra.dependencies, partner, len(extra.events)),
    )


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    values: NDArray[Any] = table[name].to_numpy()
    return values


def _fill_events(ours: pa.Table, theirs: pa.Table, partner: I64) -> pa.Table:
    """Our events with what theirs know besides."""
    if not (partner >= 0).any():
        return ours
    for name in _EVENT_COLUMNS:
        place = ours.schema.get_field_index(name)
        field = ours.schema.field(name)
        mine, other = ours[name].combine_chunks(), theirs[name].combine_chunks()
        if pa.types.is_dictionary(field.type):
            filled = _filled_texts(mine, other, partner)
        else:
            values = mine.to_numpy()
            missing = (values == -1) & (partner >= 0)
            better = np.where(missing, other.to_numpy()[partner], values)
            filled = arrow.numbers(better, field.type)
        ours = ours.set_column(place, field, filled)
    return ours


def _filled_texts(mine: Any, other: Any, partner: I64) -> pa.DictionaryArray:
    texts, more = mine.dictionary.to_pylist(), other.dictionary.to_pylist()
    codes, theirs = mine.indices.to_numpy(), other.indices.to_numpy()
    empty = np.array([not t for t in texts], np.bool_)
    missing = (empty[codes] if len(empty) else np.ones(len(codes), np.bool_)) & (partner >= 0)
    codes = np.where(missing, theirs[partner] + len(texts), codes)
    used, codes = np.unique(codes, return_inverse=True)
    return arrow.coded(codes, [(texts + more)[c] for c in used.tolist()])


def _moved(edges: pa.Table | None, partner: I64, rows: int) -> pa.Table | None:
    """Their dependencies between events that are ours too."""
    if edges is None or not (partner >= 0).any():
        return None
    place = _inverse(partner, rows)
    source, target = place[_column(edges, "source")], place[_column(edges, "target")]
    kept = np.flatnonzero((source >= 0) & (target >= 0))
    kinds = edges["kind"].to_pylist()
    columns = {
        "source": source[kept],
        "target": target[kept],
        "kind": [kinds[i] for i in kept.tolist()],
    }
    return table_of("dependencies", columns) if len(kept) else None


def _join_collectives(
    base: RankTables, extra: RankTables, partner: I64, groups: GroupTable, losses: Losses
) -> pa.Table:
    name = short_name(extra.info)
    ours, theirs = base.collectives.to_pylist(), extra.collectives.to_pylist()
    place = [groups.row(g.name, list(g.ranks), g.size, g.description) for g in extra.info.groups]
    if not ours or not theirs:
        losses.add(f"operations of {name} without a counterpart (left out)", len(theirs))
        return base.collectives
    calls = np.where(partner >= 0, np.arange(len(partner)), -1)
    pairs = _pairs(
        _keys(base.info, ours, calls),
        _keys(extra.info, theirs, _inverse(partner, len(extra.events))),
    )
    for i, j in pairs.items():
        _fill(ours[i], theirs[j], losses, name)
        group = place[theirs[j]["group"]] if theirs[j]["group"] >= 0 else -1
        if ours[i]["group"] < 0:
            ours[i]["group"] = group
        elif group >= 0:
            _compare_groups(ours[i], groups.groups[group], groups, losses, name)
    for i in pairs:
        _fill_from_group(ours[i], groups)
    losses.add(f"operations of {name} without a counterpart (left out)", len(theirs) - len(pairs))
    return table_of("collectives", {c.name: [row[c.name] for row in ours] for c in COLLECTIVES})


def _compare_groups(
    row: Row, theirs: GroupInfo, groups: GroupTable, losses: Losses, name: str
) -> None:
    mine = groups.groups[row["group"]].ranks
    if mine and theirs.ranks and mine != theirs.ranks:
        losses.add(
            f"group differs from {name} (the first source's kept)",
            1,
            f"{row['kind']} {row['group_key']} #{row['seq']}: {mine} against {theirs.ranks}",
        )


def _fill_from_group(row: Row, groups: GroupTable) -> None:
    if row["group"] < 0:
        return
    group = groups.groups[row["group"]]
    row["group_key"] = row["group_key"] or group.name
    if row["group_size"] < 0 and group.size:
        row["group_size"] = group.size
    if row["group_rank"] < 0 and groups.rank in group.ranks:
        row["group_rank"] = group.ranks.index(groups.rank)


def _fill(ours: Row, theirs: Row, losses: Losses, name: str) -> None:
    for column in _FILLED:
        mine, other, absent = ours[column], theirs[column], _ABSENT[column]
        if other == absent or (column == "kind" and other in _VAGUE_KINDS):
            continue
        if mine == absent or (column == "kind" and mine in _VAGUE_KINDS):
            ours[column] = other
        elif column == "seq" and _counts_like(ours) != _counts_like(theirs):
            continue
        elif column in _COMPARED and mine != other:
            losses.add(
                f"{column} differs from {name} (the first source's kept)",
                1,
                f"{ours['kind']} {ours['group_key']} #{ours['seq']}: {mine} against {other}",
            )
    for column in ("in_splits", "out_splits"):
        ours[column] = ours[column] or theirs[column]


def _inverse(partner: I64, count: int) -> I64:
    """For each of their events the row of ours that is the same, -1 for none."""
    here = np.flatnonzero(partner >= 0)
    rows = np.full(count, -1, np.int64)
    rows[partner[here]] = here
    return rows


def _keys(info: RankInfo, rows: list[Row], calls: I64) -> list[list[Hashable]]:
    """Under which names each operation could be known to another source, best first.

    Args:
        info: of the rank.
        rows: its operations.
        calls: for each event a number that both sources know it by, or -1.
    """
    keys: list[list[Hashable]] = []
    for row in rows:
        call = row["call_event"]
        call_id = int(calls[call]) if call >= 0 else -1
        kind, members = row["kind"], _members(info, row)
        # a number means the same operation only to those who count alike
        number = (_counts_like(row), row["seq"], row["p2p"]) if row["seq"] >= 0 else None
        size = max(row["bytes_in"], row["bytes_out"])
        keys.append(
            [
                ("call", call_id) if call_id >= 0 else None,
                ("comm", row["comm_id"], kind, number) if row["comm_id"] and number else None,
                ("key", row["group_key"], number) if row["group_key"] and number else None,
                ("ranks", members, kind, number) if members and number else None,
                ("comm", row["comm_id"], kind, size) if row["comm_id"] else None,
                ("ranks", members, kind, size) if members else None,
                ("size", row["group_size"], kind, size),
            ]
        )
    return keys


def _counts_like(row: Row) -> str:
    """NCCL numbers each kind of operation by itself, PyTorch all of a group together."""
    return "nccl" if row["source"] in _NCCL_SOURCES else "torch"


def _members(info: RankInfo, row: Row) -> tuple[int, ...]:
    group = info.groups[row["group"]] if 0 <= row["group"] < len(info.groups) else None
    return tuple(group.ranks) if group else ()


def _pairs(ours: list[list[Hashable]], theirs: list[list[Hashable]]) -> dict[int, int]:
    """Our operations and theirs, by the best key that both sides have; each is used once.

    A key that occurs several times stands for as many operations, in their order. Keys without
    a number count only where both sides have as many operations of them.
    """
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for level in range(_LEVELS):
        open_ours = [i for i in range(len(ours)) if i not in pairs]
        open_theirs = [j for j in range(len(theirs)) if j not in taken]
        numbered_ours = _numbered(ours, open_ours, level)
        by_key = dict(_numbered(theirs, open_theirs, level))
        counts = [Counter(k for (k, _), _ in n) for n in (numbered_ours, by_key.items())]
        for key, i in numbered_ours:
            by_place = level >= _BY_PLACE and counts[0][key[0]] != counts[1][key[0]]
            if key in by_key and not by_place:
                pairs[i] = by_key[key]
                taken.add(by_key[key])
    return pairs


def _numbered(
    keys: list[list[Hashable]], rows: Iterable[int], level: int
) -> list[tuple[tuple[Hashable, int], int]]:
    seen: Counter[Hashable] = Counter()
    numbered: list[tuple[tuple[Hashable, int], int]] = []
    for row in rows:
        key = keys[row][level]
        if key is not None:
            numbered.append(((key, seen[key]), row))
            seen[key] += 1
    return numbered


def _join_info(
    base: RankInfo, extra: RankInfo, groups: list[GroupInfo], losses: Losses
) -> RankInfo:
    name = short_name(extra)
    for field in ("world_size", "host", "backend", "device_name"):
        mine, other = getattr(base, field), getattr(extra, field)
        if mine and other and mine != other:
            losses.add(
                f"{field} differs from {name} (the first source's kept)",
                1,
                f"{mine} against {other}",
            )
    return msgspec.structs.replace(
        base,
        world_size=base.world_size or extra.world_size,
        host=base.host or extra.host,
        backend=base.backend or extra.backend,
        device_name=base.device_name or extra.device_name,
        source=f"{base.source} + {extra.source}",
        groups=groups,
        dropped=[*base.dropped, *_of_source(extra), *losses.as_list()],
        versions={**extra.versions, **base.versions},
        labels={**{k: v for k, v in extra.labels.items() if k != TIMES_LABEL}, **base.labels},
    )


def _of_source(extra: RankInfo) -> list[Dropped]:
    """What the second source lacks; that it has no times is of no matter here."""
    name = short_name(extra)
    return [
        msgspec.structs.replace(d, reason=f"{d.reason} [{name}]")
        for d in extra.dropped
        if not d.reason.startswith(NO_TIMES)
    ]


def short_name(info: RankInfo) -> str:
    """What to call a source in a line about it."""
    return info.source.rsplit("/", 1)[-1] or "the other source"
