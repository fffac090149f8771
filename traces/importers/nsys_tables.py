"""Access to the tables of an Nsight Systems export, in SQLite or as a folder of Parquet files.

Exports leave out tables without rows, and their columns differ from version to version: a
table or column that is missing reads as "absent".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
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

_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
_DAMAGE = (sqlite3.Error, UnicodeDecodeError, OverflowError)  # of names inside the file, too
_ROWS = 1 << 16  # fetched at a time


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of one table, all of one length.

    Attributes:
        numbers: by name, shape ``(rows,)``.
        texts: by name.
    """

    numbers: dict[str, I64]
    texts: dict[str, list[str]]


class Tables(Protocol):
    """The tables of one export."""

    def columns(self, table: str) -> set[str]:
        """Columns of a table, none if it is not there."""
        ...

    def read(self, table: str, numbers: Sequence[str], texts: Sequence[str] = ()) -> Columns:
        """Columns of a table; none of it has rows if it is not there.

        Args:
            table: name.
            numbers: columns wanted as numbers, :data:`ABSENT` where there is none.
            texts: columns wanted as texts, empty where there is none.
        """
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
        except _DAMAGE as error:
            self.close()
            raise TraceFormatError(f"damaged SQLite file ({error})") from None

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def columns(self, table: str) -> set[str]:
        """Columns of a table, none if it is not there."""
        if table not in self._names:
            return set()
        rows = self._rows(f"PRAGMA table_info({_quoted(table)})", table)
        return {str(row[1]) for part in rows for row in part}

    def read(self, table: str, numbers: Sequence[str], texts: Sequence[str] = ()) -> Columns:
        """Columns of a table, see :class:`Tables`; both kinds come from the same rows."""
        here = self.columns(table)
        asked = [
            f"ifnull(CAST({_quoted(c)} AS INTEGER), {ABSENT})" if c in here else str(ABSENT)
            for c in numbers
        ]
        asked += [f"CAST(ifnull({_quoted(c)}, '') AS TEXT)" if c in here else "''" for c in texts]
        query = f"SELECT {', '.join(asked)} FROM {_quoted(table)}"  # noqa: S608 (quoted)
        count = len(numbers)
        grids = [np.zeros((0, count), np.int64)]
        words: list[list[str]] = [[] for _ in texts]
        for rows in self._rows(query, table) if here else ():
            shorter = map(itemgetter(slice(count)), rows) if texts else rows
            values = np.fromiter(chain.from_iterable(shorter), np.int64, len(rows) * count)
            grids.append(values.reshape(len(rows), count))
            for i, column in enumerate(words, start=count):
                column += [str(r[i]) for r in rows]
        grid = np.concatenate(grids)
        return Columns(
            {name: np.ascontiguousarray(grid[:, i]) for i, name in enumerate(numbers)},
            dict(zip(texts, words, strict=True)),
        )

    def _rows(self, query: str, table: str) -> Iterator[list[Any]]:
        """All rows in blocks, or those before the place where the file is damaged."""
        try:
            cursor = self._db.execute(query)
            while part := cursor.fetchmany(_ROWS):
                yield part
        except _DAMAGE as error:
            self._losses.add(f"table {table} is damaged (rows before that kept)", 1, str(error))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class ParquetTables:
    """Parquet files, one for each table.

    Args:
        files: content by name of the file.
        losses: told about files that are damaged.
    """

    def __init__(self, files: Mapping[str, bytes], losses: Losses) -> None:
        self._losses = losses
        self._files: dict[str, pq.ParquetFile] = {}
        for name, data in files.items():
            table = name.replace("\\", "/").rsplit("/", 1)[-1].split(".", 1)[0]
            try:
                self._files[table] = pq.ParquetFile(pa.BufferReader(data))
            except _UNREADABLE as error:
                self._note(table, error)

    def columns(self, table: str) -> set[str]:
        """Columns of a table, none if it is not there."""
        return set(self._files[table].schema_arrow.names) if table in self._files else set()

    def read(self, table: str, numbers: Sequence[str], texts: Sequence[str] = ()) -> Columns:
        """Columns of a table, see :class:`Tables`."""
        here = self.columns(table)
        found = self._table(table, [c for c in dict.fromkeys((*numbers, *texts)) if c in here])
        rows, here = len(found), set(found.column_names)
        return Columns(
            {c: _integers(found[c]) if c in here else np.full(rows, ABSENT) for c in numbers},
            {c: _words(found[c]) if c in here else [""] * rows for c in texts},
        )

    def _table(self, table: str, columns: list[str]) -> pa.Table:
        try:
            if columns:
                return self._files[table].read(columns=columns, use_threads=False)
        except _UNREADABLE as error:
            self._note(table, error)
        return pa.table({})

    def _note(self, table: str, error: Exception) -> None:
        self._losses.add(f"file of table {table} is damaged (left out)", 1, str(error))


def _words(column: pa.ChunkedArray) -> list[str]:
    try:
        return ["" if v is None else str(v) for v in column.to_pylist()]
    except UnicodeDecodeError:
        plain = column.cast(pa.string()).cast(pa.binary())
        return [(v or b"").decode("utf-8", "replace") for v in plain.to_pylist()]


def _integers(column: pa.ChunkedArray) -> I64:
    """Numbers of a column; those that do not fit or are none read as absent."""
    import pyarrow.compute as pc

    try:
        whole = pc.fill_null(pc.cast(column, pa.int64(), safe=False), ABSENT)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return np.full(len(column), ABSENT, np.int64)
    values: I64 = whole.to_numpy()
    return values
