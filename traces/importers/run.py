"""Runs the work of an import: here, in several processes, or on a dask cluster."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from foretrace.traces.errors import IncompleteTraceError
from foretrace.traces.importers.report import FileReport
from foretrace.traces.importers.task import Failed, Task, import_task

Watcher = Callable[[int, int, int], None]
"""Called with (stored bytes read, stored bytes in all, uncompressed bytes read)."""

_POLL_SECONDS = 0.2
_WORTH_A_PROCESS_BYTES = 4 << 20
"""Stored bytes below which another process would start longer than it works."""

_shared: list[Any] = []
"""In a worker process: the counter of bytes that it shares with the others."""


def _keep(shared: Any) -> None:
    _shared[:] = [shared]
    # Ctrl-C ends the import from the main process, in one place.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back: processes that start meanwhile never hear of it, not even at first."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_here(
    sources: Task,
    url: str,
    jobs: int,
    python: bool,
    watch: Watcher | None,
) -> list[FileReport | Failed]:
    """Import all sources with up to ``jobs`` processes of this machine.

    Raises:
        IncompleteTraceError: a process was killed.
    """
    total = sum(s.size for _, s in sources)
    jobs = min(jobs, 1 + total // _WORTH_A_PROCESS_BYTES)
    tasks = tasks_of(sources, jobs)
    if len(tasks) == 1 or url.startswith("memory:"):
        done = [0, 0]

        def progress(stored: int, plain: int) -> None:
            done[0] += stored
            done[1] += plain
            if watch:
                watch(done[0], total, done[1])

        return [r for task in tasks for r in import_task(task, url, python, progress)]
    context = multiprocessing.get_context("spawn")
    shared = context.Array("q", 2)
    with ProcessPoolExecutor(
        min(jobs, len(tasks)), context, initializer=_keep, initargs=(shared,)
    ) as pool:
        try:
            with _no_interrupts():
                futures = [pool.submit(_import_in_worker, task, url, python) for task in tasks]
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


def tasks_of(sources: Task, jobs: int) -> list[Task]:
    """Work for the processes; an archive is cut into as few runs as keep all of them busy."""
    if jobs <= 1:
        return [sources]
    tasks: list[Task] = []
    by_path: dict[str, Task] = {}
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


def _import_in_worker(task: Task, url: str, python: bool) -> list[FileReport | Failed]:
    (counter,) = _shared

    def progress(stored: int, plain: int) -> None:
        with counter.get_lock():
            counter[0] += stored
            counter[1] += plain

    return import_task(task, url, python, progress)
