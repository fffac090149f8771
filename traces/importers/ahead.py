"""Make items one ahead in a thread while the caller works on the last one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


class _End:
    """Stands behind the last item."""


@dataclass(slots=True)
class _Worker(Generic[T]):
    items: Iterable[T]
    ready: queue.Queue[T | _End | BaseException] = field(
        default_factory=lambda: queue.Queue(maxsize=1)
    )
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            for item in self.items:
                self._hand_over(item)
                if self.stopped.is_set():
                    return
        except BaseException as error:
            self._hand_over(error)
        else:
            self._hand_over(_End())

    def _hand_over(self, item: T | _End | BaseException) -> None:
        while not self.stopped.is_set():
            try:
                self.ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items; an error in making them is raised here in its place."""
    worker = _Worker(items)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        while True:
            item = worker.ready.get()
            if isinstance(item, _End):
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        worker.stopped.set()
        thread.join()
