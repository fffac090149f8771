"""Numbers the distinct texts among many pieces of a byte buffer; compares, never just hashes."""

from __future__ import annotations

import numpy as np
from numba import int32, int64, njit, types, uint8, uint64, void
from numpy.typing import NDArray

from foretrace.traces.importers.words import BYTES, word_at

U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_ONE, _SHIFT, _HALF = (np.uint64(n) for n in (1, 29, 32))
_PRIME = np.uint64(1099511628211)
_FIRST_TEXTS = 1 << 10
_FIRST_BYTES = 1 << 16


@njit(nogil=True, forceinline=True)
def _hash(buf: U8, p: int, stop: int) -> int:
    q, end = uint64(p), uint64(stop)
    value = end - q
    while q + BYTES <= end:
        value = (value ^ word_at(buf, q)) * _PRIME
        value ^= value >> _HALF  # the upper bytes of a word must reach the lower bits
        q += BYTES
    while q < end:
        value = (value ^ uint64(buf[q])) * _PRIME
        q += _ONE
    return int(int64(value ^ (value >> _SHIFT)))


@njit(nogil=True, forceinline=True)
def _same(buf: U8, p: int, arena: U8, offset: int, length: int) -> bool:
    q, o, end = uint64(p), uint64(offset), uint64(p + length)
    while q + BYTES <= end:
        if word_at(buf, q) != word_at(arena, o):
            return False
        q += BYTES
        o += BYTES
    while q < end:
        if buf[q] != arena[o]:
            return False
        q += _ONE
        o += _ONE
    return True


_TEXT = types.Array(uint8, 1, "C", readonly=True)
_TABLE = types.Tuple((int64[::1], int64[:, ::1], uint8[::1], int64[::1]))  # type: ignore[no-untyped-call]


@njit(int64(_TEXT, int64[:, ::1], int32[::1], _TABLE), cache=True, nogil=True)
def _intern(buf: U8, spans: I64, codes: I32, table: tuple[I64, I64, U8, I64]) -> int:
    """Code each span; stops where a table is full and returns how many were done."""
    slots, texts, arena, used = table
    mask = len(slots) - 1
    for i in range(len(spans)):
        p = spans[i, 0]
        length = spans[i, 1] - p
        if used[0] * 2 >= len(slots) or used[0] == len(texts) or used[1] + length > len(arena):
            return i
        key = _hash(buf, p, p + length)
        slot = key & mask
        while True:
            code = slots[slot]
            if code < 0:
                code = used[0]
                slots[slot] = code
                texts[code, 0] = used[1]
                texts[code, 1] = length
                texts[code, 2] = key
                for k in range(length):  # a slice would take seconds to compile
                    arena[used[1] + k] = buf[p + k]
                used[0] += 1
                used[1] += length
                break
            here = texts[code, 2] == key and texts[code, 1] == length
            if here and _same(buf, p, arena, texts[code, 0], length):
                break
            slot = (slot + 1) & mask
        codes[i] = code
    return len(spans)


@njit(void(int64[::1], int64[:, ::1], int64), cache=True, nogil=True)
def _refill(slots: I64, texts: I64, count: int) -> None:
    """Enter the first ``count`` texts into empty slots."""
    mask = len(slots) - 1
    for code in range(count):
        slot = texts[code, 2] & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = code


class Interner:
    """Distinct texts with a number each, in the order in which they came; 0 is the empty text."""

    def __init__(self) -> None:
        self._slots = np.full(2 * _FIRST_TEXTS, -1, np.int64)
        self._texts = np.zeros((_FIRST_TEXTS, 3), np.int64)  # offset, length, hash
        self._arena = np.zeros(_FIRST_BYTES, np.uint8)
        self._used = np.zeros(2, np.int64)  # texts, bytes
        self.add(self._arena, np.zeros((1, 2), np.int64))

    def __len__(self) -> int:
        return int(self._used[0])

    def add(self, buf: U8, spans: I64) -> I32:
        """Numbers of the texts ``buf[start:stop]``, shape ``(spans,)``.

        Args:
            buf: bytes.
            spans: start and stop of each text, shape ``(spans, 2)``.
        """
        codes = np.empty(len(spans), np.int32)
        done = 0
        while done < len(spans):
            table = (self._slots, self._texts, self._arena, self._used)
            done += int(_intern(buf, spans[done:], codes[done:], table))
            if done < len(spans):
                self._grow(int(spans[done, 1] - spans[done, 0]))
        return codes

    def _grow(self, length: int) -> None:
        count, used = self._used.tolist()
        if used + length > len(self._arena):
            arena = np.zeros(2 * len(self._arena) + length, np.uint8)
            arena[:used] = self._arena[:used]
            self._arena = arena
        if 2 * count >= len(self._slots) or count == len(self._texts):
            texts = np.zeros((2 * len(self._texts), 3), np.int64)
            texts[:count] = self._texts[:count]
            self._texts = texts
            self._slots = np.full(2 * len(texts), -1, np.int64)
            _refill(self._slots, self._texts, count)

    def texts(self) -> list[bytes]:
        """The distinct texts by number."""
        data = self._arena.tobytes()
        return [data[o : o + n] for o, n in self._texts[: len(self), :2].tolist()]
