"""Numbers in JSON text, read exactly: decimal microseconds to nanoseconds, ids to 64 bits."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from numba import boolean, int64, njit, types
from numpy.typing import NDArray

U8 = NDArray[np.uint8]

_TEXT = types.Array(types.uint8, 1, "C", readonly=True)
_NUMBER = types.Tuple((int64, boolean))(_TEXT, int64, int64)  # type: ignore[no-untyped-call]

LARGEST_US = 9_223_372_036_854_774
"""Microseconds above this do not fit 63 bits of nanoseconds."""

_ZERO, _ONE, _NINE, _PLUS, _MINUS, _POINT, _QUOTE = 48, 49, 57, 43, 45, 46, 34
_HEX, _EXPONENT = 120, 101  # x, e
_TENTH = 922_337_203_685_477_580


@njit(_NUMBER, cache=True, nogil=True)
def decimal_us_to_ns(buf: U8, p: int, end: int) -> tuple[int, bool]:
    """Nanoseconds of the plain decimal microseconds in ``buf[p:end]``, rounded half to even.

    A double would not do: of today's absolute microseconds it resolves 0.25 us only.

    Returns:
        The nanoseconds, and False where the text is anything but digits with at most one
        point, or does not fit; :func:`odd_us_to_ns` reads the rest of what JSON allows.
    """
    negative = p < end and buf[p] == _MINUS
    if negative:
        p += 1
    first = p
    value = 0
    while p < end and _ZERO <= buf[p] <= _NINE:
        value = value * 10 + (int(buf[p]) - _ZERO)
        p += 1
    ok = 0 < p - first <= 16 and value <= LARGEST_US
    places = 0
    rest = -1  # what follows the third place is below, at or above half of it
    if p < end and buf[p] == _POINT:
        p += 1
        while p < end and _ZERO <= buf[p] <= _NINE:
            digit = int(buf[p]) - _ZERO
            if places < 3:
                value = value * 10 + digit
            elif places == 3:
                rest = 1 if digit > 5 else 0 if digit == 5 else -1
            elif rest == 0 and digit > 0:
                rest = 1
            places += 1
            p += 1
    while places < 3:
        value *= 10
        places += 1
    if rest > 0 or (rest == 0 and value % 2 == 1):
        value += 1
    return (-value if negative else value), ok and p == end


@njit(nogil=True)
def _hexadecimal(buf: U8, p: int, end: int) -> tuple[int, bool]:
    """The number in the hexadecimal digits from ``p`` on, which must fit 64 bits."""
    first = p
    value = 0
    while p < end:
        c = int(buf[p]) | 32  # small letters; digits have the bit already
        if _ZERO <= c <= _NINE:
            digit = c - _ZERO
        elif 97 <= c <= 102:
            digit = c - 87
        else:
            break
        value = (value << 4) | digit
        p += 1
    return value, 0 < p - first <= 16


@njit(nogil=True)
def _scaled(buf: U8, p: int, end: int, value: int) -> tuple[int, bool]:
    """``value`` with the fraction and exponent from ``p`` on, if that is a whole number."""
    if p < end and buf[p] == _POINT:
        p += 1
        while p < end and buf[p] == _ZERO:
            p += 1
    if p < end and (int(buf[p]) | 32) == _EXPONENT:
        p += 1
        if p < end and buf[p] == _PLUS:
            p += 1
        exponent = 0
        while p < end and _ZERO <= buf[p] <= _NINE and exponent < 20:
            exponent = exponent * 10 + (int(buf[p]) - _ZERO)
            p += 1
        while exponent > 0 and -_TENTH <= value <= _TENTH:
            value *= 10
            exponent -= 1
        if exponent > 0:
            return 0, False
    return value, p == end


@njit(_NUMBER, cache=True, nogil=True)
def first_integer(buf: U8, p: int, end: int) -> tuple[int, bool]:
    """The first integer in a JSON value: ``7``, ``"stream 7"``, ``"25738 (python)"``, ``"0x1f"``.

    Returns:
        The integer, and False where there is none (``null``, ``""``), where a number is not
        whole or where it does not fit 64 bits. Unsigned 64-bit ids come out as the signed
        number of the same bits.
    """
    bare = p < end and buf[p] != _QUOTE
    while p < end and (buf[p] < _ZERO or buf[p] > _NINE):
        p += 1
    if p == end:
        return 0, False
    negative = p > 0 and buf[p - 1] == _MINUS
    if p + 2 < end and buf[p] == _ZERO and (int(buf[p + 1]) | 32) == _HEX:
        return _hexadecimal(buf, p + 2, end)
    first = p
    value = 0
    while p < end and _ZERO <= buf[p] <= _NINE:
        value = value * 10 + (int(buf[p]) - _ZERO)
        p += 1
    # of 20 digits, only those from 2**63 to 2**64 come out negative
    fits = p - first <= 19 or (p - first == 20 and buf[first] == _ONE and value < 0)
    ok = True
    if bare and p < end and (buf[p] == _POINT or (int(buf[p]) | 32) == _EXPONENT):
        value, ok = _scaled(buf, p, end, value)
    return (-value if negative else value), fits and ok


def odd_us_to_ns(event: bytes, key: str) -> int | None:
    """Nanoseconds of a time that is written in an unusual way; None if it is no number.

    Args:
        event: JSON text of the event.
        key: ``ts`` or ``dur``.
    """
    absent = 0 if key == "dur" else None
    try:
        fields = json.loads(event.decode("utf-8", "replace"), parse_float=Decimal)
        value: Any = fields.get(key, absent)
        ns = (Decimal(value) * 1000).to_integral_value()
    except (ValueError, TypeError, InvalidOperation):
        return None
    return int(ns) if ns.is_finite() and abs(ns) < 1 << 63 else None
