"""Formats that spread over several files of one folder, which are read together."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator

import fsspec

from foretrace.traces.importers.sources import Content, Progress, Source, unzipped
from foretrace.traces.storage import file_system


def bundled(sources: Iterable[Source], kind_of: Callable[[Source], str]) -> list[Source]:
    """Sources in their order, with those that belong together made one.

    Args:
        sources: all files.
        kind_of: the format of a file whose folder is read as a whole; "" for any other.
    """
    found: list[Source] = []
    place: dict[tuple[str, str, str], int] = {}
    for source in sources:
        kind = kind_of(source)
        if not kind:
            found.append(source)
            continue
        folder = (source.member or source.path).rpartition("/")[0]
        key = (kind, source.path if source.member else "", folder)
        if key not in place:
            place[key] = len(found)
            found.append(Source(source.path, source.member, 0, ()))
        known = found[place[key]]
        parts = (*known.parts, source.member or source.path)
        found[place[key]] = Source(known.path, known.member, known.size + source.size, parts)
    return found


def open_bundle(source: Source, progress: Progress) -> Content:
    """Read all files of a bundle.

    Args:
        source: the bundle.
        progress: told about bytes as they are read.
    """
    content = Content(source)
    for name, data in _files(source):
        plain = unzipped(data)
        content.files[name] = plain
        content.size += len(plain)
        content.checksum = zlib.crc32(plain, content.checksum)
        progress(len(data), len(plain))
    return content


def read_beside(source: Source, names: Iterable[str]) -> tuple[str, bytes] | None:
    """Name and content of the first of the named files that lies where a source lies."""
    folder, slash, _ = (source.member or source.path).rpartition("/")
    paths = [folder + slash + name for name in names]
    if source.member:
        inside = dict(_members(source.path, set(paths)))
        found = next((p for p in paths if p in inside), None)
        return None if found is None else (found, unzipped(inside[found]))
    for path in paths:
        fs, root = file_system(path)
        if fs.isfile(root):
            return path, unzipped(fs.cat_file(root))
    return None


def _files(source: Source) -> Iterator[tuple[str, bytes]]:
    if not source.member:
        for path in source.parts:
            with fsspec.open(path, "rb") as file:
                yield path, file.read()
        return
    yield from _members(source.path, set(source.parts))


def _members(path: str, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    """Name and content of files of an archive."""
    with fsspec.open(path, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.name in wanted else None
            if content is not None:
                wanted.discard(member.name)
                yield member.name, content.read()
