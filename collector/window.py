"""Which steps are recorded: wait, warm up, record; from the first step or from a trigger on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """What happens during a step."""

    IDLE = "idle"  # nothing of ours runs
    WARMUP = "warmup"  # hooks count calls, the profiler is prepared, nothing is kept
    RECORD = "record"
    OVER = "over"  # recorded, or given up


@dataclass(slots=True)
class Window:
    """Steps of one recording.

    Attributes:
        wait: steps before the warm-up, counted from ``first``.
        warmup: steps between hooking in and recording.
        active: steps recorded.
        first: the step that counting starts from; None until a trigger names it.
    """

    wait: int
    warmup: int
    active: int
    first: int | None = 0

    def phase(self, step: int) -> Phase:
        """What happens during ``step``."""
        if self.first is None:
            return Phase.IDLE
        since = step - self.first - self.wait
        if since < 0:
            return Phase.IDLE
        if since < self.warmup:
            return Phase.WARMUP
        return Phase.RECORD if since < self.warmup + self.active else Phase.OVER

    def is_last(self, step: int) -> bool:
        """Whether ``step`` is the last recorded one."""
        return self.phase(step) is Phase.RECORD and self.phase(step + 1) is Phase.OVER

    @property
    def recorded(self) -> str:
        """The recorded steps in words."""
        if self.first is None:
            return f"{self.active} steps from a trigger on"
        begin = self.first + self.wait + self.warmup
        end = begin + self.active - 1
        return f"step {begin}" if end == begin else f"steps {begin}-{end}"
