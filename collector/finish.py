"""What happens to a recording after its last step, on a thread of its own.

Clock samples, export, conversion in another process, and joining the ranks to one set: the
training loop goes on meanwhile.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from foretrace.collector import environment
from foretrace.collector.channel import Channel
from foretrace.collector.clock import Server, host_identity, measure, offset_at
from foretrace.collector.kineto import KinetoProfiler
from foretrace.collector.layout import all_groups, layout_of
from foretrace.collector.options import Options
from foretrace.collector.place import Place, one_line
from foretrace.collector.probes import Probes
from foretrace.collector.spool import (
    KINETO_NAME,
    Group,
    Outcome,
    Recording,
    Sample,
    Step,
    write_recording,
)

_CLOCK_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Given:
    """What the session hands over after the last step."""

    probes: Probes
    kineto: KinetoProfiler | None
    steps: list[Step]
    span_ns: tuple[int, int]
    figures: dict[str, float]


class Finisher:
    """The thread behind one rank's recording.

    Args:
        options: what the user asked for.
        place: which rank this is.

    Attributes:
        handed_over: a recording has been handed over.
        seconds: how long each part took.
        outcome: what the converter said; None while it has said nothing.
        clock_error_ns: half the round trip of the best clock sample, -1 without one.
    """

    def __init__(self, options: Options, place: Place) -> None:
        self.handed_over = False
        self.seconds: dict[str, float] = {}
        self.outcome: Outcome | None = None
        self.clock_error_ns = -1
        self._options = options
        self._place = place
        self._over = threading.Event()
        self._closing = threading.Event()
        self._given: Given | None = None
        self._worker: threading.Thread | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Take the first clock samples, then wait for :meth:`hand_over`."""
        if self._place.channel is not None and self._place.is_reference:
            server = Server(self._place.channel.another(), host_identity())
            self._spawn("foretrace-clock", lambda: server.run(self._closing.is_set))
        self._worker = self._spawn("foretrace-finish", self._run)

    def hand_over(self, given: Given) -> None:
        """The recording is over and nothing of it is attached to torch any more."""
        self._given = given
        self.handed_over = True
        self._over.set()

    def cancel(self) -> None:
        """There will be no recording of this rank; others need not wait for it."""
        self._over.set()
        if self._worker is None:
            self._worker = self._spawn("foretrace-finish", self._run)

    def wait(self, timeout_s: float, others_s: float) -> bool:
        """Wait for this rank's data, and on the reference rank then for all others'.

        Args:
            timeout_s: longest wait for this rank.
            others_s: longest wait for all others.

        Returns:
            Whether all is written.
        """
        assert self._worker is not None  # noqa: S101 (something was handed over)
        self._worker.join(timeout_s)
        if self._worker.is_alive():
            return False
        channel = self._place.channel
        if channel is None or not self._place.is_reference:
            return True
        if channel.wait("index", others_s, pause_s=0.05) is not None:
            return True
        join(self._place, self._options, channel)
        return False

    def close(self) -> None:
        """End all threads: none may reach into torch while the process shuts down."""
        self._over.set()
        self._closing.set()
        for thread in self._threads:
            thread.join(_CLOSE_TIMEOUT_S)

    def _spawn(self, name: str, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._place.guarded(work), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _run(self) -> None:
        line = self._line()
        samples = [] if self._over.is_set() else self._samples(line, "start")
        self._over.wait()
        if self._given is None:
            settle(self._place, self._options, line, wrote=False)
            return
        folder = self._place.raw_folder()
        wrote = False
        try:
            self._write_raw(folder, self._given, line, samples)
            self.outcome = child("rank", str(folder), self._place.target)
            wrote = not self.outcome.error
        finally:
            settle(self._place, self._options, line, wrote)
        if self.outcome.error:
            raise RuntimeError(f"{self.outcome.error}; raw files are kept in {folder}")
        shutil.rmtree(folder, ignore_errors=True)

    def _write_raw(
        self, folder: Path, given: Given, line: Channel | None, samples: list[Sample]
    ) -> None:
        began = time.perf_counter()
        if given.kineto is not None:
            given.kineto.export(folder / KINETO_NAME)
            given.kineto.discard()
            self.seconds["export"] = time.perf_counter() - began
        samples = samples + self._samples(line, "end")
        if samples:
            self.clock_error_ns = min(sample.rtt_ns for sample in samples) // 2
        write_recording(folder, _recording(self._options, self._place, given, samples))

    def _samples(self, line: Channel | None, phase: str) -> list[Sample]:
        if line is None:
            return []
        try:
            return measure(line, host_identity(), phase, _CLOCK_TIMEOUT_S)
        except Exception as error:  # the rank that keeps the store may have died
            self._place.troubles.append(f"no clock samples at the {phase}: {one_line(error)}")
            return []

    def _line(self) -> Channel | None:
        """A connection for this thread, None without a store or where it has gone."""
        try:
            return None if self._place.channel is None else self._place.channel.another()
        except Exception as error:  # as above
            self._place.troubles.append(f"no line to the other ranks: {one_line(error)}")
            return None


def settle(place: Place, options: Options, line: Channel | None, wrote: bool) -> None:
    """This rank is through, with or without data; the last one writes the index.

    Args:
        place: which rank this is.
        options: what the user asked for.
        line: connection of this thread, None for a process on its own.
        wrote: whether the rank's folder is whole.
    """
    if line is None:
        if wrote:
            join(place, options, None)
        return
    try:
        if wrote:
            line.increase("wrote")
        # Others must not wait for a rank that has failed: it counts as well.
        last = line.increase("through") >= line.increase("entered", 0)
        if last or line.take("index") is not None:
            join(place, options, line)
    except Exception as error:  # the store has gone with its rank; the folder is still there
        place.troubles.append(f"no line to the other ranks: {one_line(error)}")
        if wrote:
            join(place, options, None)


def join(place: Place, options: Options, line: Channel | None) -> None:
    """Write the index over all ranks that are there; again if one came meanwhile."""
    job = msgspec.json.encode({"recorded_by": "foretrace.collector"} | options.job()).decode()
    while True:
        before = line.increase("through", 0) if line is not None else 0
        child("join", place.target, job)
        if line is None or line.increase("through", 0) == before:
            break
    if line is not None:
        line.put("index", "1")


def _recording(options: Options, place: Place, given: Given, samples: list[Sample]) -> Recording:
    calls, waits, done, spans = given.probes.rows()
    groups = _all_groups(given.probes.groups())
    name, count = environment.device()
    failures = given.probes.failures
    noted = {"hook_failures": f"{failures}: {given.probes.first_failure}"} if failures else {}
    return Recording(
        rank=place.rank,
        world_size=place.world_size,
        detail=options.detail,
        backend=place.backend,
        start_ns=given.span_ns[0],
        end_ns=given.span_ns[1],
        hook=given.probes.refused,
        host=environment.host_name(),
        device_name=name,
        device_count=count,
        groups=groups,
        steps=given.steps,
        calls=calls,
        waits=waits,
        done=done,
        spans=spans,
        clock_offset_ns=offset_at(samples, sum(given.span_ns) // 2),
        clock_samples=samples,
        versions=environment.versions(),
        environment=environment.settings()
        | environment.processor()
        | environment.topology()
        | noted,
        layout=options.layout or layout_of(groups),
        labels=options.labels,
        overhead=given.figures,
    )


def _all_groups(met: list[Group]) -> list[Group]:
    """Groups that made a call, in the order that rows number them, then all others."""
    names = {group.name for group in met}
    return met + [group for group in all_groups() if group.name not in names]


def child(*arguments: str) -> Outcome:
    """Run the converter in a process of its own and wait for what it says."""
    import foretrace

    home = str(Path(foretrace.__file__).parents[1])
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, "-P", "-m", "foretrace.collector.convert", *arguments]
    done = subprocess.run(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        start_new_session=True,  # an interrupted job must not lose what it has recorded
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    lines = done.stdout.splitlines()
    try:
        return msgspec.json.decode(lines[-1] if lines else b"", type=Outcome)
    except msgspec.DecodeError:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        reason = said[-1] if said else f"exit status {done.returncode}"
        return Outcome(error=f"conversion failed: {reason}")
