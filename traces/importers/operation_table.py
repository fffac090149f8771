"""Operation tables (Parquet or CSV): one row per forward, backward, send, receive or collective."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.traces.importers.operation_ranks import (
    WORK_THREAD,
    Messages,
    Operations,
    rank_tables,
)
from foretrace.traces.manifest import Dropped, GroupInfo, RankInfo
from foretrace.traces.optable.layout import TableLayout, layout_names, parse_layout
from foretrace.traces.optable.operations import COLLECTIVES, TRANSFERS, Role
from foretrace.traces.optable.table import OpTable, read_content
from foretrace.traces.store import RankTables

I64 = NDArray[np.int64]

NAME = "operation table"

_COLUMNS = (b"optype", b"start_ts", b"duration", b"step")
_KINDS = {
    Role.SEND: "send",
    Role.RECV: "recv",
    Role.GATHER: "all_gather",
    Role.REDUCE: "reduce_scatter",
    Role.ENDS: "all_reduce",
    Role.ALL: "all_reduce",
}


def sniff(head: bytes, name: str) -> bool:
    """Whether a file is a table that has the columns which every operation table has."""
    del name
    line = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0]
    is_text = (b"," in line or b"\t" in line) and line[:1] not in (b"{", b"[")
    shown = head if head.startswith(b"PAR1") else line if is_text else b""
    return all(column in shown for column in _COLUMNS)


def companions(name: str) -> tuple[str, ...]:
    """Names of the file beside a table that states the layout; the first one there counts."""
    return layout_names(name)


def read(
    chunks: Iterable[bytes], *, python: bool = False, beside: tuple[str, bytes] | None = None
) -> list[RankTables]:
    """Read one table with all its ranks.

    Args:
        chunks: the content, in pieces of any size.
        python: has no meaning here.
        beside: name and content of the file that states the layout, if there is one.

    Raises:
        TraceFormatError, IncompleteTraceError, LayoutError: as ``optable.table.read_table``.
    """
    del python
    content = b"".join(chunks)
    line = content[:4096].split(b"\n", 1)[0]
    ending = "parquet" if content[:4] == b"PAR1" else "tsv" if b"\t" in line else "csv"
    stated = TableLayout()
    if beside is not None:
        stated = parse_layout(beside[1].decode("utf-8", "replace"), beside[0])
    table = read_content(content, f"table.{ending}", stated)
    rank, where = _ranks(table)
    ops = _operations(table, rank)
    size = int(rank.max()) + 1
    info = RankInfo(
        rank=0,
        world_size=size if len(np.unique(rank)) == size else 0,
        rank_from=where,
        layout=_sizes(table.layout),
        dropped=[Dropped(reason=p, count=1) for p in table.problems],
    )
    return rank_tables(ops, _messages(table, rank), info)


def _sizes(layout: TableLayout) -> dict[str, int]:
    """The known sizes; a worker's tensor ranks are one rank here, whatever their number."""
    named = {f.name: getattr(layout, f.name) for f in fields(layout) if f.name != "world"}
    always = ("dp", "pp")
    return {name: size for name, size in named.items() if size > (0 if name in always else 1)}


def _ranks(table: OpTable) -> tuple[I64, str]:
    """Global rank of each row; the worker's number where the table states none."""
    if (table.rank >= 0).all():
        return table.rank.astype(np.int64), "column rank"
    worker = table.stage.astype(np.int64) * table.layout.dp + table.dp
    return worker, "order"


def _operations(table: OpTable, rank: I64) -> Operations:
    details = np.stack([table.micro_batch, table.chunk], axis=1)
    used, inverse = np.unique(details, axis=0, return_inverse=True)
    return Operations(
        rank=rank,
        step=table.step.astype(np.int64),
        name=table.op.astype(np.int64),
        names=tuple(o.name for o in table.operations),
        thread=_threads(table),
        start_ns=table.start_ns,
        dur_ns=table.end_ns - table.start_ns,
        detail=inverse.reshape(-1),
        details=tuple(_detail(*d) for d in used.tolist()),
    )


def _detail(micro_batch: int, chunk: int) -> str:
    known = (("micro_batch", micro_batch), ("chunk", chunk))
    words = [f'"{name}":{value}' for name, value in known if value >= 0]
    return "{" + ",".join(words) + "}" if words else ""


def _threads(table: OpTable) -> I64:
    """Lane of each row: work, then one for each direction of transfers, then collectives.

    Transfers of both directions run side by side with each other and with work.
    """
    backward = np.array([o.backward for o in table.operations], np.int64)[table.op]
    transfer = WORK_THREAD + 1 + 2 * backward + (table.role == Role.RECV)
    lane = np.where(np.isin(table.role, TRANSFERS), transfer, WORK_THREAD)
    threads: I64 = np.where(np.isin(table.role, COLLECTIVES), WORK_THREAD + 5, lane)
    return threads


def _messages(table: OpTable, rank: I64) -> Messages:
    """Groups, peers and numbers of the rows that communicate."""
    of_place = dict(
        zip(zip(table.dp.tolist(), table.stage.tolist(), strict=True), rank.tolist(), strict=True)
    )
    row = np.flatnonzero(np.isin(table.role, (*TRANSFERS, *COLLECTIVES)))
    backward = np.array([o.backward for o in table.operations], np.bool_)[table.op[row]]
    sends = table.role[row] == Role.SEND
    onward = np.where(backward == sends, -1, 1)  # to or from which stage, seen from this one
    transfer = np.isin(table.role[row], TRANSFERS)
    peer_stage = (table.stage[row] + onward) % table.layout.pp
    peers = zip(table.dp[row].tolist(), peer_stage.tolist(), strict=True)
    peer = np.array([of_place.get(p, -1) for p in peers], np.int64)
    groups, group = _groups(table, row, of_place)
    return Messages(
        row=row,
        kind=[_KINDS[Role(r)] for r in table.role[row].tolist()],
        peer=np.where(transfer, peer, -1),
        group=group,
        seq=_numbers((rank[row], group, table.op[row])),
        groups=groups,
    )


def _groups(
    table: OpTable, row: I64, of_place: dict[tuple[int, int], int]
) -> tuple[list[GroupInfo], I64]:
    """All groups, and the one that each row's operation belongs to."""
    places = np.stack([table.role[row], table.dp[row], table.stage[row]], axis=1)
    used, inverse = np.unique(places, axis=0, return_inverse=True)
    known: dict[tuple[int, ...], int] = {}
    infos: list[GroupInfo] = []
    codes = []
    for role, dp, stage in used.tolist():
        name, members = _members(Role(role), dp, stage, of_place)
        if members not in known:
            known[members] = len(infos)
            ranks = list(members)
            infos.append(GroupInfo(name=name, description=name, ranks=ranks, size=len(ranks)))
        codes.append(known[members])
    return infos, np.array(codes, np.int64)[inverse.reshape(-1)]


def _members(
    role: Role, dp: int, stage: int, of_place: dict[tuple[int, int], int]
) -> tuple[str, tuple[int, ...]]:
    """Name and global ranks of the group that a row of this role belongs to."""
    last = max(s for _, s in of_place)
    if role in TRANSFERS:
        return f"pipeline {dp}", _those(of_place, lambda d, s: d == dp)
    if role is Role.ENDS:
        return f"ends {dp}", _those(of_place, lambda d, s: d == dp and s in (0, last))
    if role is Role.ALL:
        return "all", _those(of_place, lambda d, s: True)
    return f"stage {stage}", _those(of_place, lambda d, s: s == stage)


def _those(of_place: dict[tuple[int, int], int], wanted: Any) -> tuple[int, ...]:
    return tuple(sorted(rank for place, rank in of_place.items() if wanted(*place)))


def _numbers(keys: tuple[NDArray[Any], ...]) -> I64:
    """Number of each row among those before it that have the same keys."""
    count = len(keys[0])
    order = np.lexsort((np.arange(count), *keys))
    changes = np.zeros(count, np.bool_)
    for key in keys:
        changes[1:] |= np.diff(key[order]) != 0
    head = np.maximum.accumulate(np.where(changes, np.arange(count), 0))
    numbers = np.empty(count, np.int64)
    numbers[order] = np.arange(count) - head
    return numbers
