"""The columns of a trace's events, gathered block by block."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.traces.coded import Coded
from foretrace.traces.importers import scan
from foretrace.traces.importers.intern import Interner
from foretrace.traces.importers.stream import Block
from foretrace.traces.salvage import Losses, repair

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]

_ALL_INTEGERS = dict(zip(scan.INTEGERS, range(scan.FIRST_INTEGER, scan.FIRST_TEXT), strict=True))
_MEMORY_KEYS = scan.INTEGERS[-6:]
_EVENT_KEYS = scan.INTEGERS[:-6]


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
        self._texts = [Interner() for _ in scan.TEXTS]

    def add(self, block: Block) -> None:
        """Take in the events of a block."""
        rows = block.rows
        rows = rows[(rows[:, scan.PHASE] == ord("X")) & (rows[:, scan.FLAGS] & scan.TRACE == 0)]
        if not self._python:
            frames = rows[:, scan.FLAGS] & scan.PYTHON != 0
            self._losses.add("python frames (use --python)", int(frames.sum()))
            rows = rows[~frames]
        rows = with_times(block, rows, self._losses)
        negative = rows[:, scan.DUR] < 0
        self._losses.add("negative duration set to 0 (kept)", int(negative.sum()))
        self._times.append(rows[:, [scan.TS, scan.DUR]])
        self._times[-1][negative, 1] = 0
        self._integers.append(rows[:, [_ALL_INTEGERS[k] for k in _EVENT_KEYS]])
        self._codes.append(self._code(block.text, rows))
        for i in np.flatnonzero(rows[:, scan.FLAGS] & scan.COLLECTIVE):
            start, stop = rows[i, [scan.START, scan.STOP]]
            self.collectives[self._rows + int(i)] = block.text[start:stop].tobytes()
        self._rows += len(rows)

    def _code(self, text: scan.U8, rows: I64) -> I32:
        codes = np.empty((len(rows), len(scan.TEXTS)), np.int32)
        for i, interner in enumerate(self._texts):
            column = scan.FIRST_TEXT + 2 * i
            codes[:, i] = interner.add(text, np.ascontiguousarray(rows[:, column : column + 2]))
        return codes

    def __len__(self) -> int:
        return self._rows

    def order(self) -> I64:
        """Rows by start, outer events before those they contain."""
        times = _join(self._times)
        return np.lexsort((-times[:, 1], times[:, 0]))

    def finish(self, order: I64) -> dict[str, Any]:
        """All columns by name in the given order; to be called once.

        Returns:
            ``start_ns`` and ``dur_ns`` as the file has them; an int64 array for each key of
            an event, :data:`scan.ABSENT` where it has none; :class:`Coded` for each text.
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
        for i, key in enumerate(scan.TEXTS):
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
        rows = rows[(rows[:, scan.PHASE] == ord("i")) & (rows[:, scan.FLAGS] & scan.MEMORY != 0)]
        rows = with_times(block, rows, self._losses)
        if len(rows):
            wanted = [_ALL_INTEGERS[k] for k in ("tid", *_MEMORY_KEYS)]
            self._parts.append(rows[:, [scan.TS, *wanted]])

    def finish(self) -> dict[str, I64]:
        """Columns by key, sorted by time, times as the file has them; empty if there are none."""
        if not self._parts:
            return {}
        rows = np.concatenate(self._parts)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return {k: rows[:, i] for i, k in enumerate(("ts", "tid", *_MEMORY_KEYS))}


def with_times(block: Block, rows: I64, losses: Losses) -> I64:
    """The rows whose time could be read; the others are counted."""
    good = rows[:, scan.FLAGS] & (scan.BAD_TIME | scan.HAS_TS) == scan.HAS_TS
    if good.all():
        return rows
    bad = rows[~good]
    start, stop = bad[0, [scan.START, scan.STOP]]
    losses.add("event without a readable time", len(bad), block.text[start:stop].tobytes())
    return rows[good]


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
