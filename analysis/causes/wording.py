"""How causes speak of times and ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.causes.case import Case
from foretrace.analysis.groups import ranks_text
from foretrace.replay.graph import I64

_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def ms(time_ns: float) -> str:
    """A time for people: three digits and the unit that suits, such as ``12.3 ms``."""
    unit, scale = next((u for u in _UNITS if abs(time_ns) >= u[1]), _UNITS[-1])
    value = time_ns / scale
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"


def size_text(size_bytes: float) -> str:
    """A size for people, such as ``64 MiB`` or ``512 B``."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g} {unit}"
    return f"{size_bytes:.0f} B"


def by_rank(case: Case, tasks: I64, least: float = 0.1) -> tuple[tuple[int, ...], list[float]]:
    """Ranks by what these tasks take on them, most first, ns per step.

    Args:
        case: the job.
        tasks: shape ``(k,)``.
        least: ranks below this share of the first rank's are left out.
    """
    return _most_first(case, tasks, case.graph.dur_ns[tasks] / case.steps, least)


def by_path(case: Case, tasks: I64, least: float = 0.1) -> tuple[tuple[int, ...], list[float]]:
    """Ranks by what these tasks take on the critical path, see :func:`by_rank`."""
    return _most_first(case, tasks, case.path_ns[tasks], least)


def _most_first(
    case: Case, tasks: I64, amount: NDArray[np.float64], least: float
) -> tuple[tuple[int, ...], list[float]]:
    total = np.bincount(case.graph.rank[tasks], weights=amount)
    order = np.argsort(-total, kind="stable")
    bar = least * total[order[0]]
    kept = [int(r) for r in order if total[r] >= bar and r in case.graph.rank[tasks]]
    return tuple(kept), [float(total[r]) for r in kept]


def named_ranks(ranks: tuple[int, ...]) -> str:
    """Such as ``rank 3`` or ``8 ranks (0-7)``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"{len(ranks)} ranks ({ranks_text(sorted(ranks))})"


def short_name(name: str, limit: int = 60) -> str:
    """A kernel's name without return type, namespaces of no interest and parameters.

    Args:
        name: as the profiler wrote it.
        limit: longest result, characters.
    """
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    text = text.replace("at::native::", "")
    depth = 0
    kept: list[str] = []
    for char in text:
        if char == "(" and depth == 0 and kept and kept[-1] != " ":
            break  # its parameters; "Memcpy HtoD (Pageable -> Device)" has none
        depth += {"<": 1, ">": -1}.get(char, 0)
        kept.append(char)
    text = "".join(kept) or name
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
