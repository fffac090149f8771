"""Nsight Systems exports in SQLite (``nsys export --type sqlite``)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from foretrace.traces.importers.nsys import ranks_of_export
from foretrace.traces.importers.nsys_tables import SqliteTables
from foretrace.traces.salvage import Losses
from foretrace.traces.store import RankTables

NAME = "Nsight Systems export (SQLite)"

_MAGIC = b"SQLite format 3\0"
_TABLES = (b"CUPTI_ACTIVITY", b"NVTX_EVENTS", b"StringIds", b"TARGET_INFO", b"META_DATA_EXPORT")


def sniff(head: bytes, name: str) -> bool:
    """Whether a file that begins with ``head`` is an export: its first pages name the tables."""
    del name
    return head.startswith(_MAGIC) and any(t in head for t in _TABLES)


def read(chunks: Iterable[bytes], *, python: bool = False) -> list[RankTables]:
    """Read one export, by way of a temporary file.

    Args:
        chunks: the uncompressed content, in pieces of any size.
        python: has no meaning here.

    Raises:
        TraceFormatError: it is damaged beyond reading, or holds no events.
    """
    del python
    losses = Losses()
    with tempfile.TemporaryDirectory(prefix="foretrace-") as folder:
        path = Path(folder) / "export.sqlite"
        with path.open("wb") as file:
            file.writelines(chunks)
        tables = SqliteTables(path, losses)
        try:
            return ranks_of_export(tables, losses)
        finally:
            tables.close()
