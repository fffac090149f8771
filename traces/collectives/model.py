"""What a communication operation is made of while it is put together."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.traces.coded import Coded
from foretrace.traces.schema import EVENT_KINDS

I64 = NDArray[np.int64]
_NUMBER = re.compile(r"-?[0-9]{1,18}")
P2P_KINDS = ("send", "recv", "send_recv")


@dataclass(slots=True)
class Metadata:
    """What a profiler recorded about one collective; absent values as in the schema.

    Attributes:
        collective: the operation's name.
        in_elements: elements put in.
        out_elements: elements got out.
        group_size: members.
        dtype: element type.
        in_splits: elements to each member.
        out_splits: elements from each member.
        group_name: the rank's own handle of the group.
        group_description: what the framework calls the group.
        group_ranks: members; empty where unknown.
        group_rank: this rank's number within the group.
        seq: sequence number.
        comm_id: communicator id.
        peer: global rank of the p2p peer.
        root: number within the group of the root or the p2p peer.
        is_async: 1, 0 or -1.
        algorithm: what the library chose.
        protocol: what the library chose.
        channels: how many the library used.
        exec_ns: execution as the library measured it, ns.
    """

    collective: str = ""
    in_elements: int = -1
    out_elements: int = -1
    group_size: int = -1
    dtype: str = ""
    in_splits: list[int] = field(default_factory=list)
    out_splits: list[int] = field(default_factory=list)
    group_name: str = ""
    group_description: str = ""
    group_ranks: list[int] = field(default_factory=list)
    group_rank: int = -1
    seq: int = -1
    comm_id: int = 0
    peer: int = -1
    root: int = -1
    is_async: int = -1
    algorithm: str = ""
    protocol: str = ""
    channels: int = -1
    exec_ns: int = -1


@dataclass(slots=True)
class Operation:
    """One communication operation of the rank.

    Attributes:
        kind: one of ``schema.COLLECTIVE_KINDS``.
        work_event: row that executes it.
        source: who saw it.
        meta: what was recorded.
        call_event: row that issued it.
        wait_event: row that waits for it.
        launch: row of the device API call that launched it.
        bytes_in: bytes put in.
        bytes_out: bytes got out.
        group: row of the group table.
    """

    kind: str
    work_event: int
    source: str
    meta: Metadata = field(default_factory=Metadata)
    call_event: int = -1
    wait_event: int = -1
    launch: int = -1
    bytes_in: int = -1
    bytes_out: int = -1
    group: int = -1


@dataclass(frozen=True, slots=True)
class EventView:
    """Columns of a rank's sorted events that operations are read from; shape ``(events,)``.

    Attributes:
        kind: code of ``events.kind``.
        name: names.
        start_ns: start.
        end_ns: end.
        thread: host thread.
        stream: device stream.
        correlation: call id.
        external_id: operator id.
        shapes: JSON texts.
        dtypes: JSON texts.
        inputs: JSON texts.
    """

    kind: NDArray[np.int8]
    name: Coded
    start_ns: I64
    end_ns: I64
    thread: I64
    stream: I64
    correlation: I64
    external_id: I64
    shapes: Coded
    dtypes: Coded
    inputs: Coded

    def is_kind(self, *kinds: str) -> NDArray[np.bool_]:
        """Which events are of one of ``kinds``."""
        return np.isin(self.kind, [EVENT_KINDS.index(k) for k in kinds])

    def host_rows(self, wanted: Any) -> I64:
        """Host operators and annotations with a name for which ``wanted(name)`` holds."""
        host = self.is_kind("host_op", "annotation")
        return np.flatnonzero(self.name.marked(wanted) & host)


@lru_cache(maxsize=1 << 14)
def decoded(text: str) -> Any:
    """The value of a JSON text, None if there is none."""
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, RecursionError):
        return None


def number(value: Any) -> int:
    """A concrete input as an integer, -1 if it is none."""
    text = str(value)
    return int(text) if _NUMBER.fullmatch(text) else -1
