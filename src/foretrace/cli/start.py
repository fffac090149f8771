"""Where the program begins: Ctrl-C is heard before anything that takes time is imported."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main() -> None:
    """Run the program and end the process."""
    try:
        import signal
    except KeyboardInterrupt:
        _end()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not so under nohup
        signal.signal(signal.SIGINT, _end)
    from foretrace.cli.app import main as run

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end(number: int = 0, frame: FrameType | None = None) -> None:
    """End at once: nothing was begun yet, and half an import may turn an exception into another."""
    del number, frame
    os.write(2, b"foretrace: error: interrupted\n")
    os._exit(INTERRUPTED)
