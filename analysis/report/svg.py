"""Matplotlib figures as inline SVG that takes the page's colours and fonts."""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INK = "#123456"  # stands for the page's own text colour
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_IDENTITY = re.compile(r'(\bid="|href="#|url\(#)')
_NAMESPACES = re.compile(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"')

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "foretrace",  # the same figure gets the same ids each time
}


def page_style() -> AbstractContextManager[None]:
    """Matplotlib settings under which figures for the page are made."""
    import matplotlib as mpl

    settings: Any = _STYLE
    return mpl.rc_context(settings)


def inline_svg(figure: Figure, label: str, prefix: str) -> str:
    """A figure as an ``<svg>`` element.

    Args:
        figure: made under :func:`page_style`, which still holds.
        label: what the figure shows, for readers who cannot see it.
        prefix: begin of every id inside, so that figures of one page do not clash.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = _METADATA.sub("", text[text.index("<svg") :])
    head, _, rest = text.partition(">")
    head = re.sub(r' (?:width|height)="[^"]*"', "", _NAMESPACES.sub("", head))
    name = label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    text = f'{head} role="img" aria-label="{name}">{_NAMESPACES.sub("", rest)}'
    text = _IDENTITY.sub(rf"\g<1>{prefix}-", text)
    return text.replace(_INK, "currentColor")
