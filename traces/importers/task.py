"""What one process of an import does: read some sources and write the ranks they hold."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import msgspec

from foretrace.traces.errors import ForetraceError, TraceFormatError
from foretrace.traces.groups import MOST_RANKS
from foretrace.traces.importers.bundles import open_bundle, read_beside
from foretrace.traces.importers.parts import part_name
from foretrace.traces.importers.ranks import rank_of_name
from foretrace.traces.importers.registry import (
    EXPECTED,
    FORMATS,
    FileFormat,
    FolderFormat,
    Format,
    describe_content,
    format_of,
    reads_folders,
)
from foretrace.traces.importers.report import FileReport, peak_rss_bytes
from foretrace.traces.importers.sources import (
    TOLD_AT_THE_END,
    Content,
    Source,
    ends_of,
    open_sources,
)
from foretrace.traces.manifest import Dropped
from foretrace.traces.store import RankTables, TraceSetWriter

Task = list[tuple[int, Source]]
"""Sources with their numbers among those of their format."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A source of which nothing could be read.

    Attributes:
        why: one line with its name.
    """

    why: str


def import_task(
    task: Task, url: str, python: bool, progress: Callable[[int, int], None]
) -> list[FileReport | Failed]:
    """Import the sources of ``task`` into the trace set at ``url``.

    Args:
        task: what to read; members of one archive stand together.
        url: the trace set.
        python: keep the frames of Python functions.
        progress: told about further (stored, uncompressed) bytes.
    """
    writer = TraceSetWriter(url)
    position = {source: i for i, source in task}
    reports: list[FileReport | Failed] = []
    for content in _contents([s for _, s in task], progress):
        try:
            kind, ranks = _read(content, python)
        except ForetraceError as error:
            reports.append(Failed(str(error)))
            continue
        place = position[content.source]
        # what may be one of several sources of a rank is kept apart until all are read
        part = "" if kind is FORMATS[0] else part_name(kind.NAME, place)
        target = TraceSetWriter(f"{url}/{part}") if part else writer
        for tables in ranks:
            settled = _settle(tables, content, place, kind)
            target.write_rank(settled)
            reports.append(replace(_report(settled, content), format=kind.NAME, folder=part))
    return reports


def _contents(sources: list[Source], progress: Callable[[int, int], None]) -> Iterator[Content]:
    yield from open_sources([s for s in sources if not s.parts], progress)
    for source in sources:
        if source.parts:
            yield open_bundle(source, progress)


def _read(content: Content, python: bool) -> tuple[FileFormat | FolderFormat, list[RankTables]]:
    chunks = iter(content.chunks)
    head = next(iter(content.files.values()), b"") if content.files else next(chunks, b"")
    if head.startswith(TOLD_AT_THE_END):
        head += b"".join(chunks)
    kind = format_of(ends_of(head), content.source.name)
    if kind is None:
        found = describe_content(head, content.source.size)
        raise TraceFormatError(f"{content.source.name}: expected {EXPECTED}, found {found}")

    def all_chunks() -> Iterable[bytes]:
        yield head
        yield from chunks

    try:
        with _little_garbage():
            if reads_folders(kind):
                return kind, kind.read_bundle(content.files)
            tables = cast(FileFormat, kind).read(
                all_chunks(), python=python, **_beside(kind, content.source)
            )
        return kind, tables if isinstance(tables, list) else [tables]
    except ForetraceError as error:
        raise type(error)(f"{content.source.name}: not readable as {kind.NAME}: {error}") from None


def _beside(kind: Format, source: Source) -> dict[str, tuple[str, bytes]]:
    """What lies beside a file and tells more about it."""
    companions: Callable[[str], tuple[str, ...]] | None = getattr(kind, "companions", None)
    name = (source.member or source.path).rpartition("/")[2]
    found = read_beside(source, companions(name)) if companions else None
    return {} if found is None else {"beside": found}


@contextmanager
def _little_garbage() -> Iterator[None]:
    """Spare the garbage collector the half million objects of the compiler, again and again."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _settle(tables: RankTables, content: Content, position: int, kind: Format) -> RankTables:
    """Give the rank its number and note the source."""
    info = tables.info
    rank, rank_from = info.rank, info.rank_from
    if rank < 0:
        of_name: Callable[[str], int] = getattr(kind, "rank_of_name", rank_of_name)
        rank, rank_from = of_name(content.source.name), "file name"
    if rank < 0:
        rank, rank_from = position, "order"
    dropped = list(info.dropped)
    world_size = info.world_size
    if not 0 <= world_size <= MOST_RANKS:
        dropped.append(Dropped(reason="world_size cannot be one", count=1, example=str(world_size)))
        world_size = 0
    if content.damage:
        dropped.append(Dropped(reason=content.damage + " (whole events kept)", count=1))
    info = msgspec.structs.replace(
        info, rank=rank, rank_from=rank_from, source=content.source.label, dropped=dropped
    )
    return replace(tables, info=info)


def _report(tables: RankTables, content: Content) -> FileReport:
    info = tables.info
    return FileReport(
        source=info.source,
        rank=info.rank,
        rank_from=info.rank_from,
        world_size=info.world_size,
        events=len(tables.events),
        bytes=content.size,
        checksum=content.checksum,
        dropped=tuple(info.dropped),
        peak_rss_bytes=peak_rss_bytes(),
    )
