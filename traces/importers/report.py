"""What came of an import."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass, field

from foretrace.traces.manifest import Dropped


@dataclass(frozen=True, slots=True)
class FileReport:
    """What came of one file.

    Attributes:
        source: file, or archive and member.
        rank: its rank.
        rank_from: where the rank was found.
        world_size: ranks of the job as the file says; 0 unknown.
        events: rows of the events table.
        bytes: uncompressed bytes.
        checksum: CRC-32 of the uncompressed bytes.
        dropped: what was left out.
        peak_rss_bytes: largest memory of the process that read it.
        format: name of the file's format.
        folder: where its tables lie inside the trace set meanwhile; "" for their final place.
    """

    source: str
    rank: int
    rank_from: str
    world_size: int
    events: int
    bytes: int
    checksum: int
    dropped: tuple[Dropped, ...]
    peak_rss_bytes: int
    format: str = ""
    folder: str = ""


@dataclass(slots=True)
class ImportReport:
    """What came of an import.

    Attributes:
        path: the trace set.
        files: one report per imported rank, by rank.
        notes: one line for everything worth knowing that is no error.
        seconds: wall time.
    """

    path: str
    files: list[FileReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ranks(self) -> list[int]:
        """Imported ranks, ascending."""
        return [f.rank for f in self.files]

    @property
    def events(self) -> int:
        """Rows of all events tables."""
        return sum(f.events for f in self.files)

    @property
    def bytes(self) -> int:
        """Uncompressed bytes of all files; one that holds several ranks counts once."""
        return sum({f.source: f.bytes for f in self.files}.values())

    @property
    def peak_rss_bytes(self) -> int:
        """Largest memory of any process that took part."""
        return max([peak_rss_bytes(), *(f.peak_rss_bytes for f in self.files)])


def peak_rss_bytes() -> int:
    """Largest memory this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
