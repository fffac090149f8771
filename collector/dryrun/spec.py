"""What the starting process tells a rank, what the rank hands back, and what comes of it all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from foretrace.collector.spool import Recording
from foretrace.traces.errors import ForetraceError

RECORD_NAME = "dryrun.msgpack"


class ScriptError(ForetraceError):
    """The script itself failed, or ended in a way that leaves nothing to record.

    Args:
        message: one line.
        status: the script's own exit status, which the program passes on.
    """

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.exit_code = status


class Spec(msgspec.Struct, frozen=True):
    """One rank to run.

    Attributes:
        rank: global rank.
        world_size: ranks of the world.
        script: path of the script.
        arguments: its arguments.
        folder: gets the raw files.
        mailbox: folder through which ranks that run exchange control messages.
        fake: tensors without data.
        routing: counts of tokens for each expert, see ``routing.parse_routing``.
        recorded: False for a rank that only answers messages.
    """

    rank: int
    world_size: int
    script: str
    arguments: list[str]
    folder: str
    mailbox: str
    fake: bool
    routing: str
    recorded: bool = True


class Operation(msgspec.Struct, frozen=True, array_like=True):
    """An operator that was called on tensors without data.

    Attributes:
        tick: its place among all calls of the rank.
        name: such as ``aten::mm``.
        shapes: JSON text of the inputs' shapes.
        dtypes: JSON text of the inputs' types.
        backward: called during a backward pass.
    """

    tick: int
    name: str
    shapes: str
    dtypes: str
    backward: bool


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """An optimizer has finished a step.

    Attributes:
        time: on the recording's clock: ns since the epoch, or a tick.
        forward: a forward pass ran since the mark before.
        thread: system id of the thread.
    """

    time: int
    forward: bool
    thread: int


class Record(msgspec.Struct):
    """What a rank hands back.

    Attributes:
        recording: groups, calls and waits as any recording has them.
        fake: tensors had no data; times are ticks.
        operations: operators, only of tensors without data.
        first: time of the first forward pass, -1 for none.
        marks: ends of optimizer steps.
        families: description and members of every group that was made, others' included.
        notes: what could not be done as in a real run.
    """

    recording: Recording
    fake: bool
    operations: list[Operation]
    first: int
    marks: list[Mark]
    families: list[tuple[str, list[int]]]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """What a dry run gave.

    Attributes:
        path: the trace set.
        ranks: traced ranks that were kept.
        roles: traced rank -> how many ranks of the world do the same; 0 unknown.
        operations: operators of each kept rank.
        collectives: communication calls of each kept rank.
        bytes_in: bytes that each kept rank puts into them.
        seconds: wall time of everything.
        notes: what the user should know.
    """

    path: Path
    ranks: list[int]
    roles: dict[int, int]
    operations: dict[int, int]
    collectives: dict[int, int]
    bytes_in: dict[int, int]
    seconds: float
    notes: list[str]


def write_record(folder: Path, record: Record) -> None:
    """Write ``record`` into ``folder``."""
    partial = folder / f".{RECORD_NAME}"
    partial.write_bytes(msgspec.msgpack.encode(record))
    partial.replace(folder / RECORD_NAME)


def read_record(folder: Path) -> Record | None:
    """What :func:`write_record` wrote, None where there is nothing."""
    path = folder / RECORD_NAME
    if not path.exists():
        return None
    return msgspec.msgpack.decode(path.read_bytes(), type=Record)
