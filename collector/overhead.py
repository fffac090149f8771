"""What a recording costs the job that is recorded, measured while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from foretrace.collector.hook import release
from foretrace.collector.window import Phase

_LEAST_STEPS = 2
_MOST_STEPS = 4096


@dataclass(slots=True)
class StepTimes:
    """Durations of the loop's steps by what was going on in them, ns.

    Attributes:
        recorded: steps that were recorded.
        bare: steps in which nothing of ours ran; the very first step is no such step, since
            libraries load and memory is first touched in it.
    """

    recorded: list[int] = field(default_factory=list)
    bare: list[int] = field(default_factory=list)
    _seen: int = 0

    def add(self, phase: Phase, ns: int) -> None:
        """Take down a step that took ``ns`` in ``phase``."""
        self._seen += 1
        if phase is Phase.RECORD:
            self.recorded.append(ns)
        elif phase is not Phase.WARMUP and self._seen > 1 and len(self.bare) < _MOST_STEPS:
            self.bare.append(ns)

    @property
    def typical_s(self) -> float:
        """Typical step time so far in seconds, 0 before the second step."""
        times = self.bare or self.recorded
        return median(times[-16:]) / 1e9 if times else 0.0


@dataclass(frozen=True, slots=True)
class HookCosts:
    """What the hooks cost over the recorded steps.

    Attributes:
        calls: communication calls seen.
        inside_ns: typical time inside the hooks for one call: the median, since a call in
            which the system took the processor away says nothing about the hooks.
        entry_ns: time to get into and out of one hook, measured once on this machine.
        steps: recorded steps.
    """

    calls: int
    inside_ns: float
    entry_ns: float
    steps: int

    @property
    def step_ms(self) -> float:
        """Cost per recorded step, ms."""
        return self.calls * (self.inside_ns + self.entry_ns) / max(self.steps, 1) / 1e6


def typical(times_ns: list[int]) -> float:
    """Median of measured times, 0 for none."""
    return float(median(times_ns)) if times_ns else 0.0


def summary(times: StepTimes, hooks: HookCosts) -> dict[str, float]:
    """Figures for the manifest: ms per step, and shares where there is something to divide by."""
    found = {
        "hook_calls_per_step": hooks.calls / max(hooks.steps, 1),
        "hook_step_ms": hooks.step_ms,
        "hook_call_us": (hooks.inside_ns + hooks.entry_ns) / 1e3,
    }
    if times.recorded:
        found["recorded_step_ms"] = median(times.recorded) / 1e6
    if len(times.bare) >= _LEAST_STEPS:
        found["bare_step_ms"] = median(times.bare) / 1e6
    return found


def in_words(figures: dict[str, float]) -> str:
    """The figures of :func:`summary` as part of a line."""
    hook = figures["hook_step_ms"]
    recorded, bare = figures.get("recorded_step_ms"), figures.get("bare_step_ms")
    hooks = f"hooks {hook:.2f} ms"
    if recorded:
        hooks += f" ({hook / recorded:.1%})"
    hooks += f" for {figures['hook_calls_per_step']:.0f} calls a step"
    if recorded is None:
        return hooks
    if bare is None:
        return f"step {recorded:.1f} ms recorded (no unrecorded steps to compare with), {hooks}"
    added = recorded - bare
    return (
        f"step {recorded:.1f} ms recorded, {bare:.1f} ms not: "
        f"{added:+.1f} ms ({added / bare:+.1%}), of it {hooks}"
    )


def hook_entry_ns(rounds: int = 100) -> float:
    """Time to get into a Python kernel and out again, ns: what a hook cannot see of itself.

    Measured on an operator of our own with and without such a kernel, at the same dispatch
    key and with the same way on as the real hook has.
    """
    import torch

    library = torch.library.Library("foretrace_probe", "DEF")
    try:
        library.define("probe(Tensor[] tensors, bool flag) -> Tensor[]")
        library.impl("probe", lambda tensors, flag: tensors, "CPU")
        overload = torch.ops.foretrace_probe.probe.default
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        given = [torch.empty(1)]
        bare = _fastest_ns(overload, given, rounds)
        library.impl(
            "probe",
            lambda keyset, tensors, flag: overload.redispatch(keyset & below, tensors, flag),
            "BackendSelect",
            with_keyset=True,
        )
        return max(0.0, _fastest_ns(overload, given, rounds) - bare)
    finally:
        release(library)


def _fastest_ns(call: Callable[..., object], given: list[object], rounds: int) -> float:
    batches = []
    for _ in range(5):
        began = time.perf_counter_ns()
        for _ in range(rounds // 5):
            call(given, True)
        batches.append((time.perf_counter_ns() - began) / (rounds // 5))
    return min(batches)
