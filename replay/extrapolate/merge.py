"""Templates with what follows in turn merged into one piece: the same times from fewer tasks.

Where all ranks of a stage do the same, a message between them is nothing but its price, and the
pieces of a template's chain follow each other without a gap. Such a run is one piece as long as
all of it. What others wait for, gathers and reductions beside the chain, stays apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from foretrace.replay.extrapolate.program import Labelled
from foretrace.replay.extrapolate.template import NONE, Lane, Message, Pieces
from foretrace.replay.graph import I64

_CHAIN = (Lane.COMPUTE, Lane.BLOCKING)


@dataclass(slots=True)
class Slot:
    """What runs at once: a computation, or none, and messages one behind the other.

    Attributes:
        waits: pieces that it waits for.
        work: piece of the computation, -1 for none.
        messages: pieces of the messages.
    """

    waits: list[int]
    work: int = NONE
    messages: list[int] = field(default_factory=list)

    @property
    def tails(self) -> list[int]:
        """Pieces that the next slot waits for."""
        return [piece for piece in (self.work, *self.messages[-1:]) if piece != NONE]


Run = list[Slot]
"""Slots that follow each other without a gap."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A template taken apart.

    Attributes:
        items: runs of the chain, and pieces beside it, in order.
        of: item of each piece, shape ``(pieces,)``.
    """

    items: list[Run | int]
    of: I64

    @property
    def runs(self) -> list[Run]:
        """The runs alone."""
        return [item for item in self.items if not isinstance(item, int)]


def take_apart(pieces: Pieces) -> Merged:
    """Find the runs of a template's chain."""
    waits: list[list[int]] = [[] for _ in range(len(pieces))]
    for source, target in zip(pieces.source.tolist(), pieces.target.tolist(), strict=True):
        waits[target].append(source)
    chain = np.isin(pieces.lane, _CHAIN)
    watched = {*pieces.source[~chain[pieces.target]].tolist(), *pieces.near.tolist()}
    computes = (pieces.lane == Lane.COMPUTE).tolist()
    items: list[Run | int] = []
    of = np.zeros(len(pieces), np.int64)
    run: Run = []
    place = NONE
    for piece, inside in enumerate(chain.tolist()):
        if not inside:
            of[piece] = len(items)
            items.append(piece)
            continue
        own = waits[piece]
        slot = run[-1] if run else None
        if slot is None or computes[piece] or not _beside(slot, own):
            if slot is None or sorted(own) != sorted(slot.tails) or watched & set(slot.tails):
                run, place = [], len(items)
                items.append(run)
            slot = Slot(own)
            run.append(slot)
        of[piece] = place
        if computes[piece]:
            slot.work = piece
        else:
            slot.messages.append(piece)
    return Merged(items, of)


def _beside(slot: Slot, own: list[int]) -> bool:
    """Whether a message that waits for these runs beside the computation of the slot."""
    if slot.work == NONE:
        return False
    return own == (slot.messages[-1:] or slot.waits)


def merged(labelled: Labelled, price: I64) -> Labelled:
    """Merge a template's runs.

    Args:
        labelled: the template.
        price: time of each of its messages, shape ``(messages,)``, ns.
    """
    pieces = labelled.pieces
    parts = take_apart(pieces)
    dur = np.where(pieces.message >= 0, np.append(price, 0)[pieces.message], pieces.dur_ns)
    lengths, inside = [], Counter[str]()
    for run in parts.runs:
        length = 0
        for slot in run:
            work = int(dur[slot.work]) if slot.work != NONE else 0
            talk = 0
            for piece in slot.messages:
                open_ = max(talk, work)
                talk += int(dur[piece])
                inside[pieces.messages[pieces.message[piece]].group] += max(talk - open_, 0)
            length += max(work, talk)
        lengths.append(length)
    return Labelled(labelled.name, joined(pieces, parts, lengths), inside)


def joined(pieces: Pieces, parts: Merged, lengths: Sequence[int]) -> Pieces:
    """The template with a piece of given length in place of each run."""
    lane, dur, message = [], [], []
    known: dict[Message, int] = {}
    edges: dict[tuple[int, int], None] = {}
    given = iter(lengths)
    for place, item in enumerate(parts.items):
        if not isinstance(item, int):
            lane.append(int(Lane.COMPUTE))
            dur.append(next(given))
            message.append(NONE)
            waits = item[0].waits
            edges.update(dict.fromkeys((int(parts.of[source]), place) for source in waits))
            continue
        talk = int(pieces.message[item])
        lane.append(int(pieces.lane[item]))
        dur.append(int(pieces.dur_ns[item]))
        said = NONE if talk == NONE else known.setdefault(pieces.messages[talk], len(known))
        message.append(said)
    beside = np.isin(pieces.target, [item for item in parts.items if isinstance(item, int)])
    sources, targets = parts.of[pieces.source[beside]], parts.of[pieces.target[beside]]
    edges.update(dict.fromkeys(zip(sources.tolist(), targets.tolist(), strict=True)))
    ends = np.array(list(edges), np.int64).reshape(-1, 2)
    return Pieces(
        lane=np.array(lane, np.int8),
        dur_ns=np.array(dur, np.int64),
        message=np.array(message, np.int64),
        messages=tuple(known),
        source=ends[:, 0],
        target=ends[:, 1],
        first=np.unique(parts.of[pieces.first]),
        last=np.unique(parts.of[pieces.last]),
        near=np.unique(parts.of[pieces.near]),
    )
