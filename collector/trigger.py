"""Starts a recording from outside: on a signal, or when a file appears.

Any rank may see the trigger. One rank, the leader, then names the step at which all begin,
far enough ahead that each hears of it in time; they talk through the store, away from the
training thread.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from foretrace.collector.channel import Channel
from foretrace.traces.errors import ForetraceError

POLL_S = 0.25


class SignalTrigger:
    """Notes that a signal came; the former handler still runs.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._former: Any = None
        self._seen = False

    def install(self) -> None:
        """Listen.

        Raises:
            ForetraceError: not on the main thread, where Python allows no handler.
        """
        try:
            self._former = signal.signal(self._number, self._handle)
        except ValueError as error:
            message = "a signal trigger needs the main thread; use a file as trigger instead"
            raise ForetraceError(f"profile: {message}") from error

    def remove(self) -> None:
        """Put the former handler back, unless somebody else has replaced ours."""
        if signal.getsignal(self._number) == self._handle:
            signal.signal(self._number, self._former or signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._seen = True
        if callable(self._former):
            self._former(number, frame)

    def __call__(self) -> bool:
        """Whether the signal has come."""
        return self._seen


class FileTrigger:
    """Whether a file has appeared.

    Args:
        path: the file. One that is already there does not count until it is replaced.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._before = self._stamp()

    def _stamp(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return -1

    def __call__(self) -> bool:
        """Whether it has come."""
        now = self._stamp()
        return now >= 0 and now != self._before


class Watcher:
    """Waits for the trigger and agrees with the other ranks on the first step.

    Args:
        triggered: whether this rank has seen the trigger.
        channel: connection of this thread, None for a single process.
        leader: this rank names the step.
        current: the step that runs now and the typical step time in seconds.
        begin: told of the agreed step.
    """

    def __init__(
        self,
        triggered: Callable[[], bool],
        channel: Channel | None,
        leader: bool,
        current: Callable[[], tuple[int, float]],
        begin: Callable[[int], None],
    ) -> None:
        self._triggered = triggered
        self._channel = channel
        self._leader = leader
        self._current = current
        self._begin = begin

    def run(self, stop: threading.Event) -> None:
        """Poll until the recording is triggered or ``stop`` is set."""
        told = False
        while not stop.wait(POLL_S):
            seen = self._triggered()
            if self._channel is None:
                agreed = self._current()[0] + 1 if seen else None
            else:
                if seen and not told:
                    self._channel.put("trigger/seen", "1")
                    told = True
                agreed = self._agree(self._channel)
            if agreed is not None:
                self._begin(agreed)
                return

    def _agree(self, channel: Channel) -> int | None:
        """The step that all ranks begin at, None while nobody has seen the trigger."""
        if self._leader and channel.take("trigger/seen") is not None:
            step, step_s = self._current()
            ahead = int(3 * POLL_S / max(step_s, 1e-3)) + 2
            channel.put("trigger/step", str(step + ahead))
        agreed = channel.take("trigger/step")
        return None if agreed is None else int(agreed)


def wait_until(condition: Callable[[], bool], timeout_s: float, pause_s: float = 0.02) -> bool:
    """Whether ``condition`` came true within ``timeout_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True
