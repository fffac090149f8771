"""Runs a training script as single ranks of a world that does not exist, and records them.

:func:`dry_run` starts one process a rank; :func:`exchange_counts` is for scripts whose sizes
depend on a router's choice. Nothing here imports torch before a rank runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foretrace.collector.dryrun.world import exchange_counts

if TYPE_CHECKING:
    from foretrace.collector.dryrun.launch import dry_run

__all__ = ["dry_run", "exchange_counts"]


def __getattr__(name: str) -> Any:
    """The starting side, which brings all importers along, only for those who start."""
    if name != "dry_run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from foretrace.collector.dryrun import launch

    return launch.dry_run
