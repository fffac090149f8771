"""The one line that the reference rank prints when all is written."""

from __future__ import annotations

from foretrace.collector.finish import Finisher
from foretrace.collector.overhead import in_words, summary
from foretrace.collector.place import Place
from foretrace.collector.session import Session


def closing_line(session: Session, finisher: Finisher, place: Place, finished: bool) -> str:
    """What was recorded, where it is, what it cost, and what to know about it."""
    parts = [f"{place.target}: {_ranks(place)}, {session.window.recorded}"]
    if session.costs is not None:
        parts.append(in_words(summary(session.times, session.costs)))
    if finisher.clock_error_ns >= 0:
        parts.append(f"clocks within {finisher.clock_error_ns / 1e3:.0f} us")
    parts.append(_aside(session, finisher))
    probes = session.probes
    if probes is not None and probes.refused:
        parts.append(f"no collective hook ({probes.refused}): sizes are the profiler's own")
    if probes is not None and probes.failures:
        parts.append(f"{probes.failures} calls not taken down ({probes.first_failure})")
    if not finished:
        parts.append("some ranks are missing or still being written")
    return "; ".join(parts)


def _ranks(place: Place) -> str:
    if place.channel is None:
        return f"rank {place.rank}"
    wrote, entered = place.channel.increase("wrote", 0), place.channel.increase("entered", 0)
    return f"{wrote} of {entered} ranks"


def _aside(session: Session, finisher: Finisher) -> str:
    """Time spent once, after the recorded steps."""
    texts = [f"stopped in {session.stop_s:.2f} s"] if session.stop_s else []
    if "export" in finisher.seconds:
        texts.append(f"exported in {finisher.seconds['export']:.2f} s")
    if finisher.outcome is not None:
        texts.append(f"converted in {finisher.outcome.seconds:.1f} s (another process)")
    return ", ".join(texts)
