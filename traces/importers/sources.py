"""Where traces come from: files, .gz, folders, globs and tar archives, on any file system."""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import fsspec

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers.ahead import ahead

CHUNK_BYTES = 2 << 20
HEAD_BYTES = 1 << 16
_READ_BYTES = 1 << 18
_TAR_MAGIC = slice(257, 262)
_DIGITS = re.compile(r"(\d+)")

Progress = Callable[[int, int], None]
"""Called with further (stored, uncompressed) bytes that were read."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a job.

    Attributes:
        path: path or URL.
        member: name inside, where ``path`` is an archive; else "".
        size: bytes as stored.
    """

    path: str
    member: str = ""
    size: int = 0

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return f"{self.path}:{self.member}" if self.member else self.path


@dataclass(slots=True)
class Content:
    """Uncompressed content of a source while it is read.

    Attributes:
        source: where it comes from.
        chunks: the content in pieces.
        checksum: CRC-32 of what was read.
        size: bytes read.
        damage: what is wrong with the compressed file; "" if it was whole.
    """

    source: Source
    chunks: Iterable[bytes] = ()
    checksum: int = 0
    size: int = 0
    damage: str = ""


def natural_key(name: str) -> list[tuple[int, int | str]]:
    """Sorts ``rank10`` behind ``rank2``."""
    parts = _DIGITS.split(name)
    return [(0, int(p)) if p.isdigit() else (1, p) for p in parts]


def find_sources(paths: Iterable[str]) -> tuple[list[Source], list[Source]]:
    """All files that the paths stand for, in natural order.

    Args:
        paths: files, folders, globs or archives, or fsspec URLs of them.

    Returns:
        Files that were asked for by name, and files that a folder, a glob or an archive
        brought along and that may be anything.

    Raises:
        TraceFormatError: a path stands for nothing.
    """
    named: list[Source] = []
    brought: list[Source] = []
    for path in paths:
        fs, root = fsspec.core.url_to_fs(path)
        if fs.isdir(root):
            found = _files(fs, fs.find(root, detail=True))
            if not found:
                raise TraceFormatError(f"{path}: expected traces, found an empty folder")
            for source in found:
                _add(source, brought, brought)
        elif fs.exists(root):
            _add(Source(path, size=int(fs.size(root) or 0)), named, brought)
        else:
            matches = fs.glob(root, detail=True) if any(c in root for c in "*?[") else {}
            found = _files(fs, matches)
            if not found:
                raise TraceFormatError(f"{path}: no such file, and no glob that matches one")
            for source in found:
                _add(source, brought, brought)
    return sorted(named, key=_order), sorted(set(brought) - set(named), key=_order)


def _order(source: Source) -> Any:
    return natural_key(source.path), natural_key(source.member)


def _files(fs: Any, found: dict[str, Any]) -> list[Source]:
    local = "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)
    return [
        Source(path if local else fs.unstrip_protocol(path), size=int(info["size"] or 0))
        for path, info in found.items()
        if info["type"] == "file" and not _is_hidden(path)
    ]


def _is_hidden(path: str) -> bool:
    return path.rsplit("/", 1)[-1].startswith(".")


def _add(source: Source, plain: list[Source], members: list[Source]) -> None:
    """Add a file, or what is in it if it is an archive."""
    if read_head(source)[_TAR_MAGIC] != b"ustar":
        plain.append(source)
        return
    with _open_tar(source.path) as tar:
        members.extend(
            Source(source.path, member.name, member.size)
            for member in tar
            if member.isfile() and not _is_hidden(member.name)
        )


@contextmanager
def _open_tar(path: str) -> Iterator[tarfile.TarFile]:
    """An archive as a stream; nothing is ever unpacked to disk."""
    try:
        with fsspec.open(path, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise TraceFormatError(f"{path}: damaged archive ({error})") from None


def read_head(source: Source) -> bytes:
    """The first bytes of a file, uncompressed."""
    with fsspec.open(source.path, "rb") as file:
        head = file.read(HEAD_BYTES)
        if not head.startswith(b"\x1f\x8b"):
            return bytes(head)
        return _gunzip_head(head)


def _gunzip_head(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(head, HEAD_BYTES)
    except zlib.error:
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
    with _open_tar(group[0].path) as tar:
        for member in tar:
            if member.name in wanted and member.isfile():
                file = tar.extractfile(member)
                if file is not None:
                    yield _content(wanted.pop(member.name), file, progress)
            if not wanted:
                return


def _content(source: Source, file: Any, progress: Progress) -> Content:
    content = Content(source)
    content.chunks = ahead(_counted(content, file, progress))
    return content


def _counted(content: Content, file: BinaryIO, progress: Progress) -> Iterator[bytes]:
    stored = 0
    for read, chunk in _pieces(content, file):
        content.checksum = zlib.crc32(chunk, content.checksum)
        content.size += len(chunk)
        progress(read - stored, len(chunk))
        stored = read
        yield chunk
    progress(max(content.source.size - stored, 0), 0)


def _pieces(content: Content, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(stored bytes read so far, uncompressed piece) of a file that may be gzip."""
    data = file.read(_READ_BYTES)
    if not data.startswith(b"\x1f\x8b"):
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
    unzip = zlib.decompressobj(31)
    parts: list[bytes] = []
    size = 0
    while data:
        try:
            piece = unzip.decompress(data, CHUNK_BYTES - size)
        except zlib.error as error:
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
            unzip = zlib.decompressobj(31)
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
