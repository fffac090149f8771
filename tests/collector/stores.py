"""A store in this process, for tests of what goes over it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class MemoryStore:
    """The methods of a torch store that a channel uses.

    Args:
        delay: called at each access; may let time pass.
    """

    def __init__(self, delay: Callable[[], None] = lambda: None) -> None:
        self.values: dict[str, bytes] = {}
        self._delay = delay
        self._lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        self._delay()
        with self._lock:
            self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._delay()
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        self._delay()
        with self._lock:
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(total).encode()
            return total

    def check(self, keys: list[str]) -> bool:
        self._delay()
        return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> bool:
        with self._lock:
            return self.values.pop(key, None) is not None
