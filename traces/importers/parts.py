"""Ranks that several sources describe: kept apart while they are read, then made one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foretrace.traces.errors import IncompleteTraceError
from foretrace.traces.importers.join import join
from foretrace.traces.importers.report import FileReport
from foretrace.traces.storage import Folder
from foretrace.traces.store import RankTables, TraceSet, TraceSetWriter, rank_folder


def part_name(kind: str, position: int) -> str:
    """Folder inside a trace set where a source that may be one of several is kept meanwhile.

    Args:
        kind: name of its format.
        position: its number among the sources of that format.
    """
    return f"part={''.join(c for c in kind.lower() if c.isalnum())}-{position:05d}"


def unique(files: list[FileReport], notes: list[str]) -> list[FileReport]:
    """One report per rank and format; copies of one file count once, other doubles are an error.

    Raises:
        IncompleteTraceError: two different files of one format claim the same rank.
    """
    kept: dict[tuple[int, str], FileReport] = {}
    for file in files:
        other = kept.setdefault((file.rank, file.format), file)
        if other is file:
            continue
        if (other.checksum, other.bytes) != (file.checksum, file.bytes):
            raise IncompleteTraceError(
                f"two files of rank {file.rank}: {other.source} (rank by {other.rank_from}) and "
                f"{file.source} (rank by {file.rank_from}); give only one of them, or, if they "
                "are of different ranks, name them rank0.json, rank1.json ...; of an archive, "
                "unpack it and give the files that belong together"
            )
        notes.append(f"skipped {file.source}: an identical copy of {other.source}")
    return sorted(kept.values(), key=lambda f: f.rank)


def join_parts(url: str, files: list[FileReport], formats: Sequence[str]) -> list[FileReport]:
    """Make one rank folder of all that was read about each rank.

    Args:
        url: the trace set.
        files: one report per rank and format.
        formats: their names; the earlier one's times are kept.

    Returns:
        One report per rank.
    """
    by_rank: dict[int, list[FileReport]] = {}
    for file in files:
        by_rank.setdefault(file.rank, []).append(file)
    joined = []
    for rank in sorted(by_rank):
        sources = sorted(by_rank[rank], key=lambda f: formats.index(f.format))
        joined.append(_joined(url, sources) if len(sources) > 1 else _settled(url, sources[0]))
    folder = Folder.at(url)
    for name in folder.names():
        if name.startswith("part="):
            folder.fs.rm(folder.path(name), recursive=True)
    return joined


def _settled(url: str, file: FileReport) -> FileReport:
    if file.folder:
        folder = Folder.at(url)
        name = rank_folder(file.rank)
        folder.fs.mv(folder.path(file.folder, name), folder.path(name), recursive=True)
    return file


def _joined(url: str, sources: list[FileReport]) -> FileReport:
    tables = _tables(url, sources[0])
    for other in sources[1:]:
        tables = join(tables, _tables(url, other))
    TraceSetWriter(url).write_rank(tables)
    return replace(
        sources[0],
        source=tables.info.source,
        world_size=tables.info.world_size,
        bytes=sum(s.bytes for s in sources),
        dropped=tuple(tables.info.dropped),
        peak_rss_bytes=max(s.peak_rss_bytes for s in sources),
    )


def _tables(url: str, file: FileReport) -> RankTables:
    part = TraceSet.open(f"{url}/{file.folder}" if file.folder else url)
    return part.tables(file.rank)
