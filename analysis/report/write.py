"""From a trace set to an HTML file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretrace.analysis.causes.wording import ms as duration
from foretrace.analysis.causes.wording import short_name, size_text
from foretrace.analysis.report.content import Content, gather
from foretrace.analysis.run import Run, load_run


def write_report(
    trace_set: str | os.PathLike[str],
    out: str | os.PathLike[str],
    ranks: Sequence[int] | None = None,
) -> Path:
    """Analyse a trace set and write the report.

    Args:
        trace_set: folder or fsspec URL of the trace set.
        out: HTML file to write; it appears whole or not at all.
        ranks: only these ranks; all by default.

    Returns:
        The file written.

    Raises:
        ForetraceError: the trace set cannot be read or replayed.
        OSError: the file cannot be written.
    """
    html = render_report(load_run(trace_set, ranks))
    target = Path(out)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(html)
        Path(name).chmod(0o644)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target


def render_report(run: Run) -> str:
    """The report of a run as one HTML document without any reference to the network."""
    return _render(gather(run))


def _render(content: Content) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("foretrace.analysis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        ms=_ms,
        duration=duration,
        percent=_percent,
        signed=_signed,
        count=_count,
        rate=_rate,
        size=size_text,
        short=short_name,
    )
    page: str = environment.get_template("report.html").render(c=content)
    return page


def _ms(time_ns: float) -> str:
    """Milliseconds for a column: as many digits as its size deserves."""
    value = time_ns / 1e6
    digits = 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}" if value else "0"


def _percent(share: float) -> str:
    return "0 %" if share == 0 else "<0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def _signed(share: float) -> str:
    text = f"{100 * share:+.2f} %"
    return "0.00 %" if text[1:] == "0.00 %" else text.replace("-", "−")


def _rate(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.01 else "<0.01"


def _count(value: Any) -> str:
    return f"{value:,}"
