"""What a rank does for one micro-batch in one stage and phase, as a small graph to be repeated.

Operations follow each other; computations without communication between them are one piece. Beside
this chain run the pieces of sharded state: gathers of a block's parameters ahead of it, and
reductions of its gradients behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.graph import I8, I64
from foretrace.replay.workload.operations import Operations

NONE = -1
_Slot = tuple[int | None, list["Message"]]


class Lane(IntEnum):
    """Streams of a rank."""

    COMPUTE = 0
    BLOCKING = 1  # communication that the computation waits for
    GATHER = 2
    REDUCE = 3
    UP = 4  # to the next stage
    DOWN = 5  # to the stage before
    HOST = 6  # launches operations ahead of the device


@dataclass(frozen=True, slots=True)
class Message:
    """A communication piece: index into ``COLLECTIVE_KINDS``, kind of group, bytes."""

    collective: int
    group: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces, and what each waits for within the template; arrays of shape ``(pieces,)``.

    Attributes:
        lane: ``Lane``.
        dur_ns: duration of a computation; that of a message is found by its price.
        message: index into ``messages``, -1 for a computation.
        messages: the different messages.
        source: piece that has to end, shape ``(edges,)``.
        target: piece that waits for it.
        first: pieces that wait for whatever stands before the template on its rank.
        last: pieces that whatever stands behind it waits for.
        near: pieces that the first gather of what stands behind it waits for.
    """

    lane: I8
    dur_ns: I64
    message: I64
    messages: tuple[Message, ...]
    source: I64
    target: I64
    first: I64
    last: I64
    near: I64

    def __len__(self) -> int:
        return len(self.lane)


@dataclass(frozen=True, slots=True)
class Part:
    """A block within a template.

    Attributes:
        operations: the block's operations.
        dur_ns: duration of each computation, shape ``(ops,)``; communication counts 0.
        phases: phases that run.
        gathers: messages that must have ended before it begins.
        reductions: messages that may begin when it has ended.
        launch_ns: what the host takes for the launches of one operation.
    """

    operations: Operations
    dur_ns: I64
    phases: tuple[int, ...]
    gathers: tuple[Message, ...] = ()
    reductions: tuple[Message, ...] = ()
    launch_ns: float = 0.0


def template(
    parts: Sequence[Part], groups: Sequence[str], ahead: int, blocking: bool = False
) -> Pieces:
    """Chain blocks.

    Where launches take time, one piece of the host stands beside the chain: whatever follows the
    template waits for both.

    Args:
        parts: the blocks in the order in which they run.
        groups: names of the kinds of groups, as ``Operations.group`` counts them.
        ahead: blocks by which parameters are gathered ahead of their use.
        blocking: the host launches nothing before what stands before the template has ended.
    """
    build = _Builder()
    ends: list[list[int]] = []
    known: dict[tuple[int, int, tuple[int, ...]], list[_Slot]] = {}
    host = sum(_launches(part) for part in parts)
    beside = [build.host(round(host), blocking)] if host else []
    for part in parts:
        begin = _gathered(build, part, ends, ahead)
        key = (id(part.operations), id(part.dur_ns), part.phases)
        if key not in known:
            known[key] = _slots(part, groups)
        _chained(build, known[key], begin)
        ends.append(build.tail)
        for message in part.reductions:
            build.beside(Lane.REDUCE, message, build.tail)
    build.tail = build.tail + beside
    return build.pieces(ends[-ahead - 1] if ahead < len(ends) else [])


def _launches(part: Part) -> float:
    """Time of the host for the launches of a block, ns."""
    return part.launch_ns * int(np.isin(part.operations.phase, part.phases).sum())


def _gathered(build: _Builder, part: Part, ends: list[list[int]], ahead: int) -> list[int]:
    """Gathers of a block; they wait until the computation is ``ahead`` blocks before.

    Those of the first ``ahead`` blocks go on behind the gathers of the template before, whatever
    the rank receives meanwhile; the next one begins with the template.
    """
    near = ends[-ahead - 1] if ahead < len(ends) else []
    begins = len(ends) == ahead
    return [build.gather(message, near, begins) for message in part.gathers]


def _chained(build: _Builder, slots: list[_Slot], begin: list[int]) -> None:
    for work, messages in slots:
        build.slot(work, messages, begin)
        begin = []
    if begin:  # a block without operations in these phases still needs its parameters
        build.slot(0, [], begin)


def _slots(part: Part, groups: Sequence[str]) -> list[_Slot]:
    """Work (None for none) and messages of what runs together, in order."""
    ops = part.operations
    result: list[_Slot] = []
    for slot in _together(ops, np.flatnonzero(np.isin(ops.phase, part.phases))):
        talk = [row for row in slot if ops.collective[row] >= 0]
        work = int(sum(part.dur_ns[row] for row in slot if ops.collective[row] < 0))
        messages = [
            Message(int(ops.collective[row]), groups[ops.group[row]], int(ops.bytes[row]))
            for row in talk
        ]
        result.append((work if len(talk) < len(slot) else None, messages))
    return result


def _together(ops: Operations, rows: NDArray[np.int64]) -> list[list[int]]:
    """Rows that run together."""
    slots: list[list[int]] = []
    for row in rows.tolist():
        if slots and ops.beside[row]:
            slots[-1].append(row)
        else:
            slots.append([row])
    return slots


class _Builder:
    """Pieces and edges so far. ``tail``: pieces that the next one of the chain waits for."""

    def __init__(self) -> None:
        self.lane: list[int] = []
        self.dur: list[int] = []
        self.message: list[int] = []
        self.known: dict[Message, int] = {}
        self.edges: list[tuple[int, int]] = []
        self.tail: list[int] = []
        self.first: list[int] = []
        self.latest: dict[int, int] = {}  # last piece of each side lane
        self.plain = False  # the tail is one computation that may still grow

    def add(
        self, lane: int, dur: int, message: Message | None, waits: list[int],
        first: bool | None = None,
    ) -> int:  # fmt: skip
        """A piece; it is a first one if it has nothing to wait for, or as said."""
        piece = len(self.lane)
        self.lane.append(lane)
        self.dur.append(dur)
        place = NONE if message is None else self.known.setdefault(message, len(self.known))
        self.message.append(place)
        self.edges += [(source, piece) for source in waits]
        if not waits if first is None else first:
            self.first.append(piece)
        return piece

    def slot(self, work: int | None, messages: list[Message], begin: list[int]) -> None:
        """The next place of the chain: work, messages, or both together."""
        if self.plain and not messages and not begin and work is not None:
            self.dur[self.tail[0]] += work
            return
        waits, opens = self.tail + begin, not self.tail  # gathers alone are not the chain
        tail = []
        if work is not None:
            tail.append(self.add(Lane.COMPUTE, work, None, waits, opens))
        after = waits
        for message in messages:
            after = [self.add(Lane.BLOCKING, 0, message, after, opens)]
            opens = False
        self.tail = tail + (after if messages else [])
        self.plain = not messages

    def host(self, dur: int, blocking: bool) -> int:
        """The host's piece; it waits for the one of the template before."""
        return self.add(Lane.HOST, dur, None, [], first=blocking)

    def beside(
        self, lane: int, message: Message, waits: list[int], first: bool | None = None
    ) -> int:
        """A piece of a side lane, behind the one before it on that lane."""
        self.plain = False
        before = [self.latest[lane]] if lane in self.latest else []
        self.latest[lane] = self.add(lane, 0, message, waits + before, first)
        return self.latest[lane]

    def gather(self, message: Message, near: list[int], begins: bool) -> int:
        """A gather; it waits for ``near``, or begins with the template, or for neither."""
        return self.beside(Lane.GATHER, message, near, first=begins)

    def pieces(self, near: Sequence[int] = ()) -> Pieces:
        edges = np.array(self.edges, np.int64).reshape(-1, 2)
        return Pieces(
            lane=np.array(self.lane, np.int8),
            dur_ns=np.array(self.dur, np.int64),
            message=np.array(self.message, np.int64),
            messages=tuple(self.known),
            source=edges[:, 0],
            target=edges[:, 1],
            first=np.array(self.first, np.int64),
            last=np.array(self.tail, np.int64),
            near=np.array(near, np.int64),
        )


def chain(before: list[Message], work: int, after: list[Message]) -> Pieces:
    """Messages, a computation, messages, one behind the other."""
    build = _Builder()
    for message in before:
        build.slot(None, [message], [])
    build.slot(work, [], [])
    for message in after:
        build.slot(None, [message], [])
    return build.pieces()


def together(pair: tuple[Pieces, Pieces], blocking: bool = False) -> Pieces:
    """Two templates run at once: computations share the device, messages hide behind them."""
    work, host = (
        int(sum(p.dur_ns[p.lane == lane].sum() for p in pair)) for lane in (Lane.COMPUTE, Lane.HOST)
    )
    build = _Builder()
    beside = [build.host(host, blocking)] if host else []
    messages = [p.messages[m] for p in pair for m in p.message[p.lane == Lane.BLOCKING].tolist()]
    build.slot(work, messages, [])
    for p in pair:
        for lane in (Lane.GATHER, Lane.REDUCE):
            for m in p.message[p.lane == lane].tolist():
                first = False if lane == Lane.GATHER else None
                waits = [] if lane == Lane.GATHER else build.tail
                build.beside(lane, p.messages[m], waits, first)
    build.tail = build.tail + beside
    return build.pieces()
