"""The columns of a trace's events, gathered block by block."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.traces.coded import Coded
from foretrace.traces.importers import keys
from foretrace.traces.importers.intern import Interner
from foretrace.traces.importers.numbers import odd_us_to_ns
from foretrace.traces.importers.stream import Block
from foretrace.traces.salvage import Losses, repair

I64 = NDArray[np.int64]

_COLUMN = dict(zip(keys.INTEGERS, range(keys.FIRST_INTEGER, keys.FIRST_TEXT), strict=True))
LATEST_NS = 1 << 61
"""No time is that far from its base; three of them still fit 63 bits."""
TOO_LONG = LATEST_NS
"""Stands for a duration beyond all bounds until it is seen what can be made of it."""

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
        self._parts: dict[str, list[Any]] = {}
        self._texts = {key: Interner() for key in keys.TEXTS}

    def add(self, block: Block) -> None:
        """Take in the events of a block."""
        fields = block.fields
        flags = fields[keys.FLAGS]
        lasts = (fields[keys.PHASE] == ord("X")) & (flags & keys.TRACE == 0)
        if not self._python:
            frames = lasts & (flags & keys.PYTHON != 0)
            self._losses.add("python frames (use --python)", int(frames.sum()))
            lasts &= ~frames
        here = with_times(block, np.flatnonzero(lasts), self._losses)
        self._put("start_ns", fields[keys.TS, here])
        self._put("dur_ns", self._durations(block, here))
        unreadable = flags[here] & keys.BAD_VALUE != 0
        self._note(
            block, here, unreadable, "id, name or arguments that are none (taken for absent)"
        )
        for key in _EVENT_KEYS:
            self._put(key, fields[_COLUMN[key], here])
        for i, key in enumerate(keys.TEXTS):
            column = keys.FIRST_TEXT + 2 * i
            spans = np.ascontiguousarray(fields[column : column + 2, here].T)
            self._put(key, self._texts[key].add(block.text, spans))
        for row in np.flatnonzero(flags[here] & keys.COLLECTIVE).tolist():
            self.collectives[self._rows + row] = block.event(int(here[row]))
        self._rows += len(here)

    def _durations(self, block: Block, here: I64) -> I64:
        """Durations that can be: none negative, those beyond all bounds as TOO_LONG."""
        durations, flags = block.fields[keys.DUR, here], block.fields[keys.FLAGS, here]
        self._note(block, here, durations < 0, "negative duration set to 0 (kept)")
        known = keys.HAS_DUR | keys.BAD_DUR
        self._note(block, here, flags & known == 0, "event without a duration (kept with 0)")
        clipped: I64 = np.clip(durations, 0, TOO_LONG)
        return clipped

    def _note(self, block: Block, here: I64, faulty: NDArray[np.bool_], reason: str) -> None:
        if faulty.any():
            example = block.event(int(here[np.argmax(faulty)]))
            self._losses.add(reason, int(faulty.sum()), example)

    def _put(self, name: str, values: Any) -> None:
        self._parts.setdefault(name, []).append(values)

    def __len__(self) -> int:
        return self._rows

    def order(self) -> I64:
        """Rows by start, outer events before those they contain."""
        start, duration = _join(self._parts["start_ns"]), _join(self._parts["dur_ns"])
        order: I64 = np.lexsort((-duration, start))
        return order

    def finish(self, order: I64) -> dict[str, Any]:
        """All columns by name in the given order; to be called once.

        Returns:
            ``start_ns`` and ``dur_ns`` as the file has them; an int64 array for each key of
            an event, :data:`keys.ABSENT` where it has none; :class:`Coded` for each text.
        """
        columns: dict[str, Any] = {}
        for name in list(self._parts):
            values = _join(self._parts.pop(name))[order]
            if name in self._texts:
                decode = _plain_text if name in ("name", "cat") else _one_line
                texts = [decode(t, self._losses) for t in self._texts.pop(name).texts()]
                values = Coded(values, texts)
            columns[name] = values
        return columns


class MemoryColumns:
    """Gathers the instants that tell of allocations.

    Args:
        losses: takes note of what is left out.
    """

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._parts: dict[str, list[I64]] = {}

    def add(self, block: Block) -> None:
        """Take in the allocations of a block."""
        fields = block.fields
        instant = (fields[keys.PHASE] == ord("i")) & (fields[keys.FLAGS] & keys.MEMORY != 0)
        here = with_times(block, np.flatnonzero(instant), self._losses)
        if len(here):
            self._parts.setdefault("ts", []).append(fields[keys.TS, here])
            for key in ("tid", *_MEMORY_KEYS):
                self._parts.setdefault(key, []).append(fields[_COLUMN[key], here])

    def finish(self) -> dict[str, I64]:
        """Columns by key, sorted by time, times as the file has them; empty if there are none."""
        if not self._parts:
            return {}
        order = np.argsort(_join(self._parts["ts"]), kind="stable")
        return {key: _join(self._parts.pop(key))[order] for key in list(self._parts)}


def with_times(block: Block, here: I64, losses: Losses) -> I64:
    """Those of the events ``here`` whose times could be read; the others are counted."""
    fields = block.fields
    flags = fields[keys.FLAGS]
    for i in here[flags[here] & keys.BAD_TIME != 0]:
        _read_odd_times(block, int(i), losses)
    twice = here[flags[here] & keys.TWICE != 0]
    if len(twice):
        losses.add("time given twice (the last one kept)", len(twice), block.event(int(twice[0])))
    good = (flags[here] & keys.HAS_TS != 0) & (np.abs(fields[keys.TS, here]) < LATEST_NS)
    if good.all():
        return here
    bad = here[~good]
    losses.add("event without a readable time", len(bad), block.event(int(bad[0])))
    kept: I64 = here[good]
    return kept


def _read_odd_times(block: Block, event: int, losses: Losses) -> None:
    """Read the times of an event that are no plain decimals.

    A duration that is no number, or none that fits, is :data:`TOO_LONG`: a fault, but not one
    that takes the event with it.
    """
    fields, text = block.fields, block.event(event)
    if fields[keys.FLAGS, event] & keys.BAD_TS:
        start_ns = odd_us_to_ns(text, "ts")
        if start_ns is not None:
            fields[keys.TS, event] = start_ns
            fields[keys.FLAGS, event] |= keys.HAS_TS
    if fields[keys.FLAGS, event] & keys.BAD_DUR:
        dur_ns = odd_us_to_ns(text, "dur")
        if dur_ns is None:
            losses.add("unreadable duration (the event kept)", 1, text)
        fields[keys.DUR, event] = TOO_LONG if dur_ns is None else dur_ns


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
