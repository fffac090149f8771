"""Recordings of real jobs, imported and built once, and how well their replays must fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from foretrace.replay.accuracy import Assessment, assess
from foretrace.replay.build import Build, Recording, build_from_arrays, read
from foretrace.traces.importers import import_paths
from foretrace.traces.store import TraceSet

SOURCES = {
    "a800": "megatron-tp2pp2dp2-a800/kineto",
    "tp8": "megatron-tp8-a100/kineto",
    "dlrm": "dlrm-8xv100/dlrm_kineto.tar.gz",
}
START_ERROR_NS = {"a800": 100_000, "tp8": 5_000, "dlrm": 20_000}
"""Median error of the starts of device tasks, at most."""

STEP_ERROR, NULL_ERROR, LATE, EARLY, WAITING = 0.01, 0.0005, 0.02, 0.005, 0.03


@dataclass
class RealSet:
    """One recording.

    Attributes:
        name: key of ``SOURCES``.
        recording: all ranks as arrays.
    """

    name: str
    recording: Recording

    @cached_property
    def build(self) -> Build:
        """Its job graph."""
        return build_from_arrays(self.recording)

    @cached_property
    def assessment(self) -> Assessment:
        """Its replay held against the recording."""
        return assess(self.build)


class RealSets:
    """Imports each recording when it is first asked for."""

    def __init__(self, source: Path, target: Path) -> None:
        self.source, self.target = source, target
        self.get = cache(self._get)

    def _get(self, name: str) -> RealSet:
        path = self.target / f"{name}.trace"
        import_paths([self.source / SOURCES[name]], path, jobs=1)
        return RealSet(name, read(TraceSet.open(path)))


def misfits(name: str, a: Assessment, share: float = 1.0) -> list[str]:
    """Every printed check that an assessment fails, in words.

    Args:
        name: key of ``SOURCES``.
        a: the assessment.
        share: how much of what the bars allow may be used.
    """
    found = []
    for s in a.steps:
        checks = {
            "step error": (abs(s.error), STEP_ERROR),
            "null replay": (abs(s.null_error), NULL_ERROR),
            "unexplained lateness": (s.unexplained, LATE),
            "unexplained earliness": (s.unexplained_early, EARLY),
        }
        found += [f"{what} {v:.4f}" for what, (v, bar) in checks.items() if v > share * bar]
    if a.start_error_ns > share * START_ERROR_NS[name]:
        found.append(f"start error {a.start_error_ns} ns")
    for r in a.ranks:
        if abs(r.replayed_waiting_ns - r.waiting_ns) > share * WAITING * r.waiting_ns:
            found.append(f"rank {r.rank} waits {r.replayed_waiting_ns} for {r.waiting_ns} ns")
    return found
