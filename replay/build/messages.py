"""Sends and receives whose peer is recorded, and which send meets which receive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.columns import RankCollectives
from foretrace.replay.graph import I32, I64
from foretrace.traces.schema import COLLECTIVE_KINDS

SEND, RECV = (COLLECTIVE_KINDS.index(k) for k in ("send", "recv"))
DIRECTED = (SEND, RECV)

ALIKE = 0.6
"""Sequence numbers pair both sides when they find this share of the partners that order finds."""


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
        rows = np.flatnonzero(np.isin(c.kind, DIRECTED) & (c.peer >= 0) & (c.work >= 0))
        known = [numbers.setdefault(g, len(numbers)) if g else -1 for g in groups[rank]]
        group = np.array([*known, -1], np.int32)[c.group[rows]]
        own = np.full(len(rows), rank, np.int32)
        blocks.append((own, rows, c.kind[rows] == SEND, c.peer[rows], group, c.seq[rows]))
    return Messages(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def pair_messages(m: Messages) -> I64:
    """Which send meets which receive: ``(send, receive)`` positions, shape ``(pairs, 2)``.

    The n-th send from one rank to another meets the n-th receive there from it, within one
    process group. n is the recorded sequence number where both sides count alike (NCCL's own
    counts all messages of its rank, whoever the peer), else the position in issue order.
    """
    by_order = _pairs(m, _ordinals(m))
    if (m.seq < 0).any():
        return by_order
    by_number = _pairs(m, m.seq)
    return by_number if len(by_number) >= ALIKE * len(by_order) else by_order


def _pairs(m: Messages, number: I64) -> I64:
    """Pairs of sends and receives with the same ends, group and number."""
    source, target = _ends(m)
    order = np.lexsort((~m.sends, number, m.group, target, source))
    a, b = order[:-1], order[1:]
    meets = m.sends[a] & ~m.sends[b]
    for column in (source, target, m.group, number):
        meets &= column[a] == column[b]
    return np.stack([a[meets], b[meets]], axis=1)


def _ends(m: Messages) -> tuple[I32, I32]:
    """Sending and receiving rank of each message."""
    return np.where(m.sends, m.rank, m.peer), np.where(m.sends, m.peer, m.rank)


def _ordinals(m: Messages) -> I64:
    """Position of each message among those of its direction, in order of sequence and issue."""
    source, target = _ends(m)
    order = np.lexsort((np.arange(len(source)), m.seq, m.sends, m.group, target, source))
    keys = np.stack([source, target, m.group, m.sends.astype(np.int32)])[:, order]
    new = np.ones(len(order), bool)
    new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    first = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    result = np.empty(len(order), np.int64)
    result[order] = np.arange(len(order)) - first
    return result
