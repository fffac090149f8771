"""The keys of an event that are kept, and the columns that their values go to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

# Columns of the output that every event has.
START, STOP, PHASE, FLAGS, TS, DUR = range(6)

# Bits of FLAGS.
HAS_TS, HAS_DUR, BAD_TS, BAD_DUR, TWICE, PYTHON, TRACE, COLLECTIVE, MEMORY, BAD_VALUE = (
    1 << i for i in range(10)
)
BAD_TIME = BAD_TS | BAD_DUR

INTEGERS = (
    "pid",
    "tid",
    "External id",
    "external id",
    "correlation",
    "device",
    "stream",
    "Sequence number",
    "Fwd thread id",
    "bytes",
    "graph node id",
    "wait_on_stream",
    "wait_on_cuda_event_record_corr_id",
    "Record function id",
    "Addr",
    "Bytes",
    "Total Allocated",
    "Total Reserved",
    "Device Type",
    "Device Id",
)
"""Keys whose values are kept as integers, in the order of their columns."""

TEXTS = ("name", "cat", "Input Dims", "Input type", "Concrete Inputs", "grid", "block")
"""Keys whose values are kept as texts: two columns each, where it begins and where it ends."""

FIRST_INTEGER = 6
FIRST_TEXT = FIRST_INTEGER + len(INTEGERS)
WIDTH = FIRST_TEXT + 2 * len(TEXTS)

ABSENT = -(1 << 62)
"""Value of an integer that the event does not have."""

# What is done with the value of a key.
TO_PHASE, TO_TIME, TO_INTEGER, TO_TEXT, TO_ARGS, TO_MARK = range(6)

_TOP = {"ph": TO_PHASE, "ts": TO_TIME, "dur": TO_TIME, "args": TO_ARGS}
_TOP |= {"pid": TO_INTEGER, "tid": TO_INTEGER, "name": TO_TEXT, "cat": TO_TEXT}
_IN_ARGS = dict.fromkeys(INTEGERS[2:], TO_INTEGER) | dict.fromkeys(TEXTS[2:], TO_TEXT)
_IN_ARGS |= {"Collective name": TO_MARK}

_ALSO_CALLED = {"Physic Stream Id": "stream", "Stream Id": "stream"}
"""Keys of NPU profilers, and what they are here."""
_IN_ARGS |= dict.fromkeys(_ALSO_CALLED, TO_INTEGER)


LONGEST = 40
"""Keys from this length on are never kept."""


def _first_bytes(key: bytes) -> int:
    """The first eight bytes as one integer."""
    return int.from_bytes(key[:8], "little", signed=len(key) >= 8)


def _key_table(*levels: dict[str, int]) -> tuple[U8, I64, I64]:
    """Keys of events (level 0) and of arguments (level 1) for the scanner.

    Returns:
        Their bytes; (first bytes, offset, what to do, column) of each; and the row at which
        the keys of each level and length begin, shape ``(levels * LONGEST + 1,)``.
    """
    text = b""
    rows: list[tuple[int, int, int, int]] = []
    starts = []
    for keys in levels:
        for length in range(LONGEST):
            starts.append(len(rows))
            for key in (k for k in keys if len(k) == length):
                column = 0
                if keys[key] == TO_TIME:
                    column = TS if key == "ts" else DUR
                elif keys[key] == TO_INTEGER:
                    column = FIRST_INTEGER + INTEGERS.index(_ALSO_CALLED.get(key, key))
                elif keys[key] == TO_TEXT:
                    column = FIRST_TEXT + 2 * TEXTS.index(key)
                rows.append((_first_bytes(key.encode()), len(text), keys[key], column))
                text += key.encode()
    starts.append(len(rows))
    return (
        np.frombuffer(text, np.uint8),
        np.array(rows, np.int64),
        np.array(starts, np.int64),
    )


KEY_BYTES, KEYS, KEY_STARTS = _key_table(_TOP, _IN_ARGS)
