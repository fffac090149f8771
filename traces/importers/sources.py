"""Where traces come from: files, .gz, folders, globs and tar archives, on any file system."""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from io import SEEK_END, BytesIO
from typing import Any, BinaryIO

import fsspec
from isal import isal_zlib

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers.ahead import ahead
from foretrace.traces.storage import file_system

CHUNK_BYTES = 1 << 19
HEAD_BYTES = 1 << 16
TOLD_AT_THE_END = b"PAR1"
"""Parquet files name their columns in their last bytes."""
_READ_BYTES = 1 << 18
_GZIP_MAGIC = b"\x1f\x8b"
_TAR_MAGIC = slice(257, 262)
_DIGITS = re.compile(r"(\d+)")

_UNZIP_ERROR: Any = isal_zlib.error  # its type stub takes it for an instance
_ARCHIVE_ERRORS = (tarfile.TarError, EOFError, zlib.error, _UNZIP_ERROR)

Progress = Callable[[int, int], None]
"""Called with further (stored, uncompressed) bytes that were read."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a job.

    Attributes:
        path: path or URL.
        member: name inside, where ``path`` is an archive; else "".
        size: bytes as stored.
        parts: names of all files, where several make one source.
    """

    path: str
    member: str = ""
    size: int = 0
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What to call it in messages, where bytes that are no UTF-8 become U+FFFD."""
        name = f"{self.path}:{self.member}" if self.member else self.path
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    @property
    def label(self) -> str:
        """What to call it in results: several files by their folder."""
        folder = self.name.rpartition("/")[0]
        return f"{folder or '.'} ({len(self.parts)} files)" if self.parts else self.name


@dataclass(slots=True)
class Content:
    """Uncompressed content of a source while it is read.

    Attributes:
        source: where it comes from.
        chunks: the content in pieces.
        checksum: CRC-32 of what was read.
        size: bytes read.
        damage: what is wrong with the compressed file; "" if it was whole.
        files: content by name, where several files make one source.
    """

    source: Source
    chunks: Iterable[bytes] = ()
    checksum: int = 0
    size: int = 0
    damage: str = ""
    files: dict[str, bytes] = field(default_factory=dict)


def natural_key(name: str) -> list[tuple[int, int | str]]:
    """Sorts ``rank10`` behind ``rank2``."""
    parts = _DIGITS.split(name)
    return [(0, int(p)) if p.isdecimal() else (1, p) for p in parts]


@dataclass(frozen=True, slots=True)
class Found:
    """What paths stand for, each list in natural order.

    Attributes:
        named: files that were asked for by name.
        brought: traces that folders, globs and archives brought along.
        others: files that came along but are no traces.
        notes: one line for each archive that is damaged but not useless.
    """

    named: list[Source] = field(default_factory=list)
    brought: list[Source] = field(default_factory=list)
    others: list[Source] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_sources(paths: Iterable[str], is_trace: Callable[[bytes, str], bool]) -> Found:
    """All files that the paths stand for.

    Args:
        paths: files, folders, globs or archives, or fsspec URLs of them.
        is_trace: tells a trace from its first bytes and its name.

    Raises:
        TraceFormatError: a path stands for nothing, or an archive is damaged.
    """
    found = Found()
    for path in paths:
        fs, root = file_system(path)
        if fs.exists(root) and not fs.isdir(root):
            if not fs.isfile(root):
                raise TraceFormatError(f"{path}: is a pipe or a device; write it to a file first")
            source = Source(path, size=int(fs.size(root) or 0))
            if not _unpack(source, found, is_trace):
                found.named.append(source)
            continue
        listed = fs.find(root, detail=True) if fs.isdir(root) else _glob(fs, root)
        files = _files(fs, listed)
        if not files:
            empty = "expected traces, found an empty folder"
            nothing = "no such file, and no glob that matches one"
            raise TraceFormatError(f"{path}: {empty if fs.isdir(root) else nothing}")
        for source in files:
            if not _unpack(source, found, is_trace):
                known = is_trace(read_head(source), source.name)
                (found.brought if known else found.others).append(source)
    lists = (found.named, found.brought, found.others)
    named, brought, others = (sorted(set(x), key=_order) for x in lists)
    return Found(named, brought, others, found.notes)


def _order(source: Source) -> Any:
    return natural_key(source.path), natural_key(source.member)


def _glob(fs: Any, pattern: str) -> Any:
    return fs.glob(pattern, detail=True) if any(c in pattern for c in "*?[") else {}


def _files(fs: Any, listed: Any) -> list[Source]:
    local = "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)
    return [
        Source(path if local else fs.unstrip_protocol(path), size=int(info["size"] or 0))
        for path, info in listed.items()
        if _is_file(fs, path, info) and not _is_hidden(path)
    ]


def _is_file(fs: Any, path: str, info: Any) -> bool:
    """Whether a listed path is a file, or a link to one."""
    return info["type"] == "file" or (info["type"] not in ("directory",) and bool(fs.isfile(path)))


def _is_hidden(path: str) -> bool:
    return path.rsplit("/", 1)[-1].startswith(".")


def _unpack(source: Source, found: Found, is_trace: Callable[[bytes, str], bool]) -> bool:
    """Sort the members of an archive into ``found``; False if it is none."""
    if read_head(source)[_TAR_MAGIC] != b"ustar":
        return False
    inside: list[tuple[Source, bool]] = []
    names: set[str] = set()
    try:
        for inner, head in _members(source):
            known = is_trace(head, inner.name)
            if known and inner.member in names:
                raise TraceFormatError(
                    f"{source.path}: two members are called {inner.member}; unpack it and give "
                    "the one that counts"
                )
            names.add(inner.member)
            inside.append((inner, known))
    except _ARCHIVE_ERRORS as error:
        if len(inside) < 2:
            raise TraceFormatError(f"{source.path}: damaged archive ({error})") from None
        cut, _ = inside.pop()
        found.notes.append(f"{source.path}: damaged; {cut.member} and what follows is left out")
    for inner, known in inside:
        (found.brought if known else found.others).append(inner)
    return True


def _members(source: Source) -> Iterator[tuple[Source, bytes]]:
    """The files of an archive with their first bytes; nothing is ever unpacked to disk."""
    with fsspec.open(source.path, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None and not _is_hidden(member.name):
                head = _head(content, seekable=False)
                yield Source(source.path, member.name, member.size), head


def read_head(source: Source) -> bytes:
    """The first bytes of a file, uncompressed."""
    with fsspec.open(source.path, "rb") as file:
        return _head(file, seekable=True)


def _head(file: Any, seekable: bool) -> bytes:
    """The first bytes of an open file, and the last ones of a format that says there what it is."""
    head = file.read(HEAD_BYTES)
    if not head.startswith(TOLD_AT_THE_END):
        return _unzipped_head(head)
    if seekable:
        file.seek(max(file.seek(0, SEEK_END) - HEAD_BYTES, HEAD_BYTES))
    tail = b""
    while chunk := file.read(CHUNK_BYTES):
        tail = (tail + chunk)[-HEAD_BYTES:]
    return bytes(head + tail)


def ends_of(content: bytes) -> bytes:
    """What :func:`read_head` gives of a file whose content is known."""
    if not content.startswith(TOLD_AT_THE_END):
        return content[:HEAD_BYTES]
    return content[:HEAD_BYTES] + content[HEAD_BYTES:][-HEAD_BYTES:]


def unzipped(data: bytes) -> bytes:
    """Content of a file that may be gzip; as far as it is whole."""
    if not data.startswith(_GZIP_MAGIC):
        return data
    content = Content(Source(""))
    return b"".join(piece for _, piece in _pieces(content, BytesIO(data)))


def _unzipped_head(head: bytes) -> bytes:
    if not head.startswith(_GZIP_MAGIC):
        return head
    try:
        return isal_zlib.decompressobj(31).decompress(head, HEAD_BYTES)
    except _UNZIP_ERROR:
        return b""


def open_sources(sources: Iterable[Source], progress: Progress) -> Iterator[Content]:
    """Content of sources, one after the other; each must be read before the next is asked for.

    Args:
        sources: files; members of one archive must stand together, in its order.
        progress: told about bytes as they are read.
    """
    group: list[Source] = []
    for source in sources:
        if group and source.path != group[0].path:
            yield from _open_group(group, progress)
            group = []
        group.append(source)
    if group:
        yield from _open_group(group, progress)


def _open_group(group: list[Source], progress: Progress) -> Iterator[Content]:
    if not group[0].member:
        for source in group:
            with fsspec.open(source.path, "rb") as file:
                yield _content(source, file, progress)
        return
    wanted = {s.member: s for s in group}
    path = group[0].path
    with fsspec.open(path, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.name in wanted else None
            if content is not None:
                yield _content(wanted.pop(member.name), content, progress)
            if not wanted:
                return


def _content(source: Source, file: Any, progress: Progress) -> Content:
    content = Content(source)
    content.chunks = ahead(_counted(content, file, progress))
    return content


def _counted(content: Content, file: BinaryIO, progress: Progress) -> Iterator[bytes]:
    stored = 0
    pieces = _pieces(content, file)
    while True:
        try:
            read, chunk = next(pieces)
        except StopIteration:
            break
        except _ARCHIVE_ERRORS as error:
            content.damage = f"archive is damaged ({error})"
            break
        content.checksum = isal_zlib.crc32(chunk, content.checksum)
        content.size += len(chunk)
        progress(read - stored, len(chunk))
        stored = read
        yield chunk
    progress(max(content.source.size - stored, 0), 0)


def _pieces(content: Content, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(stored bytes read so far, uncompressed piece) of a file that may be gzip."""
    data = file.read(_READ_BYTES)
    if not data.startswith(_GZIP_MAGIC):
        read = len(data)
        while data:
            more = file.read(CHUNK_BYTES)
            yield read, data
            read += len(more)
            data = more
        return
    yield from _unzipped(content, file, data)


def _unzipped(content: Content, file: BinaryIO, data: bytes) -> Iterator[tuple[int, bytes]]:
    read = len(data)
    unzip = isal_zlib.decompressobj(31)
    parts: list[bytes] = []
    size = 0
    while data:
        try:
            piece = unzip.decompress(data, CHUNK_BYTES - size)
        except _UNZIP_ERROR as error:
            content.damage = f"compressed data is damaged ({error})"
            break
        parts.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            yield read, b"".join(parts)
            parts, size = [], 0
        data = unzip.unconsumed_tail
        if unzip.eof:
            data = unzip.unused_data.lstrip(b"\0")
            unzip = isal_zlib.decompressobj(31)
            if not data:
                data = file.read(_READ_BYTES)
                read += len(data)
                if not data:
                    break
            continue
        if not data:
            data = file.read(_READ_BYTES)
            read += len(data)
            if not data:
                content.damage = "compressed file is cut off"
    if size:
        yield read, b"".join(parts)
