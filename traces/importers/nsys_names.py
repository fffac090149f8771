"""What the names in an Nsight Systems export say: steps, and PyTorch's operators."""

from __future__ import annotations

import re

_MARKS = (
    re.compile(r"ProfilerStep#(\d+)$"),
    re.compile(
        r"(?:train(?:ing)?|global|optimi[sz]er)?[ _\-/]*(?:step|iter|iteration)[ _\-:=#]*(\d+)$",
        re.I,
    ),
    re.compile(r"(?:train(?:ing)?)?[ _\-/]*(?:mini)?batch[ _\-:=#]*(\d+)$", re.I),
)
"""Names of step marks, those preferred first; the group is the number."""

_OPERATOR = re.compile(r"(?P<name>[^,]+?)(?:, seq = (?P<seq>\d+))?, op_id = \d+")
_SIZES = re.compile(r", sizes = (\[.*\])")


def mark_style(name: str) -> tuple[int, int]:
    """(style, number) of a name that looks like a step mark; (-1, -1) of any other."""
    for style, pattern in enumerate(_MARKS):
        match = pattern.match(name)
        if match and len(match.group(1)) < 10:
            return style, int(match.group(1))
    return -1, -1


def operator_of(name: str) -> tuple[str, int, str] | None:
    """(operator, sequence number or -1, shapes) of a range that ``emit_nvtx`` of PyTorch made.

    They read ``aten::addmm, seq = 12, op_id = 40, sizes = [[8], [4, 2]]``.
    """
    match = _OPERATOR.match(name)
    if not match:
        return None
    sizes = _SIZES.search(name)
    shapes = sizes.group(1).replace(", ", ",") if sizes else ""
    return match["name"], int(match["seq"] or -1), shapes
