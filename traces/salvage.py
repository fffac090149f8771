"""What can be saved of a damaged trace, and the account of what could not."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from foretrace.traces.manifest import Dropped

EXAMPLE_CHARACTERS = 120
MENDABLE_BYTES = 1 << 16
"""Damage that goes on for longer is not looked into."""

_EVENT_START = re.compile(rb'\{\s*"ph"\s*:')
_ANY_START = re.compile(rb'\{\s*"(?:name|cat|pid|tid|ts|id)"\s*:')
_WHOLE = {"ph", "ts", "name"}
_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
_ENDS_TEXT = re.compile(rb'\s*(?::|[}\]]|,\s*["{\[]|"[^"\\]*"\s*:)')
_NO_COMMA = re.compile(rb"[\d}\]el]\s*$")
_CONTROL = bytes(range(0x20))
_BLANKS = bytes.maketrans(_CONTROL, b" " * len(_CONTROL))
_NOT_FINITE = re.compile(rb'(":\s*|[\[,]\s*)[-+]?(?:inf|infinity|nan)(?=\s*[,}\]])', re.IGNORECASE)
_BAD_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


@dataclass(slots=True)
class Losses:
    """Counts what a reader leaves out or changes, with one example for each reason."""

    _counts: dict[str, int] = field(default_factory=dict)
    _examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, count: int = 1, example: object = "") -> None:
        """Count ``count`` more losses for ``reason``; nothing happens for 0.

        Args:
            reason: what was lost, in the words of the report.
            count: how often.
            example: one of them: text, or a value that is shown as Python would.
        """
        if not count:
            return
        self._counts[reason] = self._counts.get(reason, 0) + count
        if example and reason not in self._examples:
            self._examples[reason] = shorten(example)

    def as_list(self) -> list[Dropped]:
        """The account, in the order in which the reasons came up."""
        return [
            Dropped(reason=reason, count=count, example=self._examples.get(reason, ""))
            for reason, count in self._counts.items()
        ]


def shorten(value: object) -> str:
    """The beginning of a text, or of what a value looks like, on one line."""
    if isinstance(value, bytes):
        text = value[: 4 * EXAMPLE_CHARACTERS].decode("utf-8", "replace")
    else:
        try:
            text = str(value)
        except RecursionError:
            text = "(nested too deep to be shown)"
    line = " ".join(text.split())
    return line if len(line) <= EXAMPLE_CHARACTERS else line[: EXAMPLE_CHARACTERS - 3] + "..."


def next_event(text: bytes | bytearray, start: int) -> int:
    """Where the next event opens at or after ``start``; -1 if none does.

    PyTorch writes the phase first; other writers may not, so any usual first key counts
    where no phase opens an object.
    """
    match = _EVENT_START.search(text, start) or _ANY_START.search(text, start)
    return match.start() if match else -1


def blank_control_bytes(text: bytes | bytearray) -> bytes:
    """``text`` with every control byte turned into a space; its length stays."""
    return bytes(text).translate(_BLANKS)


def mend(text: bytes) -> bytes | None:
    """A damaged event as valid JSON, if quotes in texts and missing commas are all that is wrong.

    A quote inside a text is told from one that ends it by what follows. Nothing is added but
    backslashes and commas, and the result must be JSON: a number that was cut stays lost.

    Args:
        text: from the brace that opens the event; may run on behind it.

    Returns:
        The event alone, or None if it cannot be saved so.
    """
    stop = text.rfind(b"}")
    if stop < 0 or len(text) > MENDABLE_BYTES:
        return None
    mended = _requoted(repair(text[: stop + 1]))
    try:
        event = msgspec.json.decode(mended)
    except (msgspec.DecodeError, RecursionError):
        return None
    return mended if isinstance(event, dict) and event.keys() >= _WHOLE else None


def _requoted(text: bytes) -> bytes:
    """``text`` with quotes inside texts escaped and commas put between members."""
    parts: list[bytes] = []
    done = 0
    inside = False
    for match in _QUOTE.finditer(text):
        at = match.start()
        if match.group() != b'"':
            continue
        if not inside:
            inside = True
            between = text[done:at]
            if _NO_COMMA.search(between) or (parts and parts[-1] == b'"' and not between.strip()):
                between += b","
            parts += [between, b'"']
        elif _ENDS_TEXT.match(text, at + 1):
            inside = False
            parts += [text[done:at], b'"']
        else:
            parts += [text[done:at], b'\\"']
        done = at + 1
    return b"".join([*parts, text[done:]])


def repair(text: bytes) -> bytes:
    """One event's text, made valid JSON where the faults are the usual ones.

    Bare ``inf`` and ``nan`` become null, control bytes spaces, bytes that are no UTF-8 and
    lone surrogates the replacement character, and backslashes that escape nothing (Windows
    paths) are doubled.
    """
    text = blank_control_bytes(text)
    text = _NOT_FINITE.sub(rb"\1null", text)
    text = _BAD_ESCAPE.sub(lambda m: m.group() if m.group(1) else rb"\\", text)
    text = _SURROGATE.sub(rb"\\ufffd", text)
    return text.decode("utf-8", "replace").encode("utf-8")
