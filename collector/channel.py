"""A private line between ranks: the job's own store, on a connection of its own.

The default group's store is where ranks met at start. A clone of it with a prefix gives keys
of our own over a separate connection, so that a wait here blocks no user call, and no
collective is ever added to a user's group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

_runs = count()  # every rank enters its recordings in the same order


class Store(Protocol):
    """The methods of ``torch.distributed.Store`` that are used."""

    def set(self, key: str, value: str) -> None:
        """Store ``value``."""

    def get(self, key: str) -> bytes:
        """The value, waiting until there is one."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; its new value."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""

    def delete_key(self, key: str) -> bool:
        """Forget a key."""


class Channel:
    """Keys that all ranks of one recording share.

    Args:
        store: where they are kept.
        copy: opens another connection to the same keys, for another thread.
    """

    def __init__(self, store: Store, copy: Callable[[], Store] | None = None) -> None:
        self._store = store
        self._copy = copy

    def another(self) -> Channel:
        """The same keys over a connection of its own, for use in another thread."""
        return self if self._copy is None else Channel(self._copy(), self._copy)

    def put(self, key: str, value: str) -> None:
        """Set ``key``."""
        self._store.set(key, value)

    def take(self, key: str) -> str | None:
        """The value of ``key``, None if nobody has set it; never waits."""
        if not self._store.check([key]):
            return None
        return self._store.get(key).decode()

    def increase(self, key: str, amount: int = 1) -> int:
        """Add to the counter ``key``; its new value."""
        return int(self._store.add(key, amount))

    def forget(self, key: str) -> None:
        """Remove ``key``, where the store can."""
        self._store.delete_key(key)

    def wait(
        self,
        key: str,
        timeout_s: float,
        pause_s: float = 0.02,
        stop: Callable[[], bool] = lambda: False,
    ) -> str | None:
        """The value of ``key`` once somebody sets it, None after ``timeout_s`` seconds.

        Asks again and again instead of blocking in the store: a store call that times out
        writes a page of warnings, and one that blocks cannot be stopped.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            value = self.take(key)
            if value is not None or stop() or time.monotonic() > deadline:
                return value
            time.sleep(pause_s)


def open_channel() -> Channel | None:
    """The channel of the next recording of this job.

    Returns:
        None without torch.distributed, or where its store cannot be reached from here.
    """
    run = next(_runs)
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    from torch.distributed import distributed_c10d as c10d

    store = c10d._get_default_store()
    if not hasattr(store, "check"):  # before torch 2.2: no way to look without waiting
        return None
    # A restarted job may meet its former keys in the agent's store.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")

    def connect() -> Any:
        return dist.PrefixStore(f"foretrace/{attempt}/{run}", _own_connection(store))

    return Channel(connect(), connect)


def _own_connection(store: Any) -> Any:
    """``store`` over a new connection; versions before 2.6 cannot clone, but can dial again."""
    if hasattr(store, "clone"):
        return store.clone()
    import torch.distributed as dist

    inner = store
    while isinstance(inner, dist.PrefixStore):
        inner = inner.underlying_store
    if isinstance(inner, dist.TCPStore):
        return dist.TCPStore(inner.host, inner.port, is_master=False, wait_for_workers=False)
    return store
