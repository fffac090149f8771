"""Nsight Systems exports as a folder of Parquet files (``nsys export --type parquetdir``)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from foretrace.traces.importers.nsys import ranks_of_export
from foretrace.traces.importers.nsys_rows import USED
from foretrace.traces.importers.nsys_tables import ParquetTables
from foretrace.traces.salvage import Losses
from foretrace.traces.store import RankTables

NAME = "Nsight Systems export (Parquet)"

_TABLE = re.compile(r"(?:^|[/\\:])(" + "|".join(USED) + r")\.parquet$")


def sniff(head: bytes, name: str) -> bool:
    """Whether a file is one of the tables of an export that are read, by its name."""
    return head.startswith(b"PAR1") and bool(_TABLE.search(name))


def read_bundle(files: Mapping[str, bytes]) -> list[RankTables]:
    """Read all tables of one folder.

    Args:
        files: content by name.

    Raises:
        TraceFormatError: they hold no events.
    """
    losses = Losses()
    return ranks_of_export(ParquetTables(files, losses), losses)
