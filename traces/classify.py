"""Which kernels communicate, through which library, and what they do; driven by a table."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FOLD = str.maketrans("", "", "_- ")


@dataclass(frozen=True, slots=True)
class Classes:
    """What the names say; all of shape ``(names,)``.

    Attributes:
        communicates: whether the kernel is communication.
        library: nccl, rccl, deepep ...; "" for computation.
        kind: one of ``schema.COLLECTIVE_KINDS``; "" for computation.
    """

    communicates: NDArray[np.bool_]
    library: tuple[str, ...]
    kind: tuple[str, ...]


def classify(names: Sequence[str]) -> Classes:
    """Classify device kernels by name. Give distinct names: each is matched on its own.

    Args:
        names: kernel names as the profiler writes them.
    """
    found = [kernel_class(name) for name in names]
    return Classes(
        communicates=np.array([bool(library) for library, _ in found], dtype=np.bool_),
        library=tuple(library for library, _ in found),
        kind=tuple(kind for _, kind in found),
    )


@lru_cache(maxsize=1 << 16)
def kernel_class(name: str) -> tuple[str, str]:
    """(library, collective kind) of one kernel; two empty texts for computation."""
    for pattern, library, kind in _table()[0]:
        if pattern.search(name):
            return library, kind or collective_kind(name) or "unknown"
    return "", ""


@lru_cache(maxsize=1 << 12)
def collective_kind(name: str) -> str:
    """The collective that a word in ``name`` stands for; "" if none does.

    Understands the names of kernels, of ``c10d::`` operators and of profiler metadata, such
    as ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``, ``c10d::_allgather_base_``, ``all_to_allv``.
    """
    folded = name.split("(", 1)[0].lower().translate(_FOLD)
    for pattern, kind in _table()[1]:
        if pattern.search(folded):
            return kind
    return ""


@cache
def _table() -> tuple[list[tuple[re.Pattern[str], str, str]], list[tuple[re.Pattern[str], str]]]:
    text = files("foretrace.traces").joinpath("classify.toml").read_text("utf-8")
    table: dict[str, Any] = tomllib.loads(text)
    kernels = [(re.compile(r["pattern"]), r["library"], r["kind"]) for r in table["kernel"]]
    words = [(re.compile(r["pattern"]), r["kind"]) for r in table["word"]]
    return kernels, words
