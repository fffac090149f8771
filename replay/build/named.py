"""Which names match a pattern: asked of every rank, searched once for all ranks of a job."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.graph import I32


@lru_cache(maxsize=64)
def matching(pattern: re.Pattern[str], names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Whether each name contains the pattern, by number; shape ``(names,)``."""
    return np.array([pattern.search(n) is not None for n in names], bool)


@lru_cache(maxsize=8)
def numbers_behind(prefix: str, names: tuple[str, ...]) -> I32:
    """The decimal number that is all of a name behind a prefix, -1 of other names."""
    size = len(prefix)
    rest = [n[size:] if n.startswith(prefix) else "" for n in names]
    return np.array([int(n) if n.isdigit() else -1 for n in rest], np.int32)
