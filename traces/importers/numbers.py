"""Numbers in JSON text, read exactly: decimal microseconds to nanoseconds, ids to 64 bits."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_inner = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
U8 = NDArray[np.uint8]

_LARGEST = 922_337_203_685_477_579
"""The largest value that can take one more decimal digit in 63 bits."""

_ZERO, _NINE, _MINUS, _PLUS, _POINT, _QUOTE = 48, 57, 45, 43, 46, 34
_EXPONENT = (69, 101)  # E, e
_X = 120


@_inner
def _exponent(buf: U8, p: int, end: int) -> tuple[int, bool]:
    """The number after the ``e`` of a decimal."""
    negative = False
    if p < end and (buf[p] == _MINUS or buf[p] == _PLUS):
        negative = buf[p] == _MINUS
        p += 1
    value = 0
    ok = p < end
    while p < end:
        ok = ok and buf[p] >= _ZERO and buf[p] <= _NINE and value < 1000
        value = value * 10 + (np.int64(buf[p]) - _ZERO) if ok else 0
        p += 1
    return (-value if negative else value), ok


@_inner
def _shape(buf: U8, p: int, end: int) -> tuple[int, int, bool]:
    """(digits before the point with the exponent, end of the mantissa, well formed)."""
    before = 0
    digits = 0
    point = False
    while p < end:
        c = buf[p]
        if c >= _ZERO and c <= _NINE:
            digits += 1
            before += 0 if point else 1
        elif c == _POINT and not point:
            point = True
        elif c in _EXPONENT:
            exponent, ok = _exponent(buf, p + 1, end)
            return before + exponent, p, ok and digits > 0
        else:
            return 0, p, False
        p += 1
    return before, p, digits > 0


@_inner
def _digits(buf: U8, p: int, stop: int, wanted: int) -> tuple[int, int, bool]:
    """The first ``wanted`` digits as a number, padded with zeros.

    Returns:
        The number, -1, 0 or 1 as what follows is below, at or above half of its last digit,
        and whether the number fits.
    """
    value = 0
    seen = 0
    rest = -1
    fits = True
    while p < stop:
        c = buf[p]
        p += 1
        if c == _POINT:
            continue
        digit = np.int64(c) - _ZERO
        if seen < wanted:
            fits = fits and value <= _LARGEST
            value = value * 10 + digit
        elif seen == wanted:
            rest = 1 if digit > 5 else 0 if digit == 5 else -1
        elif rest == 0 and digit:
            rest = 1
        seen += 1
    while seen < wanted and value and fits:
        fits = value <= _LARGEST
        value *= 10
        seen += 1
    return value, rest, fits


@njit(cache=True, nogil=True)
def decimal_us_to_ns(buf: U8, p: int, end: int) -> tuple[int, bool]:
    """Nanoseconds of the decimal microseconds in ``buf[p:end]``, rounded half to even.

    A double would not do: of today's absolute microseconds it resolves 0.25 us only.

    Returns:
        The nanoseconds, and False where the text is no number or does not fit 63 bits.
    """
    negative = p < end and buf[p] == _MINUS
    if negative:
        p += 1
    before, stop, ok = _shape(buf, p, end)
    if not ok:
        return 0, False
    value, rest, fits = _digits(buf, p, stop, before + 3)
    if before + 3 < 0:  # far below a nanosecond
        return 0, True
    if rest > 0 or (rest == 0 and value % 2 == 1):
        value += 1
    return (-value if negative else value), fits


@_inner
def _hexadecimal(buf: U8, p: int, end: int) -> tuple[int, bool]:
    value = np.int64(0)
    ok = p < end
    while p < end:
        c = np.int64(buf[p]) | 32  # lower case
        digit = c - 87 if c >= 97 else np.int64(buf[p]) - _ZERO
        ok = ok and 0 <= digit < 16
        value = value * 16 + digit
        p += 1
    return value, ok


@njit(cache=True, nogil=True)
def first_integer(buf: U8, p: int, end: int) -> tuple[int, bool]:
    """The first integer in a JSON value: ``7``, ``"stream 7"``, ``"25738 (python)"``, ``"0x1f"``.

    Returns:
        The integer, and False where there is none (``null``, ``""``). Unsigned 64-bit ids
        come out as the signed number of the same bits.
    """
    if p < end and buf[p] == _QUOTE:
        p += 1
        end -= 1
    if p + 1 < end and buf[p] == _ZERO and buf[p + 1] == _X:
        return _hexadecimal(buf, p + 2, end)
    while p < end and (buf[p] < _ZERO or buf[p] > _NINE):
        p += 1
    if p == end:
        return 0, False
    negative = p > 0 and buf[p - 1] == _MINUS
    value = np.int64(0)
    while p < end and buf[p] >= _ZERO and buf[p] <= _NINE:
        value = value * 10 + (np.int64(buf[p]) - _ZERO)
        p += 1
    return (-value if negative else value), True
