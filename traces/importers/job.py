"""Import the files of a job, several at a time, into one trace set."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec

from foretrace.traces.errors import ForetraceError, IncompleteTraceError, TraceFormatError
from foretrace.traces.importers.bundles import bundled, open_bundle
from foretrace.traces.importers.parts import join_parts, part_name, unique
from foretrace.traces.importers.ranks import rank_of_name
from foretrace.traces.importers.registry import (
    FORMATS,
    FileFormat,
    FolderFormat,
    Format,
    describe_content,
    format_of,
    reads_folders,
)
from foretrace.traces.importers.report import FileReport, ImportReport, peak_rss_bytes
from foretrace.traces.importers.sources import (
    TOLD_AT_THE_END,
    Content,
    Source,
    ends_of,
    find_sources,
    open_sources,
    read_head,
)
from foretrace.traces.manifest import Dropped
from foretrace.traces.storage import Folder
from foretrace.traces.store import RankTables, TraceSetWriter, describe_ranks

Watcher = Callable[[int, int, int], None]
"""Called with (stored bytes read, stored bytes in all, uncompressed bytes read)."""

_POLL_SECONDS = 0.2
_WORTH_A_PROCESS_BYTES = 4 << 20
"""Stored bytes below which another process would start longer than it works."""


def import_paths(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    python: bool = False,
    watch: Watcher | None = None,
) -> ImportReport:
    """Import the traces of a job into the trace set ``out``, which is replaced if it exists.

    A job of some size is read by several processes, which import the calling script: call
    this under ``if __name__ == "__main__":`` there, or with ``jobs=1``.

    Args:
        paths: files, folders, globs or archives, or fsspec URLs of them.
        out: folder or URL of the trace set.
        jobs: processes; None for one per CPU.
        python: keep the frames of Python functions.
        watch: told how far the import is.

    Raises:
        TraceFormatError: a path is no trace, or nothing in it can be read.
        IncompleteTraceError: two files claim the same rank, or a process was killed.
    """
    began = time.perf_counter()
    target = Folder.at(out)
    _check_target(target)
    report = ImportReport(path=os.fspath(out))
    sources = _choose([os.fspath(p) for p in paths], report.notes)
    parent, _, name = target.root.rpartition("/")
    with Folder(target.fs, parent or ".").replacing(name) as part:
        url = part.fs.unstrip_protocol(part.root)
        results = _run(sources, url, jobs or os.cpu_count() or 1, python, watch)
        failed = [r for r in results if isinstance(r, Failed)]
        files = [r for r in results if isinstance(r, FileReport)]
        if not files:
            raise TraceFormatError(failed[0].why)
        # One bad file does not take the others with it.
        report.notes += [f"left out: {f.why}" for f in failed]
        files = unique(files, report.notes)
        report.files = join_parts(url, files, [f.NAME for f in FORMATS])
        _note_missing(report)
        TraceSetWriter(url).finish(sources=len(sources), notes=report.notes)
    report.seconds = time.perf_counter() - began
    return report


def _check_target(target: Folder) -> None:
    names = target.names()
    if target.exists() and not target.fs.isdir(target.root):
        raise TraceFormatError(f"{target.root}: is a file; choose another name for -o")
    if names and not any(n == "manifest.json" or n.startswith("rank=") for n in names):
        raise TraceFormatError(
            f"{target.root}: exists and is no trace set; choose another name for -o"
        )


def _choose(paths: Sequence[str], notes: list[str]) -> list[tuple[int, Source]]:
    """The sources that are traces, numbered per format; one asked for by name must be one."""
    formats: dict[str, str] = {}
    folders: dict[str, str] = {}

    def is_trace(head: bytes, name: str) -> bool:
        kind = format_of(head, name)
        if kind is not None:
            formats[name] = kind.NAME
            folders[name] = kind.NAME if reads_folders(kind) else ""
        return kind is not None

    found = find_sources(paths, is_trace)
    for source in found.named:
        head = read_head(source)
        if not is_trace(head, source.name):
            raise TraceFormatError(
                f"{source.name}: expected PyTorch profiler JSON (plain, .gz or in a tar), "
                f"found {describe_content(head)}"
            )
    notes += found.notes
    others = [s.name.rsplit("/", 1)[-1] for s in found.others]
    if others:
        more = ", ..." if len(others) > 3 else ""
        names = ", ".join(others[:3]) + more
        notes.append(f"skipped {len(others)} files that are no traces: {names}")
    sources = [*found.named, *(s for s in found.brought if s not in found.named)]
    if not sources:
        what = f"found none among {len(others)} files"
        if any(name.endswith(".parquet") for name in others):
            what = "found what seems to be a trace set already"
        raise TraceFormatError(f"{', '.join(paths)}: expected PyTorch profiler JSON, {what}")
    seen: Counter[str] = Counter()
    numbered = []
    for source in bundled(sources, lambda s: folders[s.name]):
        kind = formats[source.name]
        numbered.append((seen[kind], source))
        seen[kind] += 1
    return numbered


_shared: list[Any] = []
"""In a worker process: the counter of bytes that it shares with the others."""


def _keep(shared: Any) -> None:
    _shared[:] = [shared]
    # Ctrl-C ends the import from the main process, in one place.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass(frozen=True, slots=True)
class Failed:
    """A source of which nothing could be read.

    Attributes:
        why: one line with its name.
    """

    why: str


def _run(
    sources: list[tuple[int, Source]],
    url: str,
    jobs: int,
    python: bool,
    watch: Watcher | None,
) -> list[FileReport | Failed]:
    total = sum(s.size for _, s in sources)
    jobs = min(jobs, 1 + total // _WORTH_A_PROCESS_BYTES)
    tasks = _tasks(sources, jobs)
    if len(tasks) == 1 or url.startswith("memory:"):
        done = [0, 0]

        def progress(stored: int, plain: int) -> None:
            done[0] += stored
            done[1] += plain
            if watch:
                watch(done[0], total, done[1])

        return [r for task in tasks for r in _import_task(task, url, python, progress)]
    context = multiprocessing.get_context("spawn")
    shared = context.Array("q", 2)
    with ProcessPoolExecutor(
        min(jobs, len(tasks)), context, initializer=_keep, initargs=(shared,)
    ) as pool:
        futures = [pool.submit(_import_in_worker, task, url, python) for task in tasks]
        try:
            _follow(futures, shared, total, watch)
        except BrokenProcessPool:
            raise IncompleteTraceError(
                "a process of the import was killed, probably for want of memory; "
                "try again with fewer --jobs"
            ) from None
        except BaseException:
            # The processes do not hear of Ctrl-C or of another one's error: end them here. Only
            # then: a process that is still starting must not lose what it was handed.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        return [r for future in futures for r in future.result()]


def _tasks(sources: list[tuple[int, Source]], jobs: int) -> list[list[tuple[int, Source]]]:
    """Work for the processes; an archive is cut into as few runs as keep all of them busy."""
    if jobs <= 1:
        return [sources]
    tasks: list[list[tuple[int, Source]]] = []
    by_path: dict[str, list[tuple[int, Source]]] = {}
    for item in sources:
        by_path.setdefault(item[1].path, []).append(item)
    for group in by_path.values():
        length = -(-len(group) // jobs)
        tasks += [group[i : i + length] for i in range(0, len(group), length)]
    return tasks


def _follow(futures: list[Future[Any]], shared: Any, total: int, watch: Watcher | None) -> None:
    """Wait for all; the first error ends the wait."""
    waiting = set(futures)
    while waiting:
        ended, waiting = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
        for future in ended:
            future.result()
        if watch:
            with shared.get_lock():
                stored, plain = shared
            watch(stored, total, plain)


def _import_in_worker(
    task: list[tuple[int, Source]], url: str, python: bool
) -> list[FileReport | Failed]:
    (counter,) = _shared

    def progress(stored: int, plain: int) -> None:
        with counter.get_lock():
            counter[0] += stored
            counter[1] += plain

    return _import_task(task, url, python, progress)


def _import_task(
    task: list[tuple[int, Source]], url: str, python: bool, progress: Callable[[int, int], None]
) -> list[FileReport | Failed]:
    writer = TraceSetWriter(url)
    position = {source: i for i, source in task}
    reports: list[FileReport | Failed] = []
    for content in _contents([s for _, s in task], progress):
        try:
            kind, ranks = _read(content, python)
        except TraceFormatError as error:
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
        found = describe_content(head)
        raise TraceFormatError(f"{content.source.name}: expected profiler JSON, found {found}")

    def all_chunks() -> Iterable[bytes]:
        yield head
        yield from chunks

    try:
        if reads_folders(kind):
            return kind, kind.read_bundle(content.files)
        tables = cast(FileFormat, kind).read(all_chunks(), python=python)
        return kind, tables if isinstance(tables, list) else [tables]
    except ForetraceError as error:
        raise type(error)(f"{content.source.name}: not readable as {kind.NAME}: {error}") from None


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
    if content.damage:
        dropped.append(Dropped(reason=content.damage + " (whole events kept)", count=1))
    info = msgspec.structs.replace(
        info, rank=rank, rank_from=rank_from, source=content.source.name, dropped=dropped
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


def _note_missing(report: ImportReport) -> None:
    world = max((f.world_size for f in report.files), default=0)
    missing = sorted(set(range(world)) - set(report.ranks))
    if missing and len(report.files):
        report.notes.append(
            f"{describe_ranks(missing)} of {world} missing: "
            "what happens between them and the others is not known"
        )
