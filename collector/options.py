"""What the user asked for, checked once before the loop starts."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from foretrace.traces.errors import ForetraceError

Detail = Literal["full", "light"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of one recording; see :class:`foretrace.collector.profile` for their meaning."""

    path: str
    wait: int
    warmup: int
    active: int
    detail: Detail
    ranks: frozenset[int] | None
    trigger: str | None
    layout: dict[str, int]
    labels: dict[str, str]
    with_stack: bool
    profile_memory: bool
    timeout_s: float

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ForetraceError(f"profile: {name}={value!r}; expected an int >= {least}")
        if self.detail not in ("full", "light"):
            raise ForetraceError(f"profile: detail={self.detail!r}; expected 'full' or 'light'")
        if any(not isinstance(size, int) or size < 1 for size in self.layout.values()):
            raise ForetraceError(f"profile: layout={self.layout!r}; expected sizes >= 1")

    @property
    def signal_number(self) -> int | None:
        """The signal that triggers the recording, None if none does."""
        name = self.trigger or ""
        return int(signal.Signals[name]) if name in signal.Signals.__members__ else None

    @property
    def trigger_path(self) -> str | None:
        """The file whose appearance triggers the recording, None if none does."""
        return None if self.signal_number is not None else self.trigger

    def job(self) -> dict[str, object]:
        """What the index says about the recording as a whole."""
        found: dict[str, object] = {"wait": self.wait, "warmup": self.warmup, "active": self.active}
        if self.ranks is not None:
            found["recorded_ranks"] = sorted(self.ranks)
        if self.trigger is not None:
            found["trigger"] = self.trigger
        return found | ({"labels": self.labels} if self.labels else {})

    def records(self, rank: int) -> bool:
        """Whether ``rank`` records."""
        return self.ranks is None or rank in self.ranks


def clean_ranks(ranks: Collection[int] | None) -> frozenset[int] | None:
    """``ranks`` as a set.

    Raises:
        ForetraceError: it is empty, or holds something else than ranks.
    """
    if ranks is None:
        return None
    found = frozenset(ranks)
    if not found or any(not isinstance(rank, int) or rank < 0 for rank in found):
        raise ForetraceError(f"profile: ranks={ranks!r}; expected global ranks, such as range(8)")
    return found


def clean_labels(labels: Mapping[str, object] | None) -> dict[str, str]:
    """``labels`` with every value as text."""
    return {str(key): str(value) for key, value in (labels or {}).items()}


def clean_path(path: str | os.PathLike[str]) -> str:
    """``path`` as text.

    Raises:
        ForetraceError: it is empty.
    """
    text = os.fspath(path)
    if not text:
        raise ForetraceError("profile: the path is empty; give one such as 'run.trace'")
    return text
