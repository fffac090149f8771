"""Objects of a file that has one on each line, whatever stands between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from foretrace.traces.salvage import Losses, repair

_BARE = re.compile(rb'(":\s*)(?!true\b|false\b|null\b|inf|nan)(0x[0-9a-fA-F]+|[A-Za-z_]\w*)')
LONGEST_LINE = 1 << 24


def json_lines(chunks: Iterable[bytes], losses: Losses) -> Iterator[dict[str, Any]]:
    """Every object that stands on a line of its own.

    Commas behind objects and the brackets of a list around them do no harm; values that
    were written without quotes are read as text.

    Args:
        chunks: the text, in pieces of any size.
        losses: takes note of lines that are no objects.
    """
    for line in _lines(chunks):
        text = line.strip().removesuffix(b",")
        if not text.strip(b"[] \t\r,\xef\xbb\xbf"):
            continue
        found = _decode(text.lstrip(b"\xef\xbb\xbf["))
        if found is None:
            losses.add("line that is no JSON object (left out)", 1, text)
        else:
            yield found


def _decode(text: bytes) -> dict[str, Any] | None:
    for mend in (lambda t: t, lambda t: _BARE.sub(rb'\1"\2"', repair(t))):
        try:
            value = msgspec.json.decode(mend(text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        return value if isinstance(value, dict) else None
    return None


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
        if len(rest) > LONGEST_LINE:  # no line of these formats is that long
            yield rest[:LONGEST_LINE]
            rest = b""
    if rest:
        yield rest
