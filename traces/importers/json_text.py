"""Walks JSON text byte by byte, compiled: where values end, and where the events begin.

Positions are plain integers; a negative one tells why there is none: ``CUT`` where the text
ended, ``BROKEN`` where it is no JSON. Numba's cache of a function does not notice changes in
functions of other files: after editing this one, delete ``importers/__pycache__``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int64, njit, types, uint64
from numpy.typing import NDArray

U8 = NDArray[np.uint8]

TEXT = types.Array(types.uint8, 1, "C", readonly=True)
"""Bytes as compiled functions take them; types are fixed, so that nothing compiles twice."""

CUT, BROKEN = -1, -2

# Why a search or a scan stopped.
MORE = 0  # the text ended inside an event, or between two
CLOSED = 1  # the array ended
DAMAGED = 2  # what stands at the position is no JSON object
FULL = 3  # the output is full; go on from the position

QUOTE, BACKSLASH, COMMA, COLON = 34, 92, 44, 58
OPEN, CLOSE, OPEN_LIST, CLOSE_LIST = 123, 125, 91, 93
NEWLINE, SPACE = 10, 32

_ONE = np.uint64(1)
_EVENTS_KEY = np.frombuffer(b"traceEvents", np.uint8)


@njit(nogil=True, forceinline=True)
def skip_space(buf: U8, p: int, end: int) -> int:
    """Position of the next byte that is no blank, ``end`` if there is none."""
    while p < end and buf[p] <= SPACE:
        p += 1
    return p


@njit(nogil=True)
def skip_string(buf: U8, p: int, end: int) -> int:
    """Position after the string that opens at ``p``; CUT, or BROKEN by a raw newline."""
    q, stop = uint64(p + 1), uint64(end)  # an index that may be negative costs a test each
    while q < stop:
        c = buf[q]
        q += _ONE
        if c == QUOTE:
            return int(int64(q))
        if c == BACKSLASH:
            q += _ONE
        elif c == NEWLINE:
            return BROKEN
    return CUT


@njit(nogil=True)
def skip_open(buf: U8, p: int, end: int) -> int:
    """Position after the bracket that closes what is open at ``p``, CUT or BROKEN."""
    depth = 1
    q, stop = uint64(p), uint64(end)
    while q < stop:
        c = buf[q]
        if c == QUOTE:
            after = skip_string(buf, int(int64(q)), end)
            if after < 0:
                return after
            q = uint64(after)
            continue
        q += _ONE
        if c == OPEN or c == OPEN_LIST:  # noqa: PLR1714, SIM109  (slower when compiled)
            depth += 1
        elif c == CLOSE or c == CLOSE_LIST:  # noqa: PLR1714, SIM109
            depth -= 1
            if depth == 0:
                return int(int64(q))
    return CUT


@njit(int64(TEXT, int64, int64), cache=True, nogil=True)
def skip_value(buf: U8, p: int, end: int) -> int:
    """Position after the JSON value at ``p``, CUT or BROKEN."""
    start = p
    if p < end and buf[p] == QUOTE:
        return skip_string(buf, p, end)
    if p < end and (buf[p] == OPEN or buf[p] == OPEN_LIST):
        return skip_open(buf, p + 1, end)
    while p < end and buf[p] > SPACE and buf[p] not in (COMMA, CLOSE, CLOSE_LIST):
        p += 1
    if p == end:
        return CUT
    return p if p > start else BROKEN


@njit(nogil=True, forceinline=True)
def equals(buf: U8, p: int, stop: int, text: U8) -> bool:
    """Whether ``buf[p:stop]`` is ``text``."""
    if stop - p != len(text):
        return False
    for i in range(len(text)):  # noqa: SIM110  (Numba compiles no generators here)
        if buf[p + i] != text[i]:
            return False
    return True


@njit(nogil=True, forceinline=True)
def value_of(buf: U8, p: int, end: int) -> tuple[int, int]:
    """(end of the key that opens at ``p``, position of its value); a negative one is damage."""
    if buf[p] != QUOTE:
        return 0, BROKEN
    p = skip_string(buf, p, end)
    if p < 0:
        return 0, p
    key_end = p - 1
    p = skip_space(buf, p, end)
    if p >= end:
        return 0, CUT
    if buf[p] != COLON:
        return 0, BROKEN
    return key_end, skip_space(buf, p + 1, end)


@njit(nogil=True, forceinline=True)
def after_member(buf: U8, p: int, end: int) -> tuple[int, bool]:
    """(position of the next key or after the object, whether the object ended)."""
    p = skip_space(buf, p, end)
    if p >= end:
        return CUT, False
    if buf[p] == CLOSE:
        return p + 1, True
    if buf[p] != COMMA:
        return BROKEN, False
    return skip_space(buf, p + 1, end), False


@njit(types.UniTuple(int64, 2)(TEXT, int64, int64), cache=True, nogil=True)  # type: ignore[no-untyped-call]
def find_array(buf: U8, p: int, end: int) -> tuple[int, int]:
    """Find the ``traceEvents`` array among the members of the top-level object.

    Args:
        buf: the text.
        p: a position between two members of the object.
        end: where the text in ``buf`` ends.

    Returns:
        Position of the array's bracket and CLOSED; or the position between two members to
        go on from with MORE text; or with DAMAGED.
    """
    while True:
        p = skip_space(buf, p, end)
        if p < end and buf[p] == COMMA:
            p = skip_space(buf, p + 1, end)
        if p >= end:
            return p, MORE
        member = p
        key_end, p = value_of(buf, p, end)
        a_list = p >= 0 and p < end and buf[p] == OPEN_LIST
        if a_list and equals(buf, member + 1, key_end, _EVENTS_KEY):
            return p, CLOSED
        if p >= 0:
            p = skip_value(buf, p, end)
        if p < 0:
            return member, MORE if p == CUT else DAMAGED


def as_array(text: bytes | bytearray | memoryview) -> Any:
    """The bytes of ``text`` as a NumPy array that shares their memory."""
    return np.frombuffer(text, np.uint8)
