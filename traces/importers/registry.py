"""The formats that can be imported. A further one is a module with these names, listed here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeGuard

from foretrace.traces.importers import (
    chakra,
    execution_trace,
    flight_recorder,
    kineto,
    nccl_inspector,
    nccl_plugin,
    nsys_parquet,
    nsys_sqlite,
    operation_table,
    pipeline_json,
)
from foretrace.traces.store import RankTables

_SCHEMA = re.compile(rb'"schema"\s*:\s*"([\x20-\x21\x23-\x7e]{0,40})"')
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")  # no text has these


class Format(Protocol):
    """What the module of every format offers.

    A module may also have ``rank_of_name(path) -> int``, where its files are named in a way
    of their own, and ``companions(name) -> names``, where a file that is no trace itself tells
    more: the first of these names that lies beside the file is given to ``read`` as
    ``beside=(name, content)``.
    """

    NAME: str

    def sniff(self, head: bytes, name: str) -> bool:
        """Whether a file that begins with ``head`` (uncompressed) is of this format."""
        ...


class FileFormat(Format, Protocol):
    """A format whose files are read one by one."""

    def read(
        self, chunks: Iterable[bytes], *, python: bool = False
    ) -> RankTables | list[RankTables]:
        """Read one file; ``info.rank`` is -1 if the file does not tell it.

        A file of several ranks gives a list, and tells all of them.
        """
        ...


class FolderFormat(Format, Protocol):
    """A format whose files in one folder are read together."""

    def read_bundle(self, files: Mapping[str, bytes]) -> list[RankTables]:
        """Read all files of a folder that are of this format, given by name."""
        ...


FORMATS: tuple[FileFormat | FolderFormat, ...] = (
    kineto,
    nsys_sqlite,
    nsys_parquet,
    nccl_plugin,
    nccl_inspector,
    flight_recorder,
    operation_table,
    pipeline_json,
    chakra,
    execution_trace,
)
"""Of several that describe one rank, the times of the one that comes first here are kept."""


def reads_folders(kind: FileFormat | FolderFormat) -> TypeGuard[FolderFormat]:
    """Whether all files of a folder are read together."""
    return hasattr(kind, "read_bundle")


def format_of(head: bytes, name: str) -> FileFormat | FolderFormat | None:
    """The format of a file by its first bytes; None if it is none of ours.

    The last ones are asked first: what Kineto writes is the least peculiar.
    """
    return next((f for f in reversed(FORMATS) if f.sniff(head, name)), None)


EXPECTED = (
    "a trace (profiler JSON, execution trace, Chakra graph, NCCL or flight recorder dump, Nsight "
    "Systems export, operation table; plain, .gz or in a tar)"
)
"""What can be imported, for messages."""


def describe_content(head: bytes, stored: int = 0) -> str:
    """What a file seems to be, for messages.

    Args:
        head: its first bytes, uncompressed.
        stored: bytes that it has as it is stored.
    """
    if not head:
        return "compressed data that is cut off or damaged" if stored else "an empty file"
    known = {
        b"\x89PNG": "a PNG image",
        b"\xff\xd8\xff": "a JPEG image",
        b"%PDF": "a PDF",
        b"PK\x03\x04": "a zip archive",
        b"PAR1": "a Parquet file",
        b"SQLite": "an SQLite file",
        b"\x80\x02": "a Python pickle that is no flight recorder dump",
        b"\x80\x03": "a Python pickle that is no flight recorder dump",
        b"\x80\x04": "a Python pickle that is no flight recorder dump",
        b"\x80\x05": "a Python pickle that is no flight recorder dump",
        b"\x7fELF": "a program",
        b"\x1f\x8b": "a gzip file within a gzip file",
        b"BZh": "a bzip2 file",
        b"\xfd7zXZ": "an xz file",
        b"\x28\xb5\x2f\xfd": "a zstd file",
    }
    for magic, words in known.items():
        if head.startswith(magic):
            return words
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in (b"{", b"["):
        schema = _SCHEMA.search(head)
        if schema and b'"nodes"' in head:
            return f"an execution trace of the unknown schema {schema.group(1).decode()!r}"
        return "JSON without profiler events"
    if _CONTROL.search(head[:1024]):
        return "binary data"
    line = head[:200].decode("utf-8", "replace").splitlines()[0][:40]
    return f"text that begins with {line!r}"
