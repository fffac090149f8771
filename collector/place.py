"""Which rank this is, where it writes, and how it reaches the other ranks."""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec

from foretrace.collector.channel import Channel, open_channel
from foretrace.collector.environment import own_rank
from foretrace.collector.options import Options
from foretrace.traces.errors import ForetraceError

P = ParamSpec("P")


@dataclass(slots=True)
class Place:
    """One rank of a recording.

    Attributes:
        rank: global rank.
        world_size: ranks of the job.
        backend: the default group's backend.
        reference: the rank whose clock counts and that prints the closing line.
        target: path or URL of the trace set.
        channel: keys shared by all ranks, None for a process on its own.
        troubles: what went wrong on threads of our own.
    """

    rank: int
    world_size: int
    backend: str
    reference: int
    target: str
    channel: Channel | None
    troubles: list[str] = field(default_factory=list)

    @property
    def is_reference(self) -> bool:
        """Whether this is the reference rank."""
        return self.rank == self.reference

    def guarded(self, work: Callable[P, None]) -> Callable[P, None]:
        """``work`` for a thread of its own: an error is kept as a trouble, never raised."""

        @functools.wraps(work)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                work(*args, **kwargs)
            except Exception as error:  # nothing of ours may end up in the training job
                self.troubles.append(one_line(error))

        return run

    def say(self, text: str) -> None:
        """Print one line of our own."""
        sys.stderr.write(f"foretrace: {text}\n")
        sys.stderr.flush()

    def raw_folder(self) -> Path:
        """A new folder for this rank's raw files: in the set if that is local."""
        if "://" in self.target:
            return Path(tempfile.mkdtemp(prefix="foretrace-"))
        folder = Path(self.target) / f".raw-{self.rank:05d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


def find_place(options: Options) -> Place:
    """The place of this process."""
    rank, world_size, backend = own_rank()
    recording = [r for r in sorted(options.ranks or ()) if r < world_size]
    place = Place(
        rank=rank,
        world_size=world_size,
        backend=backend,
        reference=recording[0] if recording else 0,
        target=options.path,
        channel=None,
    )
    try:
        place.channel = open_channel()
    except Exception as error:  # a store of any kind may fail in any way; we can do without
        place.say(f"rank {rank}: no line to the other ranks: {one_line(error)}")
    return place


def make_room(place: Place) -> None:
    """Remove an older recording of the same name, so that no rank of it joins the new one.

    Only the reference rank does so, and only what makes up a trace set.

    Raises:
        ForetraceError: the path holds something else, or cannot be written.
    """
    if "://" in place.target:
        return
    target = Path(place.target)
    try:
        if target.exists():
            if not target.is_dir() or not _is_trace_set(target):
                raise ForetraceError(
                    f"{target}: exists and is no trace set; choose another path for the recording"
                )
            if place.is_reference:
                _clear(target)
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ForetraceError(f"{target}: cannot record there ({error})") from error


def _is_trace_set(target: Path) -> bool:
    known = ("manifest.json", "rank=", ".raw-", ".rank=")
    return all(entry.name.startswith(known) for entry in target.iterdir())


def _clear(target: Path) -> None:
    # The index goes first: without it no reader takes the rest for a whole set.
    (target / "manifest.json").unlink(missing_ok=True)
    for entry in target.iterdir():
        if entry.is_dir() and entry.name.startswith(("rank=", ".raw-", ".rank=")):
            shutil.rmtree(entry, ignore_errors=True)


def one_line(error: BaseException) -> str:
    """An error's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
