"""The rank of a file that does not tell it, from its name."""

from __future__ import annotations

import re

_MARKED = re.compile(r"(?:^|[^a-z])(?:rank|worker|trainer)[_\-.]?(\d{1,6})(?![0-9])", re.IGNORECASE)
_NUMBERED = re.compile(
    r"(?:^|[_\-.])(\d{1,5})(?:\.pt)?(?:\.trace)?\.(?:json|jsonl|et)(?:\.gz)?$", re.IGNORECASE
)


def rank_of_name(path: str) -> int:
    """Rank in a file's name, else in its folder's name; -1 if there is none.

    Understands ``rank3.json``, ``rank_3/host_77.json``, ``rank-34.Jul_15.pt.trace.json``,
    ``worker2_step_12.169.pt.trace.json`` and ``trace_3.json.gz``.
    """
    parts = re.split(r"[/\\:]", path)
    for part in reversed(parts[-2:]):
        match = _MARKED.search(part)
        if match:
            return int(match.group(1))
    match = _NUMBERED.search(parts[-1])
    return int(match.group(1)) if match else -1
