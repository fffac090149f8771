"""Control messages between ranks of a dry run: a folder, one file a message.

A pipeline's stages tell each other shapes before they start. What a rank waits for must come
from the rank that sends it, so that one is run too: a waiting rank leaves a note which the
starting process answers by running the sender.
"""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path

_POLL_S = 0.005
_SLOWEST_POLL_S = 0.1
_WANTED = re.compile(r"wanted-(\d+)")


class Mailbox:
    """One rank's access to the messages.

    Args:
        folder: shared by all ranks of the dry run.
        timeout_s: how long a message is waited for.
    """

    def __init__(self, folder: Path, timeout_s: float = 300.0) -> None:
        self._folder = folder
        self._timeout_s = timeout_s

    def put(self, key: tuple[object, ...], data: bytes) -> None:
        """Send a message; it stays, so that several ranks may take it."""
        path = self._path(key)
        partial = path.with_name(f".{path.name}")
        partial.write_bytes(data)
        partial.replace(path)

    def take(self, key: tuple[object, ...], sender: int) -> bytes:
        """Wait for a message.

        Args:
            key: what the sender put it under.
            sender: global rank that sends it; it is started where it does not run.

        Raises:
            TimeoutError: it never came.
        """
        path = self._path(key)
        deadline = time.monotonic() + self._timeout_s
        pause = _POLL_S
        while not path.exists():
            if pause == _POLL_S:
                (self._folder / f"wanted-{sender}").touch()
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"rank {sender} of the dry run never sent a message that this rank waits for "
                    f"({', '.join(map(str, key))})"
                )
            time.sleep(pause)
            pause = min(2 * pause, _SLOWEST_POLL_S)
        return path.read_bytes()

    def _path(self, key: tuple[object, ...]) -> Path:
        return self._folder / hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def wanted_ranks(folder: Path) -> set[int]:
    """Ranks that others wait for, or have waited for."""
    found = (_WANTED.fullmatch(entry.name) for entry in folder.iterdir())
    return {int(match.group(1)) for match in found if match}
