"""Find the events of a Chrome-trace JSON text and read their times, in one compiled pass.

The scanner walks the bytes once. For every object of the ``traceEvents`` array it notes
where it lies, its phase, whether it is a Python frame, and ``ts`` and ``dur`` as exact
integer nanoseconds read from their decimal text: a double resolves today's absolute
microseconds only to 0.25 us. What lies inside the objects is left to the JSON decoder.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

# Why a scan stopped.
MORE = 0  # the buffer ended inside an event, or between two
CLOSED = 1  # the array ended
DAMAGED = 2  # what stands at the position is no JSON object
FULL = 3  # the output is full; go on from the position

# Columns of the output, shape (events, 7).
START, STOP, TS, DUR, PH, CLASS, FLAGS = range(7)

# Values of CLASS.
PLAIN, PYTHON, TRACE = 0, 1, 2

# Bits of FLAGS.
HAS_TS, HAS_DUR, BAD_TIME = 1, 2, 4

MAX_EVENT_BYTES = 1 << 24
"""An object longer than this is a string that lost its closing quote."""

_QUOTE, _BACKSLASH, _COMMA, _COLON = 34, 92, 44, 58
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = 123, 125, 91, 93
_NEWLINE, _SPACE, _ZERO, _NINE = 10, 32, 48, 57


@njit(cache=True, nogil=True)
def _skip_space(buf: U8, p: int, end: int) -> int:
    while p < end and buf[p] <= _SPACE:
        p += 1
    return p


@njit(cache=True, nogil=True)
def _string_end(buf: U8, p: int, end: int) -> int:
    """Position after the string that opens at ``p``; -1 cut off, -2 a raw newline inside."""
    p += 1
    while p < end:
        c = buf[p]
        if c == _QUOTE:
            return p + 1
        if c == _BACKSLASH:
            p += 1
        elif c == _NEWLINE:
            return -2
        p += 1
    return -1


@njit(cache=True, nogil=True)
def skip_value(buf: U8, p: int, end: int) -> int:
    """Position after the JSON value at ``p``; -1 cut off, -2 damaged."""
    if p >= end:
        return -1
    c = buf[p]
    if c == _QUOTE:
        return _string_end(buf, p, end)
    if c != _OPEN and c != _OPEN_LIST:
        while p < end:
            c = buf[p]
            if c in (_COMMA, _CLOSE, _CLOSE_LIST) or c <= _SPACE:
                return p
            p += 1
        return -1
    depth = 0
    while p < end:
        c = buf[p]
        if c == _QUOTE:
            p = _string_end(buf, p, end)
            if p < 0:
                return p
            continue
        if c == _OPEN or c == _OPEN_LIST:
            depth += 1
        elif c == _CLOSE or c == _CLOSE_LIST:
            depth -= 1
            if depth == 0:
                return p + 1
        p += 1
    return -1


@njit(cache=True, nogil=True)
def _exponent(buf: U8, p: int, end: int) -> tuple[int, bool]:
    negative = False
    if p < end and (buf[p] == 45 or buf[p] == 43):
        negative = buf[p] == 45
        p += 1
    if p >= end:
        return 0, False
    value = 0
    while p < end:
        if buf[p] < _ZERO or buf[p] > _NINE or value > 1000:
            return 0, False
        value = value * 10 + (buf[p] - _ZERO)
        p += 1
    return (-value if negative else value), True


@njit(cache=True, nogil=True)
def _number_shape(buf: U8, p: int, end: int) -> tuple[int, int, bool]:
    """(digits before the point counting the exponent, end of the mantissa, well formed)."""
    before = 0
    digits = 0
    point = False
    while p < end:
        c = buf[p]
        if c >= _ZERO and c <= _NINE:
            digits += 1
            if not point:
                before += 1
        elif c == 46 and not point:
            point = True
        elif c == 101 or c == 69:
            exponent, ok = _exponent(buf, p + 1, end)
            return before + exponent, p, ok and digits > 0
        else:
            return 0, p, False
        p += 1
    return before, p, digits > 0


@njit(cache=True, nogil=True)
def decimal_us_to_ns(buf: U8, p: int, end: int) -> tuple[int, bool]:
    """Nanoseconds of the decimal microseconds written in ``buf[p:end]``, half to even.

    Returns:
        The nanoseconds, and False where the text is no number or does not fit 63 bits.
    """
    negative = p < end and buf[p] == 45
    if negative:
        p += 1
    before, stop, ok = _number_shape(buf, p, end)
    if not ok:
        return 0, False
    wanted = before + 3  # digits that make up whole nanoseconds
    value = 0
    seen = 0
    next_digit = 0
    rest = False
    while p < stop:
        c = buf[p]
        p += 1
        if c == 46:
            continue
        digit = np.int64(c) - _ZERO
        if seen < wanted:
            if value > 922337203685477579:
                return 0, False
            value = value * 10 + digit
        elif seen == wanted:
            next_digit = digit
        elif digit:
            rest = True
        seen += 1
    while seen < wanted and value:
        if value > 922337203685477579:
            return 0, False
        value *= 10
        seen += 1
    if next_digit > 5 or (next_digit == 5 and (rest or value % 2 == 1)):
        value += 1
    return (-value if negative else value), True


@njit(cache=True, nogil=True)
def _equals(buf: U8, p: int, stop: int, text: U8) -> bool:
    if stop - p != len(text):
        return False
    for i in range(len(text)):
        if buf[p + i] != text[i]:
            return False
    return True


@njit(cache=True, nogil=True)
def _note_time(buf: U8, p: int, stop: int, row: I64, column: int, flag: int) -> None:
    if buf[p] == _QUOTE:  # some writers quote the number
        p += 1
        stop -= 1
    value, ok = decimal_us_to_ns(buf, p, stop)
    row[column] = value
    row[FLAGS] |= flag if ok else BAD_TIME


_PYTHON_FUNCTION = np.frombuffer(b'"python_function"', np.uint8)
_TRACE = np.frombuffer(b'"Trace"', np.uint8)


@njit(cache=True, nogil=True)
def _note_field(buf: U8, key: int, key_end: int, p: int, stop: int, row: I64) -> None:
    """Keep the field if it is one of ph, ts, dur and cat; ``key`` is after its quote."""
    n = key_end - key
    a = buf[key]
    b = buf[key + 1] if n > 1 else 0
    if n == 2 and a == 116 and b == 115:
        _note_time(buf, p, stop, row, TS, HAS_TS)
    elif n == 2 and a == 112 and b == 104:
        if stop - p == 3:
            row[PH] = buf[p + 1]
    elif n == 3 and a == 100 and b == 117 and buf[key + 2] == 114:
        _note_time(buf, p, stop, row, DUR, HAS_DUR)
    elif n == 3 and a == 99 and b == 97 and buf[key + 2] == 116:
        if _equals(buf, p, stop, _PYTHON_FUNCTION):
            row[CLASS] = PYTHON
        elif _equals(buf, p, stop, _TRACE):
            row[CLASS] = TRACE


@njit(cache=True, nogil=True)
def _scan_event(buf: U8, start: int, end: int, row: I64) -> int:
    """Read the object that opens at ``start``: position after it, -1 cut off, -2 damaged."""
    row[:] = 0
    row[START] = start
    p = _skip_space(buf, start + 1, end)
    if p < end and buf[p] == _CLOSE:
        row[STOP] = p + 1
        return p + 1
    while p < end:
        if buf[p] != _QUOTE:
            return -2
        key = p + 1
        p = _string_end(buf, p, end)
        if p < 0:
            return p
        key_end = p - 1
        p = _skip_space(buf, p, end)
        if p >= end:
            return -1
        if buf[p] != _COLON:
            return -2
        p = _skip_space(buf, p + 1, end)
        stop = skip_value(buf, p, end)
        if stop < 0:
            return stop
        if stop == p:
            return -2
        _note_field(buf, key, key_end, p, stop, row)
        p = _skip_space(buf, stop, end)
        if p >= end:
            return -1
        if buf[p] == _CLOSE:
            row[STOP] = p + 1
            return p + 1
        if buf[p] != _COMMA:
            return -2
        p = _skip_space(buf, p + 1, end)
    return -1


@njit(cache=True, nogil=True)
def scan_events(buf: U8, p: int, end: int, out: I64) -> tuple[int, int, int]:
    """Scan objects of the array from ``p`` on, which lies inside the array.

    Args:
        buf: the text.
        p: position inside the array, outside of any object.
        end: where the text in ``buf`` ends.
        out: one row per event is written here, shape ``(capacity, 7)``, int64.

    Returns:
        Number of events written, the position to go on from, and why it stopped: MORE
        (position of the object that is cut off), CLOSED (position after the array's
        bracket), DAMAGED (position of the damage) or FULL.
    """
    n = 0
    while True:
        p = _skip_space(buf, p, end)
        if p >= end:
            return n, p, MORE
        c = buf[p]
        if c == _COMMA:
            p += 1
            continue
        if c == _CLOSE_LIST:
            return n, p + 1, CLOSED
        if c != _OPEN:
            return n, p, DAMAGED
        if n == len(out):
            return n, p, FULL
        stop = _scan_event(buf, p, end, out[n])
        if stop == -1:
            return n, p, DAMAGED if end - p > MAX_EVENT_BYTES else MORE
        if stop == -2:
            return n, p, DAMAGED
        n += 1
        p = stop


_EVENTS_KEY = np.frombuffer(b"traceEvents", np.uint8)


@njit(cache=True, nogil=True)
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
        p = _skip_space(buf, p, end)
        if p < end and buf[p] == _COMMA:
            p = _skip_space(buf, p + 1, end)
        if p >= end:
            return p, MORE
        if buf[p] != _QUOTE:
            return p, DAMAGED
        member = p
        p = _string_end(buf, p, end)
        if p < 0:
            return member, MORE if p == -1 else DAMAGED
        found = _equals(buf, member + 1, p - 1, _EVENTS_KEY)
        p = _skip_space(buf, p, end)
        if p >= end:
            return member, MORE
        if buf[p] != _COLON:
            return member, DAMAGED
        p = _skip_space(buf, p + 1, end)
        if p < end and found and buf[p] == _OPEN_LIST:
            return p, CLOSED
        p = skip_value(buf, p, end)
        if p < 0:
            return member, MORE if p == -1 else DAMAGED


@njit(cache=True, nogil=True)
def join_events(buf: U8, rows: I64, out: U8) -> int:
    """Write the events of ``rows`` to ``out`` as one JSON array and return its length."""
    out[0] = _OPEN_LIST
    n = 1
    for i in range(len(rows)):
        if i:
            out[n] = _COMMA
            n += 1
        a = rows[i, START]
        b = rows[i, STOP]
        out[n : n + b - a] = buf[a:b]
        n += b - a
    out[n] = _CLOSE_LIST
    return n + 1


def as_array(text: bytes | bytearray | memoryview) -> Any:
    """The bytes of ``text`` as a NumPy array that shares their memory."""
    return np.frombuffer(text, np.uint8)
