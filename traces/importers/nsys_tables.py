"""Access to the tables of an Nsight Systems export, in SQLite or as a folder of Parquet files.

Exports leave out tables without rows, and their columns differ from version to version: a
table or column that is missing reads as "absent".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.salvage import Losses

I64 = NDArray[np.int64]
ABSENT = -1

_ROWS = 1 << 16  # fetched at a time


class Tables(Protocol):
    """The tables of one export."""

    def names(self) -> set[str]:
        """Tables that are there."""
        ...

    def columns(self, table: str) -> set[str]:
        """Columns of a table, none if it is not there."""
        ...

    def numbers(self, table: str, columns: Sequence[str]) -> dict[str, I64]:
        """Columns as numbers of shape ``(rows,)``; :data:`ABSENT` where there is none."""
        ...

    def texts(self, table: str, column: str) -> list[str]:
        """A column as texts, empty where there is none."""
        ...


class SqliteTables:
    """An SQLite export that is only read: views, triggers and functions of it are not used.

    Args:
        path: a local file.
        losses: told about tables that are damaged.

    Raises:
        TraceFormatError: it is no readable database.
    """

    def __init__(self, path: Path, losses: Losses) -> None:
        self._losses = losses
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._db = sqlite3.connect(uri, uri=True)
        try:
            self._db.execute("PRAGMA trusted_schema = OFF")
            self._db.execute("PRAGMA query_only = ON")
            self._db.text_factory = lambda data: data.decode("utf-8", "replace")
            # a virtual table would run code of its module
            rows = self._db.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
            ).fetchall()
            self._names = {str(name) for (name,) in rows}
        except sqlite3.DatabaseError as error:
            self.close()
            raise TraceFormatError(f"damaged SQLite file ({error})") from None

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def names(self) -> set[str]:
        """Tables that are there."""
        return self._names

    def columns(self, table: str) -> set[str]:
        """Columns of a table, none if it is not there."""
        if table not in self._names:
            return set()
        return {str(row[1]) for row in self._rows(f"PRAGMA table_info({_quoted(table)})", table)}

    def numbers(self, table: str, columns: Sequence[str]) -> dict[str, I64]:
        """Columns as numbers of shape ``(rows,)``; ``ABSENT`` where there is none."""
        here = self.columns(table)
        asked = [
            f"ifnull(CAST({_quoted(c)} AS INTEGER), {ABSENT})" if c in here else str(ABSENT)
            for c in columns
        ]
        rows = self._select(", ".join(asked), table) if here else []
        parts = [np.array(rows[i : i + _ROWS], np.int64) for i in range(0, len(rows), _ROWS)]
        grid = np.concatenate(parts) if parts else np.zeros((0, len(columns)), np.int64)
        return {name: np.ascontiguousarray(grid[:, i]) for i, name in enumerate(columns)}

    def texts(self, table: str, column: str) -> list[str]:
        """A column as texts, empty where there is none."""
        here = self.columns(table)
        what = f"CAST(ifnull({_quoted(column)}, '') AS TEXT)" if column in here else "''"
        rows = self._select(what, table) if here else []
        return [str(text) for (text,) in rows]

    def _select(self, what: str, table: str) -> list[Any]:
        return self._rows(f"SELECT {what} FROM {_quoted(table)}", table)  # noqa: S608 (quoted)

    def _rows(self, query: str, table: str) -> list[Any]:
        """All rows, or those before the place where the file is damaged."""
        rows: list[Any] = []
        try:
            cursor = self._db.execute(query)
            while part := cursor.fetchmany(_ROWS):
                rows += part
        except sqlite3.DatabaseError as error:
            self._losses.add(f"table {table} is damaged (rows before that kept)", 1, str(error))
        return rows


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class ParquetTables:
    """Parquet files, one for each table.

    Args:
        files: content by name of the file.
        losses: told about files that are damaged.
    """

    def __init__(self, files: Mapping[str, bytes], losses: Losses) -> None:
        self._tables: dict[str, pa.Table] = {}
        for name, data in files.items():
            table = name.replace("\\", "/").rsplit("/", 1)[-1].split(".", 1)[0]
            try:
                self._tables[table] = pq.read_table(pa.BufferReader(data), use_threads=False)
            except (pa.ArrowException, OSError) as error:
                losses.add(f"file of table {table} is damaged (left out)", 1, str(error))

    def names(self) -> set[str]:
        """Tables that are there."""
        return set(self._tables)

    def columns(self, table: str) -> set[str]:
        """Columns of a table, none if it is not there."""
        return set(self._tables[table].column_names) if table in self._tables else set()

    def numbers(self, table: str, columns: Sequence[str]) -> dict[str, I64]:
        """Columns as numbers of shape ``(rows,)``; ``ABSENT`` where there is none."""
        here = self.columns(table)
        rows = len(self._tables[table]) if here else 0
        return {
            c: _integers(self._tables[table][c]) if c in here else np.full(rows, ABSENT, np.int64)
            for c in columns
        }

    def texts(self, table: str, column: str) -> list[str]:
        """A column as texts, empty where there is none."""
        if table not in self._tables:
            return []
        if column not in self.columns(table):
            return [""] * len(self._tables[table])
        values: Iterable[Any] = self._tables[table][column].to_pylist()
        return ["" if v is None else str(v) for v in values]


def _integers(column: pa.ChunkedArray) -> I64:
    """Numbers of a column; those that do not fit or are none read as absent."""
    import pyarrow.compute as pc

    try:
        whole = pc.fill_null(pc.cast(column, pa.int64(), safe=False), ABSENT)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return np.full(len(column), ABSENT, np.int64)
    values: I64 = whole.to_numpy()
    return values
