"""torch.profiler for the recorded steps, driven from our own window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretrace.collector.window import Phase, Window
from foretrace.traces.errors import ForetraceError


def refuse_running_profiler() -> None:
    """Raise if a profiler of the script's own is running; two at once are impossible.

    Raises:
        ForetraceError: one is.
    """
    if profiler_running():
        raise ForetraceError(
            "profile: another torch profiler is already running in this process; stop it "
            "first, or record with detail='light', which needs none"
        )


def profiler_running() -> bool:
    """Whether torch's profiler is enabled in this process."""
    import torch
    from torch.autograd import profiler

    enabled = getattr(torch._C._autograd, "_profiler_enabled", None)
    return bool(profiler._is_profiler_enabled or (enabled is not None and enabled()))


class KinetoProfiler:
    """One run of torch.profiler; writes Chrome JSON.

    Args:
        window: the steps to record.
        with_stack: record Python stacks.
        profile_memory: record allocations.
    """

    def __init__(self, window: Window, with_stack: bool, profile_memory: bool) -> None:
        self._window = window
        self._settings = {"with_stack": with_stack, "profile_memory": profile_memory}
        self._profiler: Any = None
        self._shift = 0

    def start(self, step: int) -> None:
        """Begin with ``step``: prepare, or record at once without a warm-up."""
        import torch

        self._shift = step
        self._profiler = torch.profiler.profile(
            schedule=self._action,
            record_shapes=True,
            experimental_config=experimental_config(self._settings["with_stack"]),
            **self._settings,
        )
        self._profiler.step_num = step
        self._profiler.start()

    def step(self) -> None:
        """The next step begins."""
        self._profiler.step()

    def stop(self) -> None:
        """Stop, whatever the phase."""
        self._profiler.stop()

    def export(self, path: Path) -> None:
        """Write the recording as Chrome JSON; does not hold the GIL for long."""
        self._profiler.export_chrome_trace(str(path))

    def discard(self) -> None:
        """Free the recorded events."""
        self._profiler = None

    def _action(self, step: int) -> Any:
        from torch.profiler import ProfilerAction

        # The constructor asks for step 0 before it can be told which step it is.
        step = max(step, self._shift)
        phase = self._window.phase(step)
        if phase is Phase.WARMUP:
            return ProfilerAction.WARMUP
        if phase is Phase.RECORD:
            last = self._window.is_last(step)
            return ProfilerAction.RECORD_AND_SAVE if last else ProfilerAction.RECORD
        return ProfilerAction.NONE


def experimental_config(with_stack: bool) -> Any:
    """The profiler's extra settings, as far as this version has them."""
    import torch

    make: Any = torch._C._profiler._ExperimentalConfig
    wanted = {"enable_cuda_sync_events": True, "trace_only": not with_stack}
    for names in (tuple(wanted), ("enable_cuda_sync_events",), ()):
        try:
            return make(**{name: wanted[name] for name in names})
        except TypeError:  # an older version knows fewer names
            continue
    return None
