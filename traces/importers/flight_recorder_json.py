"""Flight recorder dumps in JSON: all of them, or the whole entries of a damaged one."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers import json_text
from foretrace.traces.salvage import Losses, repair

_LIST = re.compile(rb'"entries"\s*:\s*\[')
_ENTRY = re.compile(
    rb'\{\s*"(?:collective_seq_id|duration_ms|frames|input_dtypes|input_sizes|pg_id|record_id)"\s*:'
)
"""What opens an entry, and none of the frames inside one."""
_BETWEEN = b" \t\r\n,"
_BLANKS = re.compile(rb"[ \t\r\n,]*")
_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def load_json(data: bytes, losses: Losses) -> Any:
    """The value of a dump; of a damaged one its whole entries and what can be read around them.

    Args:
        data: the text.
        losses: takes note of what is damaged.

    Raises:
        TraceFormatError: it is damaged before the entries begin.
    """
    try:
        return msgspec.json.decode(data)
    except _ERRORS as error:
        found = _LIST.search(data)
        if found is None:
            raise TraceFormatError(f"damaged JSON ({error})") from None
    entries, stop = _entries(data, found.end(), losses)
    before = _members(data[: found.start()].rstrip(_BETWEEN) + b"}", losses)
    after = _members(b"{" + data[stop:].lstrip(_BETWEEN), losses) if stop >= 0 else {}
    return {**before, **after, "entries": entries}


def _entries(data: bytes, p: int, losses: Losses) -> tuple[list[Any], int]:
    """Whole entries from ``p`` on, and the position after their list; -1 if it does not end."""
    view = json_text.as_array(data)
    entries: list[Any] = []
    while True:
        p = _BLANKS.match(data, p).end()  # type: ignore[union-attr]
        if p >= len(data):
            losses.add("end of the file is missing (whole entries kept)")
            return entries, -1
        if data[p] == json_text.CLOSE_LIST:
            return entries, p + 1
        is_object = data[p] == json_text.OPEN
        stop = int(json_text.skip_value(view, p, len(data))) if is_object else json_text.BROKEN
        entry = _decoded(data[p:stop]) if stop > p else None
        if entry is not None:
            entries.append(entry)
            p = stop
            continue
        following = _ENTRY.search(data, p + 1)
        cut = following is None and stop == json_text.CUT
        losses.add("entry cut off by the end of the file" if cut else "damaged entry", 1, data[p:])
        p = following.start() if following else len(data)


def _decoded(text: bytes) -> dict[str, Any] | None:
    """One entry; None if it cannot be read."""
    for mend in (bytes, repair):
        try:
            value = msgspec.json.decode(mend(text))
        except _ERRORS:
            continue
        return value if isinstance(value, dict) else None
    return None


def _members(text: bytes, losses: Losses) -> dict[str, Any]:
    """The members around the entries."""
    value = _decoded(text)
    if value is None:
        losses.add("damage around the list of entries (left out)", 1, text)
    return value or {}
