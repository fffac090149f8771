"""Reads the events of Chrome-trace JSON to columns, in one compiled pass over the bytes.

The scanner knows the few keys that are kept, at the top of an event and inside its ``args``.
Numbers become integers on the spot: times exactly, from their decimal text. Of texts it notes
where they lie; :mod:`intern` and the JSON decoder see each distinct one once. Everything else
is skipped without being looked at, so what is odd there (bare ``inf``, duplicate keys, bytes
that are no UTF-8) does no harm.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, int64, njit, types, uint64
from numpy.typing import NDArray

from foretrace.traces.importers.json_text import (
    CLOSE,
    CLOSE_LIST,
    CLOSED,
    COMMA,
    CUT,
    DAMAGED,
    FULL,
    MORE,
    OPEN,
    QUOTE,
    TEXT,
    after_member,
    equals,
    skip_open,
    skip_space,
    skip_value,
    value_of,
)
from foretrace.traces.importers.keys import (
    ABSENT,
    BAD_DUR,
    BAD_TS,
    BAD_VALUE,
    COLLECTIVE,
    FIRST_INTEGER,
    FIRST_TEXT,
    FLAGS,
    HAS_DUR,
    HAS_TS,
    KEY_BYTES,
    KEY_STARTS,
    KEYS,
    LONGEST,
    MEMORY,
    PHASE,
    PYTHON,
    START,
    STOP,
    TEXTS,
    TO_ARGS,
    TO_INTEGER,
    TO_MARK,
    TO_PHASE,
    TO_TEXT,
    TO_TIME,
    TRACE,
    TS,
    TWICE,
    WIDTH,
)
from foretrace.traces.importers.numbers import decimal_us_to_ns, first_integer
from foretrace.traces.importers.words import word_at

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

MAX_EVENT_BYTES = 1 << 24
"""An object longer than this is a string that lost its closing quote."""

_ONE = np.uint64(1)
_PYTHON_FUNCTION = np.frombuffer(b'"python_function"', np.uint8)
_TRACE_ROW = np.frombuffer(b'"Trace"', np.uint8)
_MEMORY_ROW = np.frombuffer(b'"[memory]"', np.uint8)

_LASTS, _INSTANT, _NULL = 88, 105, 110  # X, i, n
_FIRST_NUMBER = FIRST_INTEGER + 2  # processes and threads may have names
_CATEGORY = FIRST_TEXT + 2 * TEXTS.index("cat")
_NAME = FIRST_TEXT + 2 * TEXTS.index("name")


@njit(nogil=True, forceinline=True)
def _first_bytes(buf: U8, p: int, length: int) -> int:
    """The first eight bytes from ``p`` on as one integer, as far as ``length`` goes."""
    if p + 8 <= len(buf):
        word = word_at(buf, uint64(p))
        if length < 8:
            word &= (_ONE << uint64(8 * length)) - _ONE
        return int(int64(word))
    first = 0
    for i in range(min(length, 8)):
        first |= int(buf[p + i]) << (8 * i)
    return first


@njit(nogil=True, forceinline=True)
def _find_key(buf: U8, p: int, stop: int, level: int) -> int:
    """Row of the key ``buf[p:stop]`` in the key table; -1 if it is not kept."""
    length = stop - p
    if length >= LONGEST:
        return -1
    k = KEY_STARTS[level * LONGEST + length]
    last = KEY_STARTS[level * LONGEST + length + 1]
    if k == last:
        return -1
    first = _first_bytes(buf, p, length)
    while k < last and KEYS[k, 0] != first:
        k += 1
    if k == last:
        return -1
    offset = KEYS[k, 1]
    for i in range(8, length):
        if buf[p + i] != KEY_BYTES[offset + i]:
            return -1
    return int(k)


@njit(nogil=True, forceinline=True)
def _note_time(buf: U8, p: int, stop: int, row: I64, column: int) -> None:
    if buf[p] == QUOTE:  # some writers quote the number
        p += 1
        stop -= 1
    row[column], ok = decimal_us_to_ns(buf, p, stop)
    has = HAS_TS if column == TS else HAS_DUR
    bad = BAD_TS if column == TS else BAD_DUR
    if row[FLAGS] & (has | bad):
        row[FLAGS] = (row[FLAGS] & ~(has | bad)) | TWICE
    row[FLAGS] |= has if ok else bad


@njit(nogil=True, forceinline=True)
def _note_text(buf: U8, p: int, stop: int, row: I64, column: int) -> None:
    row[column] = p
    row[column + 1] = stop
    if column == _CATEGORY:
        if equals(buf, p, stop, _PYTHON_FUNCTION):
            row[FLAGS] |= PYTHON
        elif equals(buf, p, stop, _TRACE_ROW):
            row[FLAGS] |= TRACE
    elif column == _NAME and equals(buf, p, stop, _MEMORY_ROW):
        row[FLAGS] |= MEMORY


@njit(nogil=True, forceinline=True)
def _note(buf: U8, p: int, stop: int, row: I64, k: int) -> None:
    """Keep the value ``buf[p:stop]`` of key ``k`` as the key table says."""
    action, column = KEYS[k, 2], KEYS[k, 3]
    if action == TO_INTEGER:
        value, ok = first_integer(buf, p, stop)
        row[column] = value if ok else ABSENT
        if not ok and column >= _FIRST_NUMBER and buf[p] != _NULL:
            row[FLAGS] |= BAD_VALUE
    elif action == TO_TEXT:
        _note_text(buf, p, stop, row, column)
        if column == _NAME and buf[p] != QUOTE:
            row[FLAGS] |= BAD_VALUE
    elif action == TO_TIME:
        _note_time(buf, p, stop, row, column)
    elif action == TO_PHASE and stop - p == 3:
        row[PHASE] = buf[p + 1]
    elif action == TO_MARK:
        row[FLAGS] |= COLLECTIVE
    elif action == TO_ARGS and buf[p] != _NULL:  # no object
        row[FLAGS] |= BAD_VALUE


@njit(nogil=True, forceinline=True)
def _scan_args(buf: U8, p: int, end: int, row: I64) -> int:
    """Read the object of arguments that opens at ``p``; position after it, CUT or BROKEN."""
    p = skip_space(buf, p + 1, end)
    if p < end and buf[p] == CLOSE:
        return p + 1
    while p >= 0 and p < end:
        start = p + 1
        key_end, p = value_of(buf, p, end)
        if p < 0:
            return p
        stop = skip_value(buf, p, end)
        if stop < 0:
            return stop
        k = _find_key(buf, start, key_end, 1)
        if k >= 0:
            _note(buf, p, stop, row, k)
        p, ended = after_member(buf, stop, end)
        if ended:
            return p
    return min(p, CUT)


@njit(nogil=True, forceinline=True)
def _other_phase(row: I64) -> bool:
    """Whether an event neither lasts nor is an instant; arrows are as many as kernels."""
    phase = row[PHASE]
    return bool(phase != _LASTS and phase != _INSTANT and phase != 0)  # noqa: PLR1714


@njit(nogil=True, forceinline=True)
def _unwanted(row: I64, python: bool) -> bool:
    """Whether what was read of an event already tells that its rest does not matter."""
    if _other_phase(row):
        return True
    return not python and (row[FLAGS] & PYTHON) != 0 and row[PHASE] == _LASTS


@njit(nogil=True, forceinline=True)
def _scan_member(buf: U8, p: int, end: int, row: I64) -> int:
    """Read the member of an event whose key opens at ``p``; position after it, CUT or BROKEN."""
    start = p + 1
    key_end, p = value_of(buf, p, end)
    if p < 0:
        return p
    k = _find_key(buf, start, key_end, 0)
    if k >= 0 and KEYS[k, 2] == TO_ARGS and p < end and buf[p] == OPEN:
        return _scan_args(buf, p, end, row)
    stop = skip_value(buf, p, end)
    if k >= 0 and stop >= 0:
        _note(buf, p, stop, row, k)
    return stop


@njit(nogil=True, forceinline=True)
def _scan_event(buf: U8, p: int, end: int, row: I64, python: bool) -> int:
    """Read the object that opens at ``p``: position after it, CUT or BROKEN."""
    for i in range(WIDTH):
        row[i] = ABSENT if FIRST_INTEGER <= i < FIRST_TEXT else 0
    row[START] = p
    p = skip_space(buf, p + 1, end)
    if p < end and buf[p] == CLOSE:
        return p + 1
    while p >= 0 and p < end:
        p = _scan_member(buf, p, end, row)
        if p < 0:
            return p
        p, ended = after_member(buf, p, end)
        if ended:
            return p
        if p >= 0 and _unwanted(row, python):
            return skip_open(buf, p, end)
    return min(p, CUT)


_SCAN = types.UniTuple(int64, 3)(TEXT, int64, int64, int64[:, ::1], boolean)  # type: ignore[no-untyped-call]


@njit(_SCAN, cache=True, nogil=True)
def scan_events(buf: U8, p: int, end: int, out: I64, python: bool) -> tuple[int, int, int]:
    """Scan objects of the array from ``p`` on, which lies inside the array.

    Args:
        buf: the text.
        p: position inside the array, outside of any object.
        end: where the text in ``buf`` ends.
        out: one row per event that lasts or is an instant is written here, shape
            ``(capacity, WIDTH)``; its last row may hold rubbish.
        python: read the frames of Python functions too; else only their flag is set.

    Returns:
        Number of events written, the position to go on from, and why it stopped: MORE
        (position of the object that is cut off), CLOSED (position after the array's
        bracket), DAMAGED (position of the damage) or FULL.
    """
    n = 0
    while True:
        p = skip_space(buf, p, end)
        if p >= end:
            return n, p, MORE
        c = buf[p]
        if c == COMMA:
            p += 1
        elif c == CLOSE_LIST:
            return n, p + 1, CLOSED
        elif c != OPEN:
            return n, p, DAMAGED
        elif n == len(out):
            return n, p, FULL
        else:
            stop = _scan_event(buf, p, end, out[n], python)
            if stop < 0:
                cut = stop == CUT and end - p <= MAX_EVENT_BYTES
                return n, p, MORE if cut else DAMAGED
            out[n, STOP] = stop
            if not _other_phase(out[n]):
                n += 1
            p = stop
