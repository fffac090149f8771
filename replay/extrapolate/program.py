"""What one pipeline rank does in a whole step: templates in the order of its schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.extrapolate.template import NONE, Lane, Message, Pieces
from foretrace.replay.graph import I8, I32, I64
from foretrace.replay.schedule.order import Phase, Schedule
from foretrace.replay.wavefront import ranges
from foretrace.traces.schema import COLLECTIVE_KINDS

SEND_RECV = COLLECTIVE_KINDS.index("send_recv")


@dataclass(frozen=True, slots=True)
class Labelled:
    """A template and what to call its computations.

    Attributes:
        name: of its computations.
        pieces: the template.
        inside: communication that its pieces of computation hold and that no computation hides,
            by kind of group, ns (see ``merge``).
    """

    name: str
    pieces: Pieces
    inside: Mapping[str, int] = field(default_factory=dict)


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
        inside: exposed communication that pieces of computation hold, by kind of group, ns.
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
    inside: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.lane)


@dataclass(frozen=True, slots=True)
class Transfers:
    """Bytes of one transfer between stages, and whether the computation waits for its end."""

    bytes: int
    blocking: bool


TemplateOf = Callable[[list[int]], Labelled]
"""Template of a place of the order: one row of the schedule, or two that run together."""


def program(  # noqa: PLR0917
    schedule: Schedule,
    rows: I64,
    leaves: I64,
    alike: I64,
    template_of: TemplateOf,
    finish: Labelled,
    transfers: Transfers,
) -> Program:
    """Lay out the templates of one pipeline rank.

    Args:
        schedule: the schedule.
        rows: the rank's rows, in order.
        leaves: 1 where a row's result goes to another rank, else 0; shape ``(rows,)``.
        alike: rows with equal numbers have equal templates; shape ``(rows,)``.
        template_of: template of the rows of one place.
        finish: what the rank does at the end of the step.
        transfers: what goes from stage to stage.
    """
    place, second = _places(schedule.beside[rows])
    code = alike[~second] * (int(alike.max()) + 2)
    code[place[second]] += alike[second] + 1
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    starts = np.append(np.flatnonzero(~second), len(rows))
    made = [template_of(rows[starts[k] : starts[k + 1]].tolist()) for k in first.tolist()]
    up = schedule.phase[rows] == Phase.FORWARD
    layout = _Layout([*made, finish], np.append(which.reshape(-1), len(made)), transfers)
    sends = layout.sends(place, leaves > 0, up)
    return layout.program(sends, place)


def _places(beside: NDArray[np.bool_]) -> tuple[I64, NDArray[np.bool_]]:
    """Place of each row, and whether it is the second of its place."""
    return np.cumsum(~beside) - 1, beside


_REST = Labelled(
    "nothing",
    Pieces(
        np.array([Lane.COMPUTE], np.int8), np.zeros(1, np.int64), np.array([NONE]), (),
        np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64),
        np.zeros(0, np.int64),
    ),
)  # fmt: skip
"""In place of a template without pieces, such as that of a stage without layers: what it gets and
what it sends on stay in order."""


class _Layout:
    """Templates laid out one behind the other, the last one at the end of the step.

    Args:
        templates: the different ones.
        which: template of each place, shape ``(places,)``.
        transfers: what goes from stage to stage.
    """

    def __init__(self, templates: list[Labelled], which: I64, transfers: Transfers) -> None:
        self.templates = [t if len(t.pieces) else _REST for t in templates]
        self.which, self.transfers = which, transfers
        self.names: dict[str, int] = {}
        self.messages: dict[Message, int] = {}
        self.edges: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self.size = np.array([len(t.pieces) for t in self.templates])[which]
        self.base = np.zeros(0, np.int64)
        self.sent = np.zeros(0, np.int64)  # pieces that are transfers
        self.of = np.zeros(0, np.int64)  # their places
        self.up = np.zeros(0, np.bool_)

    def sends(self, place: I64, leaves: NDArray[np.bool_], up: NDArray[np.bool_]) -> I64:
        """Put transfers behind their places; gives the one of each row, -1 for none."""
        rows = np.flatnonzero(leaves)
        self.of, self.up = place[rows], up[rows]
        count = np.bincount(self.of, minlength=len(self.which))
        ends = np.cumsum(self.size + count)
        self.base = ends - self.size - count
        nth = np.zeros(len(rows), np.int64)
        nth[1:] = self.of[1:] == self.of[:-1]  # a place has two rows at most
        self.sent = self.base[self.of] + self.size[self.of] + nth
        result = np.full(len(leaves), NONE, np.int64)
        result[rows] = self.sent
        return result

    def program(self, sends: I64, place: I64) -> Program:
        """Everything as arrays.

        Args:
            sends: transfer of each row, -1 for none.
            place: place of each row.
        """
        total = int(self.base[-1] + self.size[-1])
        lane, dur = np.zeros(total, np.int8), np.zeros(total, np.int64)
        name, message = np.zeros(total, np.int32), np.full(total, NONE, np.int64)
        inside: Counter[str] = Counter()
        for number, labelled in enumerate(self.templates):
            pieces, base = labelled.pieces, self.base[self.which == number]
            at = base[:, None] + np.arange(len(pieces))
            lane[at], dur[at] = pieces.lane, pieces.dur_ns
            name[at], message[at] = self._codes(labelled)
            self._edges(base[:, None] + pieces.source, base[:, None] + pieces.target)
            inside.update({kind: len(base) * ns for kind, ns in labelled.inside.items()})
        if len(self.sent):
            transfer = Message(SEND_RECV, "pp", self.transfers.bytes)
            lane[self.sent] = np.where(self.up, Lane.UP, Lane.DOWN)
            name[self.sent] = self.names.setdefault(_name(transfer), len(self.names))
            message[self.sent] = self.messages.setdefault(transfer, len(self.messages))
        self._transfers()
        self._turns()
        begin = self._sides()
        source, target = (np.concatenate(ends) for ends in zip(*self.edges, strict=True))
        entry = self._firsts(np.arange(len(place)), place)
        head = self.base[0] + self.templates[self.which[0]].pieces.first
        return Program(
            lane=lane, name=name, names=tuple(self.names), dur_ns=dur, message=message,
            messages=tuple(self.messages), source=source, target=target,
            begin=np.concatenate([head, begin]),
            end=self.base[-1] + self.templates[self.which[-1]].pieces.last,
            sends=sends, entry=entry, inside=inside,
        )  # fmt: skip

    def _edges(self, source: I64, target: I64) -> None:
        if not (source.size and target.size):
            return
        source, target = np.broadcast_arrays(source, target)
        self.edges.append((source.reshape(-1), target.reshape(-1)))

    def _codes(self, labelled: Labelled) -> tuple[I64, I64]:
        """Names and messages of a template in the numbers of the whole program."""
        pieces = labelled.pieces
        own = self.names.setdefault(labelled.name, len(self.names))
        talk = [self.messages.setdefault(m, len(self.messages)) for m in pieces.messages]
        said = [self.names.setdefault(_name(m), len(self.names)) for m in pieces.messages]
        return np.array([*said, own])[pieces.message], np.array([*talk, NONE])[pieces.message]

    def _turns(self) -> None:
        """Each place waits for the end of the one before it."""
        before, behind = self.which[:-1], self.which[1:]
        pair = before * len(self.templates) + behind
        for code in np.unique(pair).tolist():
            a, b = divmod(code, len(self.templates))
            at = np.flatnonzero(pair == code)
            last, first = self.templates[a].pieces.last, self.templates[b].pieces.first
            source = self.base[at][:, None, None] + last[:, None]
            self._edges(source, self.base[at + 1][:, None, None] + first)

    def _transfers(self) -> None:
        """A transfer waits for its place and for the one before it in its direction."""
        for number, labelled in enumerate(self.templates):
            mine = self.which[self.of] == number
            last = self.base[self.of[mine]][:, None] + labelled.pieces.last
            self._edges(last, self.sent[mine][:, None])
        for direction in (True, False):
            row = self.sent[self.up == direction]
            self._edges(row[:-1], row[1:])
        if self.transfers.blocking:
            source, target = self._firsts(self.sent, self.of + 1)
            self._edges(source, target)
            twice = np.flatnonzero(self.of[1:] == self.of[:-1])
            self._edges(self.sent[twice], self.sent[twice + 1])

    def _firsts(self, key: I64, place: I64) -> tuple[I64, I64]:
        """Each key with each of the first pieces of its place."""
        count = np.array([len(t.pieces.first) for t in self.templates])[self.which[place]]
        ptr = np.cumsum([0, *(len(t.pieces.first) for t in self.templates)])
        firsts = np.concatenate([t.pieces.first for t in self.templates])
        base = np.repeat(self.base[place], count)
        return np.repeat(key, count), base + firsts[ranges(ptr[self.which[place]], count)]

    def _sides(self) -> I64:
        """Lanes beside the chain go on from template to template.

        Returns:
            Their first pieces, where these wait for nothing.
        """
        begin = []
        for lane in (Lane.GATHER, Lane.REDUCE, Lane.HOST):
            rows = [np.flatnonzero(t.pieces.lane == lane) for t in self.templates]
            used = np.array([len(r) > 0 for r in rows])[self.which]
            if not used.any():
                continue
            head = np.array([r[0] if len(r) else 0 for r in rows])[self.which][used]
            end = np.array([r[-1] if len(r) else 0 for r in rows])[self.which][used]
            base = self.base[used]
            self._edges(base[:-1] + end[:-1], base[1:] + head[1:])
            if lane == Lane.GATHER:
                self._near(self.which[used][:-1], base[:-1], base[1:] + head[1:])
            if lane == Lane.REDUCE:  # the end of the step waits for the last reduction
                finish = self.base[-1] + self.templates[self.which[-1]].pieces.first
                self._edges(base[-1] + end[-1], finish)
            elif head[0] not in self.templates[int(self.which[used][0])].pieces.first:
                begin.append(int(base[0] + head[0]))
        return np.array(begin, np.int64)

    def _near(self, which: I64, base: I64, gather: I64) -> None:
        """A template's first gather waits until the template before it is near its end."""
        for number in np.unique(which).tolist():
            mine = which == number
            near = self.templates[number].pieces.near
            self._edges(base[mine][:, None] + near, gather[mine][:, None])


def _name(message: Message) -> str:
    return f"{COLLECTIVE_KINDS[message.collective]} {message.group}"
