"""One rank's recording from the first step to the last: what happens at each step boundary."""

from __future__ import annotations

import threading
import time

from foretrace.collector.finish import Finisher, Given
from foretrace.collector.kineto import KinetoProfiler, profiler_running
from foretrace.collector.options import Options
from foretrace.collector.overhead import HookCosts, StepTimes, hook_entry_ns, summary, typical
from foretrace.collector.place import Place
from foretrace.collector.probes import Probes
from foretrace.collector.spool import Step
from foretrace.collector.trigger import FileTrigger, SignalTrigger, Watcher
from foretrace.collector.window import Phase, Window

_JOIN_S = 5.0


class GaveUpError(Exception):
    """The recording cannot go on; the training loop does."""


class Session:
    """Hooks, profiler and step marks of one rank.

    Args:
        options: what the user asked for.
        place: which rank this is and how it reaches the others.
        finisher: takes the recording when it is over.
    """

    def __init__(self, options: Options, place: Place, finisher: Finisher) -> None:
        first = 0 if options.trigger is None else None
        self.window = Window(options.wait, options.warmup, options.active, first)
        self.times = StepTimes()
        self.step = 0
        self.costs: HookCosts | None = None
        self.stop_s = 0.0
        self._finisher = finisher
        self._options = options
        self._place = place
        self._entry_ns = 0.0
        self._phase = Phase.IDLE
        self.probes: Probes | None = None
        self._kineto: KinetoProfiler | None = None
        self._steps: list[Step] = []
        self._began_ns = 0
        self._opened_ns = 0
        self._signal: SignalTrigger | None = None
        self._watcher: threading.Thread | None = None
        self._stop_watching = threading.Event()

    def listen(self) -> None:
        """Wait for the trigger, if there is one.

        Raises:
            ForetraceError: this thread cannot wait for a signal.
        """
        if self._options.trigger is not None:
            self._watch(self._options.trigger)

    def begin(self) -> None:
        """The loop is about to start."""
        if self._place.channel is not None:
            self._place.channel.increase("entered")
        self._enter(self.window.phase(0))
        self._began_ns = time.time_ns()

    def advance(self) -> None:
        """A step has ended and the next one begins.

        Raises:
            GaveUpError: this rank came too late for the steps that the others record.
        """
        self._end_step()
        self.step += 1
        phase = self.window.phase(self.step)
        if phase is Phase.OVER and self._phase is Phase.IDLE:
            raise GaveUpError(f"heard of the trigger after {self.window.recorded} had begun")
        before = self._phase
        if self._kineto is not None and before in (Phase.WARMUP, Phase.RECORD):
            began = time.perf_counter()
            self._kineto.step()
            if phase is Phase.OVER:
                self.stop_s = time.perf_counter() - began
        self._enter(phase)
        if before is Phase.RECORD and phase is Phase.OVER:
            self._close()
        self._began_ns = time.time_ns()

    def end(self) -> bool:
        """The loop is over.

        Returns:
            Whether any step was recorded.
        """
        self.detach_trigger()
        if self._phase is Phase.RECORD:
            self._end_step()
            if self._kineto is not None:
                self._kineto.stop()
            self._close()
        elif self._phase is Phase.WARMUP:
            self.abandon()
        self._phase = Phase.OVER
        return self._finisher.handed_over

    def abandon(self) -> None:
        """Detach everything without a word, after an error or an early end."""
        self.detach_trigger()
        self._phase = Phase.OVER
        if self.probes is not None:
            self.probes.remove()
        if self._kineto is not None:
            kineto, self._kineto = self._kineto, None
            kineto.stop()

    def detach_trigger(self) -> None:
        """Listen to no trigger any more."""
        self._stop_watching.set()
        if self._watcher is not None:
            self._watcher.join(_JOIN_S)
        if self._signal is not None:
            self._signal.remove()
            self._signal = None

    def _watch(self, trigger: str) -> None:
        number = self._options.signal_number
        triggered: SignalTrigger | FileTrigger
        if number is not None:
            triggered = self._signal = SignalTrigger(number)
            self._signal.install()
        else:
            triggered = FileTrigger(trigger)
        channel = self._place.channel
        watcher = Watcher(
            triggered,
            channel.another() if channel is not None else None,
            self._place.is_reference,
            lambda: (self.step, self.times.typical_s),
            self._triggered,
        )
        self._watcher = threading.Thread(
            target=self._place.guarded(watcher.run),
            args=(self._stop_watching,),
            name="foretrace-trigger",
            daemon=True,
        )
        self._watcher.start()

    def _triggered(self, step: int) -> None:
        self.window.first = step

    def _end_step(self) -> None:
        now = time.time_ns()
        self.times.add(self._phase, now - self._began_ns)
        if self._phase is Phase.RECORD:
            self._steps.append(Step(self.step, self._began_ns, now, threading.get_native_id()))

    def _enter(self, phase: Phase) -> None:
        starting = phase in (Phase.WARMUP, Phase.RECORD)
        if starting and self.probes is None:
            self._attach()
        if phase is Phase.RECORD and self._phase is not Phase.RECORD and self.probes is not None:
            self.probes.open()
            self._opened_ns = time.time_ns()
        self._phase = phase

    def _attach(self) -> None:
        """Hook in, and prepare the profiler."""
        full = self._options.detail == "full"
        if full and profiler_running():
            raise GaveUpError("another torch profiler was started inside the loop")
        self.probes = Probes(self._options.detail)
        self.probes.install()
        self._entry_ns = hook_entry_ns() if not self.probes.refused else 0.0
        if not full and self.probes.refused:
            raise GaveUpError(f"light detail needs the collective hook; {self.probes.refused}")
        self._finisher.start()
        if full:
            options = self._options
            self._kineto = KinetoProfiler(self.window, options.with_stack, options.profile_memory)
            self._kineto.start(self.step)

    def _close(self) -> None:
        """The last recorded step is over: detach, and hand all over to the finisher."""
        assert self.probes is not None  # noqa: S101 (steps were recorded)
        self.probes.remove()
        recorder = self.probes.recorder
        costs = self.costs = HookCosts(
            len(recorder.own_ns), typical(recorder.own_ns), self._entry_ns, len(self._steps)
        )
        kineto, self._kineto = self._kineto, None
        span_ns = (self._opened_ns, time.time_ns())
        figures = summary(self.times, costs)
        self._finisher.hand_over(Given(self.probes, kineto, self._steps, span_ns, figures))
