"""``profile``: the context manager that users put around their training loop."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Literal

from foretrace.collector.closing import closing_line
from foretrace.collector.finish import Finisher
from foretrace.collector.kineto import refuse_running_profiler
from foretrace.collector.options import Options, clean_labels, clean_path, clean_ranks
from foretrace.collector.place import Place, find_place, make_room, one_line
from foretrace.collector.session import GaveUpError, Session
from foretrace.traces.errors import ForetraceError

_AFTER_ERROR_S = 15.0


class profile:  # noqa: N801 (a verb in lower case, as torch.profiler.profile)
    """Record some steps of a training loop into a trace set.

    Enter it on every rank, after ``init_process_group`` where there is one, and call
    :meth:`step` at the end of each step::

        with profile("run.trace", wait=1, warmup=1, active=3) as prof:
            for batch in loader:
                train_step(batch)
                prof.step()

    Once the loop has begun nothing here raises into it: a recording that cannot go on is given
    up with one line on standard error. Errors of the loop itself pass through untouched, and
    what was recorded before is kept. No collective is added to any process group.

    Args:
        path: the trace set to write, by custom ``NAME.trace``; an older one is replaced.
        wait: steps to leave alone at first.
        warmup: steps with the profiler prepared and the hooks in, but nothing kept.
        active: steps to record.
        detail: "full" records operators and kernels with torch.profiler; "light" records steps
            and communication with its own hooks only, cheap enough for every rank of a big job.
            Ranks of both kinds may share one set.
        ranks: global ranks that record; None for all.
        trigger: start to count at a signal's name (``"SIGUSR1"``), or when a file appears or is
            touched (its path), instead of at the first step. One rank needs to see it.
        layout: parallel layout such as ``{"dp": 2, "pp": 2}``, where the process groups' names
            do not tell it.
        labels: free words kept with the recording.
        with_stack: have torch.profiler record Python stacks.
        profile_memory: have torch.profiler record allocations.
        timeout_s: how long to wait at the end for conversion and for other ranks.

    Raises:
        ForetraceError: on entry only: an argument makes no sense, the path cannot be written,
            or another torch profiler is running.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        wait: int = 1,
        warmup: int = 1,
        active: int = 3,
        detail: Literal["full", "light"] = "full",
        ranks: Collection[int] | None = None,
        trigger: str | os.PathLike[str] | None = None,
        layout: Mapping[str, int] | None = None,
        labels: Mapping[str, object] | None = None,
        with_stack: bool = False,
        profile_memory: bool = False,
        timeout_s: float = 120.0,
    ) -> None:
        self._options = Options(
            path=clean_path(path),
            wait=wait,
            warmup=warmup,
            active=active,
            detail=detail,
            ranks=clean_ranks(ranks),
            trigger=None if trigger is None else os.fspath(trigger),
            layout=dict(layout or {}),
            labels=clean_labels(labels),
            with_stack=with_stack,
            profile_memory=profile_memory,
            timeout_s=timeout_s,
        )
        self._place: Place | None = None
        self._session: Session | None = None
        self._finisher: Finisher | None = None

    def __enter__(self) -> profile:
        try:
            import torch  # noqa: F401 (all that follows needs it)
        except ImportError as error:
            raise ForetraceError(f"profile: needs torch ({error})") from error
        place = self._place = find_place(self._options)
        if not self._options.records(place.rank):
            return self
        if self._options.detail == "full":
            refuse_running_profiler()
        make_room(place)
        finisher = self._finisher = Finisher(self._options, place)
        self._session = Session(self._options, place, finisher)
        try:
            self._session.listen()
        except ForetraceError:
            finisher.close()
            raise
        self._guard(self._session.begin)
        return self

    def step(self) -> None:
        """A training step is over; call it at the end of each one."""
        if self._session is not None:
            self._guard(self._session.advance)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        session, finisher = self._session, self._finisher
        if session is not None:
            self._guard(lambda: self._end(session, failed=kind is not None))
        if finisher is not None:
            finisher.close()

    def _end(self, session: Session, failed: bool) -> None:
        place, finisher, options = self._place, self._finisher, self._options
        assert place is not None and finisher is not None  # noqa: S101, PT018
        if not session.end():
            finisher.cancel()
            place.say(
                f"rank {place.rank}: nothing recorded: the loop ended after "
                f"{session.step} steps, before {session.window.recorded}"
            )
            return
        # After an error of the loop the other ranks may never come.
        others_s = min(options.timeout_s, _AFTER_ERROR_S) if failed else options.timeout_s
        finished = finisher.wait(options.timeout_s, others_s)
        for trouble in place.troubles:
            place.say(f"rank {place.rank}: {trouble}")
        if place.is_reference:
            place.say(closing_line(session, finisher, place, finished))

    def _guard(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # nothing of ours may raise into the training loop
            self._give_up(str(error) if isinstance(error, GaveUpError) else one_line(error))

    def _give_up(self, reason: str) -> None:
        session, self._session = self._session, None
        place, finisher = self._place, self._finisher
        assert session is not None and place is not None and finisher is not None  # noqa: S101, PT018
        with contextlib.suppress(Exception):  # torch may be in any state; the loop must go on
            session.abandon()
        finisher.cancel()
        place.say(f"rank {place.rank}: recording given up: {reason}")
