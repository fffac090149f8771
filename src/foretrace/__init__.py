"""foretrace: record, replay and question the training steps of distributed PyTorch jobs."""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers take for typing's, without the time to import it
if TYPE_CHECKING:
    from typing import Any

    from foretrace.traces.errors import ForetraceError as ForetraceError
    from foretrace.traces.store import TraceSet as TraceSet

__version__ = "0.1.0"

_HOME = {
    "ForetraceError": "foretrace.traces.errors",
    "TraceSet": "foretrace.traces.store",
}

__all__ = ["ForetraceError", "TraceSet", "__version__"]


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that ``import foretrace`` stays cheap."""
    if name not in _HOME:
        raise AttributeError(f"module 'foretrace' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
