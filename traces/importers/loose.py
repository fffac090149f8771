"""Values of JSON objects that may be anything, as what they should be."""

from __future__ import annotations

from typing import Any

_LARGEST = 1 << 62
_LONGEST_NS = 1 << 60  # 36 years: sums of two still fit


def members(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list, none if it is no list."""
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def whole(value: Any, absent: int = -1) -> int:
    """A number, or its text in any base, that fits into 63 bits; else ``absent``."""
    number = any_whole(value)
    return number if number is not None and abs(number) < _LARGEST else absent


def any_whole(value: Any) -> int | None:
    """A number, or its text in any base; None if it is neither."""
    try:
        return int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def text(value: Any) -> str:
    """The value if it is a text or a number; "" for anything else."""
    return str(value) if isinstance(value, str | int | float) else ""


def nanoseconds(microseconds: Any) -> int:
    """A time in ns; -1 for one that is missing, 0 or beyond reason."""
    ok = isinstance(microseconds, int | float) and 0 < microseconds < _LONGEST_NS / 1000
    return round(microseconds * 1000) if ok else -1
