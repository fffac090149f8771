"""The events of a trace as they come out of a byte stream, block by block."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers import json_text, keys, scan
from foretrace.traces.salvage import Losses, blank_control_bytes, mend, next_event

CAPACITY = 1 << 11
"""Events of one block at most."""

_ARRAY_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENT = re.compile(rb'\{\s*"ph"\s*:\s*"X"')
_GOES_ON = re.compile(rb'\s*,?\s*\{\s*"')
_PHASE_KEY = b'"ph"'
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_KEPT_BYTES = 64  # enough to recognise an event's opening that was cut in two


@dataclass(frozen=True, slots=True)
class Block:
    """Whole events that lie in one piece of text.

    Attributes:
        text: the text, uint8, shape ``(bytes,)``.
        fields: what was read of each event, as in :mod:`keys`, shape ``(WIDTH, events)``.
    """

    text: scan.U8
    fields: scan.I64

    def event(self, number: int) -> bytes:
        """The text of one event."""
        start, stop = self.fields[[keys.START, keys.STOP], number]
        return self.text[start:stop].tobytes()


class EventStream:
    """Splits the text of a trace into its events and what stands around them.

    Args:
        chunks: the text, in pieces of any size.
        losses: takes note of damaged events.
        python: read the frames of Python functions too.

    Attributes:
        head: text before the events, available once blocks come.
        tail: text after the events, available at the end.
        closed: whether the array of events ended; False for a cut-off file.
        size: bytes read.
    """

    def __init__(self, chunks: Iterable[bytes], losses: Losses, python: bool = False) -> None:
        self.head = b""
        self.tail = b""
        self.closed = False
        self.size = 0
        self._chunks = iter(chunks)
        self._losses = losses
        self._python = python

    def blocks(self) -> Iterator[Block]:
        """Blocks in file order; a block is valid until the next one is asked for.

        Raises:
            TraceFormatError: the text has no array of events.
        """
        text = bytearray()
        position = self._enter(text)
        more = True
        while not self.closed and (more or position < len(text)):
            fields, position, state = self._scan(text, position)
            if fields.size:
                yield Block(json_text.as_array(text), fields)
            if state == json_text.CLOSED and more and len(text) - position < _KEPT_BYTES:
                text, position, more = self._refill(text, position - 1)  # see what follows
            elif state == json_text.CLOSED and _GOES_ON.match(text, position):
                self._losses.add(
                    "bracket in the midst of the events", 1, bytes(text[position:][:200])
                )
            elif state == json_text.CLOSED:
                self.closed = True
            elif state == json_text.MORE and not more and position < len(text):
                self._losses.add("event cut off by the end of the file", 1, bytes(text[position:]))
                break
            elif state == json_text.MORE or (more and self._may_go_on(text, position, state)):
                text, position, more = self._refill(text, position)
            elif state == json_text.DAMAGED:
                mended, position = self._step_over(text, position)
                if mended is not None:
                    yield mended
        self.tail = bytes(text[position:]) + b"".join(self._counted()) if self.closed else b""
        behind = len(_EVENT.findall(self.tail))
        self._losses.add("event behind the end of the list of events", behind)

    def _counted(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.size += len(chunk)
            yield chunk

    def _scan(self, text: bytearray, position: int) -> tuple[scan.I64, int, int]:
        """The fields of further events, the position to go on from, and why it stopped."""
        out = np.empty((CAPACITY, keys.WIDTH), np.int64)
        n, position, state = scan.scan_events(
            json_text.as_array(text), position, len(text), out, self._python
        )
        return out[:n].T, int(position), int(state)

    def _refill(self, text: bytearray, position: int) -> tuple[bytearray, int, bool]:
        """Text from ``position`` on with the next chunk behind it, and whether there was one."""
        chunk = next(self._counted(), None)
        rest = text[position:]
        if chunk is None:
            return rest, 0, False
        rest += chunk
        return rest, 0, True

    def _may_go_on(self, text: bytearray, position: int, state: int) -> bool:
        """Whether the end of a damaged event is still to come."""
        short = len(text) - position < scan.MAX_EVENT_BYTES
        return state == json_text.DAMAGED and short and next_event(text, position + 1) < 0

    def _step_over(self, text: bytearray, position: int) -> tuple[Block | None, int]:
        """Mend the damaged event at ``position`` or leave it out.

        Returns:
            The event if it could be mended, and where to go on from.
        """
        following = next_event(text, position + 1)
        stop = following if following > 0 else len(text)
        damaged = bytes(text[position:stop])
        text[position:stop] = blank_control_bytes(damaged)
        block, after = self._scan_one(text, position, stop)
        if block is not None:
            self._losses.add("control bytes in a text made blanks (kept)", 1, damaged)
            return block, after
        go_on = following if following > 0 else max(position + 1, len(text) - _KEPT_BYTES)
        mended = mend(damaged) if damaged.count(_PHASE_KEY) == 1 else None
        if mended is None:
            self._losses.add("damaged event", max(damaged.count(_PHASE_KEY), 1), damaged)
            return None, go_on
        self._losses.add("damaged event mended (kept)", 1, damaged)
        return self._scan_one(mended, 0, len(mended))[0], go_on

    def _scan_one(self, text: bytes | bytearray, start: int, stop: int) -> tuple[Block | None, int]:
        """The event at ``start``, None if it is damaged, and the position after it."""
        row = np.empty((1, keys.WIDTH), np.int64)
        n, after, _ = scan.scan_events(json_text.as_array(text), start, stop, row, True)
        if after == start:
            return None, start
        return Block(json_text.as_array(text), row[:n].T), int(row[0, keys.STOP])

    def _enter(self, text: bytearray) -> int:
        """Read up to the array of events; the position inside it."""
        position = -1
        more = True
        while more:
            chunk = next(self._counted(), None)
            more = chunk is not None
            text += chunk or b""
            if position < 0:
                position = _after_opening(text)
            if position < 0:
                continue
            if text[position - 1] == ord("["):
                return position
            at, state = json_text.find_array(json_text.as_array(text), position, len(text))
            if state == json_text.CLOSED:
                self.head = bytes(text[:at])
                return int(at) + 1
            if state == json_text.DAMAGED:
                match = _ARRAY_KEY.search(text, int(at))
                if match:  # reading the metadata will count the damage
                    self.head = bytes(text[: match.end() - 1])
                    return match.end()
                continue
            position = int(at)
        raise TraceFormatError("it has no traceEvents array")


def _after_opening(text: bytes | bytearray) -> int:
    """Position after the bracket or brace that opens the document; -1 if it is not there yet."""
    if len(text) < 3 and _BYTE_ORDER_MARK.startswith(bytes(text)):
        return -1
    start = 3 if text.startswith(_BYTE_ORDER_MARK) else 0
    while start < len(text) and text[start] <= 32:
        start += 1
    if start == len(text):
        return -1
    if text[start] not in b"{[":
        raise TraceFormatError("it does not begin like JSON")
    return start + 1
