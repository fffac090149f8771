"""Sees when the host waits for a collective or p2p call: ``Work.wait`` while recording.

torch gives no other way to learn which Work a thread waits for. Two kinds of methods of
torch's own classes are replaced for the recorded steps and put back after them: the methods of
ProcessGroup that return a Work (to know which call a Work stands for, by identity, without
keeping it alive), and ``Work.wait`` itself. Waits inside C++ (DDP's reducer) pass neither.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from foretrace.collector.hook import Failed
from foretrace.collector.recorder import Recorder

WAIT_NAME = "foretrace::wait"
"""Name of the annotation row of a wait."""

WORK_MAKERS = (
    "allreduce",
    "allreduce_coalesced",
    "allgather",
    "_allgather_base",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
    "_end_coalescing",
)
"""Methods of ProcessGroup that return a Work, over all versions."""


class WaitHook:
    """The replaced methods while they are replaced.

    Args:
        recorder: takes the rows.
        failed: told of an error of our own; the wait itself goes on.
        annotate: mark each wait in the profiler's trace too.
    """

    def __init__(self, recorder: Recorder, failed: Failed, annotate: bool) -> None:
        self.recorder = recorder
        self._failed = failed
        self._annotate = annotate
        self._replaced: list[tuple[type[Any], str, Any]] = []

    def install(self) -> None:
        """Replace the methods."""
        import torch.distributed as dist

        group, work = dist.ProcessGroup, dist.Work
        for name in WORK_MAKERS:
            if name in vars(group):
                self._replace(group, name, self._maker)
        self._replace(work, "wait", self._wait)

    def remove(self) -> None:
        """Put back what was there, unless somebody else has replaced it since."""
        while self._replaced:
            owner, name, ours = self._replaced.pop()
            if vars(owner).get(name) is ours:
                setattr(owner, name, ours.__wrapped__)

    def _replace(self, owner: type[Any], name: str, make: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]
        ours = make(original)
        ours.__wrapped__ = original
        ours.__name__, ours.__doc__ = name, original.__doc__
        setattr(owner, name, ours)
        self._replaced.append((owner, name, ours))

    def _maker(self, original: Any) -> Callable[..., Any]:
        recorder, call = self.recorder, _bound(original)

        def make_work(group: Any, *args: Any, **kwargs: Any) -> Any:
            work = call(group, *args, **kwargs)
            if work is not None:
                recorder.remember_work(work)
            return work

        return make_work

    def _wait(self, original: Any) -> Callable[..., Any]:
        recorder, call, annotate = self.recorder, _bound(original), self._annotate
        mark = _annotation(annotate)

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            ident, start_ns = recorder.work_ident(work), recorder.clock()
            self._guarded(recorder.waiting, ident)
            try:
                with mark(WAIT_NAME):
                    return call(work, *args, **kwargs)
            finally:
                self._guarded(recorder.waited, ident, start_ns, annotate)

        return wait

    def _guarded(self, act: Callable[..., None], *args: Any) -> None:
        try:
            act(*args)
        except Exception as error:  # nothing of ours may raise into the training loop
            self._failed(error)


def _bound(original: Any) -> Callable[..., Any]:
    """The method as a plain callable that takes ``self`` first."""
    # pybind wraps methods in an instancemethod
    return getattr(original, "__func__", original)  # type: ignore[no-any-return]


def _annotation(annotate: bool) -> Callable[[str], contextlib.AbstractContextManager[Any]]:
    """What marks a stretch of host time in the profiler's trace."""
    if not annotate:
        return lambda _name: contextlib.nullcontext()
    import torch

    fast: Any = getattr(torch._C._profiler, "_RecordFunctionFast", None)
    slow: Any = torch.profiler.record_function
    return fast or slow  # type: ignore[no-any-return]
