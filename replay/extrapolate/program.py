"""What one pipeline rank does in a whole step: templates in the order of its schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foretrace.replay.extrapolate.template import NONE, Lane, Message, Pieces
from foretrace.replay.graph import I8, I32, I64
from foretrace.replay.schedule.order import Phase, Schedule
from foretrace.traces.schema import COLLECTIVE_KINDS

SEND_RECV = COLLECTIVE_KINDS.index("send_recv")


@dataclass(frozen=True, slots=True)
class Labelled:
    """A template and what to call its computations."""

    name: str
    pieces: Pieces


@dataclass(frozen=True, slots=True)
class Program:
    """Pieces of one rank over the step; arrays of shape ``(pieces,)`` unless said.

    Attributes:
        lane: ``Lane``.
        name: index into ``names``; of the message for communication.
        names: texts.
        dur_ns: duration of a computation at normal speed, 0 for a message.
        message: index into ``messages``, -1 for a computation.
        messages: the different messages.
        source: piece that has to end, shape ``(edges,)``.
        target: piece that waits for it.
        begin: pieces that wait for nothing on this rank.
        end: last pieces of the step.
        sends: for each row of the schedule the piece that sends its result on, -1 for none;
            shape ``(rows of the rank,)``.
        entry: (row, piece) pairs: pieces that wait for what the row gets from another rank.
    """

    lane: I8
    name: I32
    names: tuple[str, ...]
    dur_ns: I64
    message: I64
    messages: tuple[Message, ...]
    source: I64
    target: I64
    begin: I64
    end: I64
    sends: I64
    entry: tuple[I64, I64]

    def __len__(self) -> int:
        return len(self.lane)


@dataclass(frozen=True, slots=True)
class Transfers:
    """Bytes of one transfer between stages, and whether the computation waits for its end."""

    bytes: int
    blocking: bool


TemplateOf = Callable[[list[int]], Labelled]
"""Template of a place of the order: one row of the schedule, or two that run together."""


def program(
    schedule: Schedule,
    rows: I64,
    leaves: I64,
    template_of: TemplateOf,
    finish: Labelled,
    transfers: Transfers,
) -> Program:
    """Lay out the templates of one pipeline rank.

    Args:
        schedule: the schedule.
        rows: the rank's rows, in order.
        leaves: 1 where a row's result goes to another rank, else 0; shape ``(rows,)``.
        template_of: template of the rows of one place.
        finish: what the rank does at the end of the step.
        transfers: what goes from stage to stage.
    """
    layout = _Layout()
    sends = np.full(len(rows), NONE, np.int64)
    entry: list[tuple[int, int]] = []
    transfer = Message(SEND_RECV, "pp", transfers.bytes)
    for place in _places(schedule, rows):
        first = layout.append(template_of([int(rows[k]) for k in place]))
        for k in place:
            entry += [(k, piece) for piece in first]
            if leaves[k]:
                up = schedule.phase[rows[k]] == Phase.FORWARD
                sends[k] = layout.send(Lane.UP if up else Lane.DOWN, transfer, transfers.blocking)
    layout.append(finish, after_reductions=True)
    pairs = np.array(entry, np.int64).reshape(-1, 2)
    return layout.program(sends, (pairs[:, 0], pairs[:, 1]))


def _places(schedule: Schedule, rows: I64) -> list[list[int]]:
    places: list[list[int]] = []
    for k, row in enumerate(rows.tolist()):
        if schedule.beside[row]:
            places[-1].append(k)
        else:
            places.append([k])
    return places


class _Layout:
    """Templates laid out one behind the other."""

    def __init__(self) -> None:
        self.parts: list[tuple[Pieces, I64, I64, int]] = []
        self.cache: dict[int, tuple[I64, I64]] = {}
        self.names: dict[str, int] = {}
        self.messages: dict[Message, int] = {}
        self.size = 0
        self.tail: list[int] = []
        self.extra: list[tuple[int, int]] = []
        self.latest: dict[int, int] = {}
        self.begin: list[int] = []

    def append(self, labelled: Labelled, after_reductions: bool = False) -> list[int]:
        """Lay out a template; gives its first pieces."""
        pieces, base = labelled.pieces, self.size
        named, talks = self._codes(labelled)
        self.parts.append((pieces, named, talks, base))
        self.size += len(pieces)
        first = [base + int(k) for k in pieces.first]
        waits = list(self.tail)
        if after_reductions and Lane.REDUCE in self.latest:
            waits.append(self.latest[Lane.REDUCE])
        if waits:
            self.extra += [(a, b) for a in waits for b in first]
        else:
            self.begin += first
        self._chain_reductions(pieces, base)
        if len(pieces):
            self.tail = [base + int(k) for k in pieces.last]
        return first

    def send(self, lane: int, message: Message, blocking: bool) -> int:
        """A transfer of what was laid out last."""
        place = self.messages.setdefault(message, len(self.messages))
        name = self.names.setdefault(_name(message), len(self.names))
        empty = np.zeros(0, np.int64)
        one = np.zeros(1, np.int64)
        pieces = Pieces(np.array([lane], np.int8), one, one, (message,), empty, empty, one, one)
        piece = self.size
        self.parts.append((pieces, np.array([name]), np.array([place]), piece))
        self.size += 1
        waits = self.tail + ([self.latest[lane]] if lane in self.latest else [])
        self.extra += [(a, piece) for a in waits]
        self.latest[lane] = piece
        if blocking:
            self.tail = [*self.tail, piece]
        return piece

    def _chain_reductions(self, pieces: Pieces, base: int) -> None:
        rows = np.flatnonzero(pieces.lane == Lane.REDUCE)
        if len(rows):
            if Lane.REDUCE in self.latest:
                self.extra.append((self.latest[Lane.REDUCE], base + int(rows[0])))
            self.latest[Lane.REDUCE] = base + int(rows[-1])

    def _codes(self, labelled: Labelled) -> tuple[I64, I64]:
        """Names and messages of a template's pieces in the numbers of the whole program."""
        key = id(labelled)
        if key not in self.cache:
            pieces = labelled.pieces
            own = self.names.setdefault(labelled.name, len(self.names))
            talk = [self.messages.setdefault(m, len(self.messages)) for m in pieces.messages]
            said = [self.names.setdefault(_name(m), len(self.names)) for m in pieces.messages]
            talks = np.array([*talk, NONE])[pieces.message]
            self.cache[key] = np.array([*said, own])[pieces.message], talks
        return self.cache[key]

    def program(self, sends: I64, entry: tuple[I64, I64]) -> Program:
        """Everything as arrays."""
        inner = [(p.source + base, p.target + base) for p, _, _, base in self.parts]
        extra = np.array(self.extra, np.int64).reshape(-1, 2)
        return Program(
            lane=np.concatenate([p.lane for p, _, _, _ in self.parts]),
            name=np.concatenate([named for _, named, _, _ in self.parts]).astype(np.int32),
            names=tuple(self.names),
            dur_ns=np.concatenate([p.dur_ns for p, _, _, _ in self.parts]),
            message=np.concatenate([talks for _, _, talks, _ in self.parts]),
            messages=tuple(self.messages),
            source=np.concatenate([*(s for s, _ in inner), extra[:, 0]]),
            target=np.concatenate([*(t for _, t in inner), extra[:, 1]]),
            begin=np.array(self.begin, np.int64),
            end=np.array(self.tail, np.int64),
            sends=sends,
            entry=entry,
        )


def _name(message: Message) -> str:
    return f"{COLLECTIVE_KINDS[message.collective]} {message.group}"
