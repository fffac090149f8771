"""Runs the work of an import on a dask cluster whose workers see the same files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from foretrace.traces.classify import CLASSES_VARIABLE
from foretrace.traces.errors import ForetraceError, IncompleteTraceError, TraceFormatError
from foretrace.traces.importers.report import FileReport
from foretrace.traces.importers.run import Watcher, tasks_of
from foretrace.traces.importers.task import Failed, Task, import_task
from foretrace.traces.storage import Folder
from foretrace.traces.store import rank_folder

SCHEME = "dask://"
CONNECT_SECONDS = 20
_RETRIES = 3


def run_on_dask(
    executor: str, sources: Task, url: str, python: bool, watch: Watcher | None
) -> list[FileReport | Failed]:
    """Import all sources on a cluster; the work of a worker that dies is done by another one.

    A rank appears whole or not at all, and again in the same place if it is done twice, so
    nothing is lost or doubled by that.

    Args:
        executor: ``dask://HOST:PORT`` of the scheduler.
        sources: what to read; the workers must see it under the same names.
        url: the trace set, likewise.
        python: keep the frames of Python functions.
        watch: told how far the import is.

    Raises:
        TraceFormatError: the address is no dask address, or dask is not installed.
        IncompleteTraceError: the cluster cannot be reached, or workers kept dying.
    """
    with connected(executor) as client:
        slots = sum(client.nthreads().values())
        tasks = tasks_of(sources, max(slots, 2))
        results = _gather(client, tasks, url, python, watch)
    _clean(url, [r for r in results if isinstance(r, FileReport)])
    return results


@contextlib.contextmanager
def connected(executor: str) -> Iterator[Any]:
    """A client of a dask cluster that has workers.

    Args:
        executor: ``dask://HOST:PORT`` of the scheduler.

    Raises:
        TraceFormatError: the address is no dask address, or dask is not installed.
        IncompleteTraceError: the cluster cannot be reached, or has no workers.
    """
    host = executor.removeprefix(SCHEME)
    if not executor.startswith(SCHEME) or ":" not in host:
        raise TraceFormatError(f"executor {executor!r}: expected {SCHEME}HOST:PORT")
    try:
        from distributed import Client
    except ImportError:
        raise TraceFormatError(
            "dask.distributed is not installed; pip install 'foretrace[dask]'"
        ) from None
    try:
        client = Client(f"tcp://{host}", timeout=CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, TimeoutError, ValueError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise IncompleteTraceError(f"{SCHEME}{host}: no dask scheduler answers ({line})") from None
    with client:
        if not client.nthreads():  # type: ignore[no-untyped-call]
            raise IncompleteTraceError(f"{executor}: the cluster has no workers; start some")
        yield client


def _gather(
    client: Any, tasks: list[Task], url: str, python: bool, watch: Watcher | None
) -> list[FileReport | Failed]:
    """Results in the order of ``tasks``."""
    from distributed import KilledWorker, as_completed

    own = os.environ.get(CLASSES_VARIABLE, "")
    futures = [
        client.submit(_import_there, task, url, python, own, pure=False, retries=_RETRIES)
        for task in tasks
    ]
    sizes = {f.key: sum(s.size for _, s in t) for f, t in zip(futures, tasks, strict=True)}
    stored = plain = 0
    try:
        for future in as_completed(futures, loop=client.loop):  # type: ignore[no-untyped-call]
            reports = future.result()
            stored += sizes[future.key]
            plain += sum(r.bytes for r in reports if isinstance(r, FileReport))
            if watch:
                watch(stored, sum(sizes.values()), plain)
        return [report for future in futures for report in future.result()]
    except KilledWorker as error:
        raise IncompleteTraceError(
            f"workers of the cluster were killed over and over, probably for want of memory "
            f"({str(error).splitlines()[0]})"
        ) from None
    except ForetraceError:
        client.cancel(futures)
        raise


def _import_there(task: Task, url: str, python: bool, own: str) -> list[FileReport | Failed]:
    """What a worker does, with the table of kernel classes of the process that asked for it."""
    os.environ[CLASSES_VARIABLE] = own
    return import_task(task, url, python, _tell_nobody)


def _tell_nobody(stored: int, plain: int) -> None:
    del stored, plain


def _clean(url: str, reports: list[FileReport]) -> None:
    """Sweep up what killed workers left half done, and see that all else is really here."""
    folder = Folder.at(url)
    for report in reports:
        path = [p for p in (report.folder, rank_folder(report.rank)) if p]
        if not folder.exists(*path, "manifest.json"):
            raise IncompleteTraceError(
                f"rank {report.rank} was written by a worker, but not where {url} is here: "
                "the target must lie on a file system that all workers share"
            )
    for name in folder.names():
        if name.startswith(".") and name.endswith((".part", ".old")):
            folder.remove(name)
