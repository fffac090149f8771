"""Reads eight bytes of text at once, compiled.

Positions are unsigned here: an index that may be negative costs compiled code a test each.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

U8 = NDArray[np.uint8]

BYTES = np.uint64(8)

_I1, _I2, _I3, _I4, _I5, _I6, _I7 = (np.uint64(i) for i in range(1, 8))
_S1, _S2, _S3, _S4, _S5, _S6, _S7 = (np.uint64(8 * i) for i in range(1, 8))


@njit(nogil=True, forceinline=True)
def word_at(buf: U8, q: np.uint64) -> np.uint64:
    """The bytes ``buf[q:q + 8]``, first one lowest; the compiler makes one load of them."""
    low = np.uint64(buf[q]) | np.uint64(buf[q + _I1]) << _S1
    low |= np.uint64(buf[q + _I2]) << _S2 | np.uint64(buf[q + _I3]) << _S3
    low |= np.uint64(buf[q + _I4]) << _S4 | np.uint64(buf[q + _I5]) << _S5
    return low | np.uint64(buf[q + _I6]) << _S6 | np.uint64(buf[q + _I7]) << _S7
