"""All that is attached to torch while steps are recorded, put on and taken off as one."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.collector.cudatimer import CudaTimer
from foretrace.collector.hook import CollectiveHook, describe_group
from foretrace.collector.options import Detail
from foretrace.collector.recorder import Recorder
from foretrace.collector.spool import Call, DeviceSpan, Done, Group, Wait
from foretrace.collector.waits import WaitHook


class Probes:
    """The hooks of one recording.

    Args:
        detail: "full" leaves timing to the profiler, "light" times calls itself.

    Attributes:
        refused: why no hook could be installed, "" if all are.
        failures: calls that a hook could not take down.
        first_failure: the first reason.
    """

    def __init__(self, detail: Detail) -> None:
        self.refused = ""
        self.failures = 0
        self.first_failure = ""
        self._light = detail == "light"
        self._timer = _device_timer() if self._light else None
        self.recorder = Recorder(describe_group, timer=self._timer, backward=_backward_pass())
        self._calls = CollectiveHook(self.recorder, self._note, completions=self._light)
        self._waits = WaitHook(self.recorder, self._note, annotate=not self._light)
        self._installed = False

    def install(self) -> None:
        """Hook in; a version of torch that refuses is no error but leaves ``refused``."""
        import torch.distributed as dist

        if not dist.is_available():
            self.refused = "this torch has no distributed package"
            return
        try:
            self._calls.install()
            self._waits.install()
        except (RuntimeError, AttributeError, TypeError) as error:
            self.remove()
            self.refused = str(error).splitlines()[0]
            return
        self._installed = True

    def open(self) -> None:
        """Keep rows from here on."""
        if self._timer is not None:
            self._timer.open()
        self.recorder.open()

    def remove(self) -> None:
        """Keep no more rows and detach everything."""
        self.recorder.close()
        self._calls.remove()
        self._waits.remove()
        self._installed = False

    def rows(self) -> tuple[list[Call], list[Wait], list[Done], list[DeviceSpan]]:
        """All that was seen, once :meth:`remove` has been called."""
        spans = self._timer.spans() if self._timer is not None else []
        return *self.recorder.rows(), spans

    def groups(self) -> list[Group]:
        """The process groups met, in the order that rows number them."""
        return self.recorder.groups()

    def _note(self, error: BaseException) -> None:
        self.failures += 1
        self.first_failure = self.first_failure or f"{type(error).__name__}: {error}"


def _backward_pass() -> Callable[[], int]:
    import torch

    return getattr(torch._C, "_current_graph_task_id", lambda: -1)


def _device_timer() -> CudaTimer | None:
    import torch

    # A job on CPUs must not get a CUDA context from us.
    return CudaTimer(torch.cuda) if torch.cuda.is_initialized() else None
