"""What the operations of a table are: compute, transfers between stages, collectives.

Each distinct operation type gets one :class:`Operation`. What is not recognised counts as work
of its worker alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Role(IntEnum):
    """What a row does and whom it waits for."""

    FORWARD = 0  # compute of one micro-batch
    BACKWARD = 1
    LOCAL = 2  # anything else on the worker alone (optimizer, garbage collection ...)
    SEND = 3  # to the neighbouring stage
    RECV = 4
    GATHER = 5  # collective over the data-parallel ranks of a stage, before the first forward
    REDUCE = 6  # collective over the data-parallel ranks of a stage, after the last backward
    ENDS = 7  # collective of the first and the last stage (tied embeddings)
    ALL = 8  # collective over all workers (gradient norm)


TRANSFERS = (Role.SEND, Role.RECV)
COLLECTIVES = (Role.GATHER, Role.REDUCE, Role.ENDS, Role.ALL)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation type of a table.

    Attributes:
        name: as the table spells it.
        role: what it does.
        reported: the operation it is reported under (both sides of a transfer are one).
        backward: whether it belongs to the backward pass (transfers only).
        known: whether the name was recognised.
        moves: whether it moves data between ranks, be they of one worker.
    """

    name: str
    role: Role
    reported: str
    backward: bool = False
    known: bool = True
    moves: bool = False


_LOCAL_WORDS = ("optimizer", "gc", "layernorm", "loss", "dataload", "data-load", "batch", "zero")


def operation(name: str) -> Operation:
    """What an operation type does, from its name."""
    words = name.lower().replace("_", "-")
    backward = words.startswith(("backward", "bwd"))
    if backward or words.startswith(("forward", "fwd")):
        return _pass_operation(name, words, backward)
    role = _collective_role(words)
    if role is not None:
        return Operation(name, role, name, moves=True)
    known = any(word in words for word in _LOCAL_WORDS)
    return Operation(name, Role.LOCAL, name, known=known, moves="reduce" in words)


def _pass_operation(name: str, words: str, backward: bool) -> Operation:
    """An operation of the forward or backward pass."""
    for word, role in (("send", Role.SEND), ("recv", Role.RECV)):
        if word in words:
            way = "backward" if backward else "forward"
            return Operation(name, role, f"{way}-pp-comm", backward, moves=True)
    if "comp" in words or words in ("forward", "backward", "fwd", "bwd"):
        return Operation(name, Role.BACKWARD if backward else Role.FORWARD, name, backward)
    return Operation(name, Role.LOCAL, name, known=False)


def _collective_role(words: str) -> Role | None:
    """The role of a collective, None for what is none across the table's workers.

    The gradients of layer norms are summed over tensor-parallel ranks, which are one worker.
    """
    if "layernorm" in words:
        return None
    if "clip" in words or "grad-norm" in words:
        return Role.ALL
    if "embedding" in words and "reduce" in words:
        return Role.ENDS
    if "all-gather" in words or "allgather" in words:
        return Role.GATHER
    return Role.REDUCE if "reduce" in words else None
