"""One rank's communication operations, split by the communicator that carries them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.columns import RankCollectives, RankEvents
from foretrace.replay.build.messages import DIRECTED
from foretrace.replay.graph import I8, I32, I64
from foretrace.traces.schema import COLLECTIVE_KINDS

SEND_RECV = COLLECTIVE_KINDS.index("send_recv")


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
        weak: whether they are kernels that communicate without a record.
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
    weak: bool = False


def communicators(
    rank: int, events: RankEvents, c: RankCollectives, groups: list[tuple[int, ...]]
) -> list[Communicator]:
    """Split one rank's operations by communicator.

    Where the group is not recorded, a device stream stands for the communicator: NCCL process
    groups use one stream each.
    """
    has_work = c.work >= 0
    stream, device = events.stream[c.work], events.device[c.work]
    members: dict[tuple[object, ...], list[int]] = defaultdict(list)
    # What was never seen to run has no times; messages with a peer are paired one by one.
    for i in np.flatnonzero(has_work & ~(np.isin(c.kind, DIRECTED) & (c.peer >= 0))).tolist():
        if c.group[i] >= 0 and groups[c.group[i]]:
            members["group", groups[c.group[i]], c.key[i]].append(i)
        elif c.comm_id[i]:
            members["comm", (), f"{c.comm_id[i]:x}"].append(i)
        elif c.weak[i]:
            members["weak", (), f"{device[i]}:{stream[i]}"].append(i)
        else:
            members["stream", (), f"{device[i]}:{stream[i]}"].append(i)
    result = []
    for key, rows in members.items():
        at = np.array(rows, np.int64)
        work = c.work[at]
        p2p = bool(c.p2p[at].all())
        # One side's send is the other's receive: for matching both are one kind.
        kinds = np.where(c.p2p[at], SEND_RECV, c.kind[at]).astype(np.int8)
        result.append(
            Communicator(
                rank=rank,
                operations=at,
                kinds=kinds,
                ends=events.end[work],
                starts=events.start[work],
                ranks=key[1],  # type: ignore[arg-type]
                handle=f"{key[0]}:{key[2]}" if key[0] in ("group", "comm") else "",
                group_rank=_mode(c.group_rank[at]),
                group_size=_mode(c.group_size[at]),
                seq=c.seq[at],
                p2p=p2p,
                weak=key[0] == "weak",
            )
        )
    return result


def _mode(values: I32) -> int:
    """The most frequent recorded value, -1 where none is."""
    known = values[values >= 0]
    return int(np.bincount(known).argmax()) if len(known) else -1
