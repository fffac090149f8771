"""The columns of a trace's events, gathered block by block."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.traces.coded import Coded
from foretrace.traces.importers import keys, scan
from foretrace.traces.importers.intern import Interner
from foretrace.traces.importers.numbers import odd_us_to_ns
from foretrace.traces.importers.stream import Block
from foretrace.traces.salvage import Losses, repair

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]

_ALL_INTEGERS = dict(zip(keys.INTEGERS, range(keys.FIRST_INTEGER, keys.FIRST_TEXT), strict=True))
_MEMORY_KEYS = keys.INTEGERS[-6:]
_EVENT_KEYS = keys.INTEGERS[:-6]


class EventColumns:
    """Gathers the events that last (phase X).

    Args:
        losses: takes note of what is left out.
        python: keep the frames of Python functions.

    Attributes:
        collectives: text of the events that carry metadata of a collective, by row.
    """

    def __init__(self, losses: Losses, python: bool) -> None:
        self.collectives: dict[int, bytes] = {}
        self._losses = losses
        self._python = python
        self._rows = 0
        self._times: list[I64] = []
        self._integers: list[I64] = []
        self._codes: list[I32] = []
        self._texts = [Interner() for _ in keys.TEXTS]

    def add(self, block: Block) -> None:
        """Take in the events of a block."""
        rows = block.rows
        rows = rows[(rows[:, keys.PHASE] == ord("X")) & (rows[:, keys.FLAGS] & keys.TRACE == 0)]
        if not self._python:
            frames = rows[:, keys.FLAGS] & keys.PYTHON != 0
            self._losses.add("python frames (use --python)", int(frames.sum()))
            rows = rows[~frames]
        rows = with_times(block, rows, self._losses)
        negative = rows[:, keys.DUR] < 0
        self._losses.add("negative duration set to 0 (kept)", int(negative.sum()))
        self._times.append(rows[:, [keys.TS, keys.DUR]])
        self._times[-1][negative, 1] = 0
        self._integers.append(rows[:, [_ALL_INTEGERS[k] for k in _EVENT_KEYS]])
        self._codes.append(self._code(block.text, rows))
        for i in np.flatnonzero(rows[:, keys.FLAGS] & keys.COLLECTIVE):
            start, stop = rows[i, [keys.START, keys.STOP]]
            self.collectives[self._rows + int(i)] = block.text[start:stop].tobytes()
        self._rows += len(rows)

    def _code(self, text: scan.U8, rows: I64) -> I32:
        codes = np.empty((len(rows), len(keys.TEXTS)), np.int32)
        for i, interner in enumerate(self._texts):
            column = keys.FIRST_TEXT + 2 * i
            codes[:, i] = interner.add(text, np.ascontiguousarray(rows[:, column : column + 2]))
        return codes

    def __len__(self) -> int:
        return self._rows

    def order(self) -> I64:
        """Rows by start, outer events before those they contain."""
        times = _join(self._times)
        order: I64 = np.lexsort((-times[:, 1], times[:, 0]))
        return order

    def finish(self, order: I64) -> dict[str, Any]:
        """All columns by name in the given order; to be called once.

        Returns:
            ``start_ns`` and ``dur_ns`` as the file has them; an int64 array for each key of
            an event, :data:`keys.ABSENT` where it has none; :class:`Coded` for each text.
        """
        times = _join(self._times)[order]
        columns: dict[str, Any] = {
            "start_ns": np.ascontiguousarray(times[:, 0]),
            "dur_ns": np.ascontiguousarray(times[:, 1]),
        }
        integers = _join(self._integers)
        for i, key in enumerate(_EVENT_KEYS):
            columns[key] = integers[order, i]
        self._integers.clear()
        codes = _join(self._codes)
        for i, key in enumerate(keys.TEXTS):
            decode = _plain_text if key in ("name", "cat") else _one_line
            columns[key] = Coded(
                codes[order, i], [decode(t, self._losses) for t in self._texts[i].texts()]
            )
        self._codes.clear()
        return columns


class MemoryColumns:
    """Gathers the instants that tell of allocations.

    Args:
        losses: takes note of what is left out.
    """

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._parts: list[I64] = []

    def add(self, block: Block) -> None:
        """Take in the allocations of a block."""
        rows = block.rows
        rows = rows[(rows[:, keys.PHASE] == ord("i")) & (rows[:, keys.FLAGS] & keys.MEMORY != 0)]
        rows = with_times(block, rows, self._losses)
        if len(rows):
            wanted = [_ALL_INTEGERS[k] for k in ("tid", *_MEMORY_KEYS)]
            self._parts.append(rows[:, [keys.TS, *wanted]])

    def finish(self) -> dict[str, I64]:
        """Columns by key, sorted by time, times as the file has them; empty if there are none."""
        if not self._parts:
            return {}
        rows = np.concatenate(self._parts)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return {k: rows[:, i] for i, k in enumerate(("ts", "tid", *_MEMORY_KEYS))}


def with_times(block: Block, rows: I64, losses: Losses) -> I64:
    """The rows whose times could be read; the others are counted."""
    flags = rows[:, keys.FLAGS]
    for i in np.flatnonzero(flags & keys.BAD_TIME):
        start, stop = rows[i, [keys.START, keys.STOP]]
        text = block.text[start:stop].tobytes()
        start_ns, dur_ns = odd_us_to_ns(text, "ts"), odd_us_to_ns(text, "dur")
        if start_ns is not None and dur_ns is not None:
            rows[i, [keys.TS, keys.DUR]] = start_ns, dur_ns
            flags[i] = (flags[i] | keys.HAS_TS) & ~keys.BAD_TIME
    good = flags & (keys.BAD_TIME | keys.HAS_TS) == keys.HAS_TS
    if good.all():
        return rows
    bad = rows[~good]
    start, stop = bad[0, [keys.START, keys.STOP]]
    losses.add("event without a readable time", len(bad), block.text[start:stop].tobytes())
    kept: I64 = rows[good]
    return kept


def _join(parts: list[Any]) -> Any:
    """The parts as one array, which replaces them so that nothing is held twice."""
    if len(parts) > 1:
        parts[:] = [np.concatenate(parts)]
    return parts[0]


def _plain_text(text: bytes, losses: Losses) -> str:
    """The text that a JSON value stands for."""
    if not text.startswith(b'"'):
        return text.decode("utf-8", "replace")
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        losses.add("text mended (kept)", 1, text)
    try:
        return msgspec.json.decode(repair(text), type=str)
    except msgspec.DecodeError:
        return text[1:-1].decode("utf-8", "replace")


def _one_line(text: bytes, losses: Losses) -> str:
    """JSON text as recorded, on one line."""
    del losses
    return " ".join(text.decode("utf-8", "replace").split())
