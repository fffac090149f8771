"""Import the files of a job, several at a time, into one trace set."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers.bundles import bundled
from foretrace.traces.importers.cluster import run_on_dask
from foretrace.traces.importers.numbering import number_on
from foretrace.traces.importers.parts import join_parts, unique
from foretrace.traces.importers.registry import (
    EXPECTED,
    FORMATS,
    describe_content,
    format_of,
    reads_folders,
)
from foretrace.traces.importers.report import FileReport, ImportReport
from foretrace.traces.importers.run import Watcher, run_here
from foretrace.traces.importers.sources import find_sources, read_head
from foretrace.traces.importers.task import Failed, Task
from foretrace.traces.storage import Folder, file_system
from foretrace.traces.store import TraceSetWriter, describe_ranks


def import_paths(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    executor: str = "",
    python: bool = False,
    watch: Watcher | None = None,
) -> ImportReport:
    """Import the traces of a job into the trace set ``out``, which is replaced if it exists.

    A job of some size is read by several processes, which import the calling script: call
    this under ``if __name__ == "__main__":`` there, or with ``jobs=1``.

    Args:
        paths: files, folders, globs or archives, or fsspec URLs of them.
        out: folder or URL of the trace set.
        jobs: processes of this machine; None for one per CPU.
        executor: ``dask://HOST:PORT`` to let a cluster do the work, else "".
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
    _check_inputs(sources, target)
    parent, _, name = target.root.rpartition("/")
    with Folder(target.fs, parent or ".").replacing(name) as part:
        url = part.fs.unstrip_protocol(part.root)
        if executor:
            results = run_on_dask(executor, sources, url, python, watch)
        else:
            results = run_here(sources, url, jobs or os.cpu_count() or 1, python, watch)
        failed = [r for r in results if isinstance(r, Failed)]
        files = [r for r in results if isinstance(r, FileReport)]
        if not files:
            raise TraceFormatError(failed[0].why)
        # One bad file does not take the others with it.
        report.notes += [f"left out: {f.why}" for f in failed]
        files = unique(number_on(url, files, report.notes), report.notes)
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
    foreign = [n for n in names if n != "manifest.json" and not n.startswith(("rank=", "."))]
    if foreign:
        raise TraceFormatError(
            f"{target.root}: would be replaced, but holds {foreign[0]}, which is no part of a "
            "trace set; move it away or choose another name for -o"
        )


def _check_inputs(sources: Task, target: Folder) -> None:
    """Nothing that is read may lie in what is replaced."""
    for _, source in sources:
        for path in source.parts or (source.path,):
            fs, root = file_system(path)
            if fs == target.fs and f"{root}/".startswith(f"{target.root}/"):
                raise TraceFormatError(
                    f"{source.name}: lies in {target.root}, which would be replaced; "
                    "choose another name for -o"
                )


def _choose(paths: Sequence[str], notes: list[str]) -> Task:
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
                f"{source.name}: expected {EXPECTED}, found {describe_content(head, source.size)}"
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
        raise TraceFormatError(f"{', '.join(paths)}: expected {EXPECTED}, {what}")
    seen: Counter[str] = Counter()
    numbered = []
    for source in bundled(sources, lambda s: folders[s.name]):
        kind = formats[source.name]
        numbered.append((seen[kind], source))
        seen[kind] += 1
    return numbered


def _note_missing(report: ImportReport) -> None:
    world = max((f.world_size for f in report.files), default=0)
    missing = sorted(set(range(world)) - set(report.ranks))
    if missing and len(report.files):
        report.notes.append(
            f"{describe_ranks(missing)} of {world} missing: "
            "what happens between them and the others is not known"
        )
