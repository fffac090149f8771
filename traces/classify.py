"""Which kernels communicate, through which library, and what they do; driven by a table.

The table is ``classify.toml``. A table of the user's, in the file that the environment
variable FORETRACE_CLASSES names, is asked first; it is read when names are classified, so it
must be set when traces are imported (``foretrace import --classes`` does that).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.schema import COLLECTIVE_KINDS

_COPY_KERNEL = re.compile(r"^__amd_rocclr_(?:copy|fill)|^Mem(?:cpy|set)\b")
_FOLD = str.maketrans("", "", "_- ")


CLASSES_VARIABLE = "FORETRACE_CLASSES"


@dataclass(frozen=True, slots=True)
class Table:
    """Rules in the order in which they are asked.

    Attributes:
        kernels: (pattern, library, kind) for names of kernels; no library means computation.
        words: (pattern, kind) for folded names.
    """

    kernels: list[tuple[re.Pattern[str], str, str]]
    words: list[tuple[re.Pattern[str], str]]


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


def kernel_class(name: str) -> tuple[str, str]:
    """(library, collective kind) of one kernel; two empty texts for computation."""
    return _kernel_class(name, os.environ.get(CLASSES_VARIABLE, ""))


def collective_kind(name: str) -> str:
    """The collective that a word in ``name`` stands for; "" if none does.

    Understands the names of kernels, of ``c10d::`` operators and of profiler metadata, such
    as ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``, ``c10d::_allgather_base_``, ``all_to_allv``.
    """
    return _collective_kind(name, os.environ.get(CLASSES_VARIABLE, ""))


def work_class(kind: str, name: str) -> str:
    """What a row of events is: ``compute``, ``communication``, ``copy``, ``sync`` or "" for none.

    Annotations of a device and everything on the host are no work.

    Args:
        kind: one of ``schema.EVENT_KINDS``.
        name: name of the row.
    """
    if kind in ("memcpy", "memset"):
        return "copy"
    if kind != "kernel":
        return "sync" if kind == "sync" else ""
    library, _ = kernel_class(name)
    if library:
        return "communication"
    return "copy" if _COPY_KERNEL.search(name) else "compute"


@lru_cache(maxsize=1 << 16)
def _kernel_class(name: str, own: str) -> tuple[str, str]:
    for pattern, library, kind in table(own).kernels:
        if pattern.search(name):
            if not library:
                return "", ""
            return library, kind or _collective_kind(name, own) or "unknown"
    return "", ""


@lru_cache(maxsize=1 << 12)
def _collective_kind(name: str, own: str) -> str:
    folded = name.split("(", 1)[0].lower().translate(_FOLD)
    for pattern, kind in table(own).words:
        if pattern.search(folded):
            return kind
    return ""


@cache
def table(own: str = "") -> Table:
    """The rules, those of the user's file first.

    Args:
        own: path of the user's file; "" for none.

    Raises:
        TraceFormatError: it is not there or not such a table.
    """
    text = files("foretrace.traces").joinpath("classify.toml").read_text("utf-8")
    built_in = _read(text, "classify.toml")
    if not own:
        return built_in
    try:
        mine = _read(Path(own).read_text("utf-8"), own)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceFormatError(
            f"{own}: cannot read the table of kernel classes ({error})"
        ) from None
    return Table(mine.kernels + built_in.kernels, mine.words + built_in.words)


def _read(text: str, path: str) -> Table:
    try:
        rules = tomllib.loads(text)
        unknown = sorted(rules.keys() - {"kernel", "word"})
        if unknown:
            raise TraceFormatError(f"{path}: unknown [{unknown[0]}]; expected [[kernel]], [[word]]")
        kernels = [
            (_pattern(r, path, library=True), r["library"], _kind(r, path, empty=True))
            for r in rules.get("kernel", [])
        ]
        words = [(_pattern(r, path), _kind(r, path)) for r in rules.get("word", [])]
    except tomllib.TOMLDecodeError as error:
        raise TraceFormatError(f"{path}: not a TOML table ({error})") from None
    return Table(kernels, words)


def _pattern(rule: Any, path: str, library: bool = False) -> re.Pattern[str]:
    wanted = {"pattern", "kind"} | ({"library"} if library else set())
    if not isinstance(rule, dict) or rule.keys() != wanted:
        raise TraceFormatError(
            f"{path}: a rule is {rule}; it must have {', '.join(sorted(wanted))}"
        )
    if not all(isinstance(v, str) for v in rule.values()):
        raise TraceFormatError(f"{path}: a rule is {rule}; its values must be texts")
    try:
        return re.compile(rule["pattern"])
    except re.error as error:
        raise TraceFormatError(
            f"{path}: pattern {rule['pattern']!r} is no regular expression ({error})"
        ) from None


def _kind(rule: dict[str, str], path: str, empty: bool = False) -> str:
    kind = rule["kind"]
    if kind not in COLLECTIVE_KINDS and not (empty and not kind):
        known = ", ".join(COLLECTIVE_KINDS)
        raise TraceFormatError(f"{path}: unknown kind {kind!r}; expected one of {known}")
    return kind
