"""Measured collectives: nccl-tests logs as they are, and CSV tables."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.costs.collectives.cost import Collectives
from foretrace.replay.costs.collectives.shapes import kind_code
from foretrace.traces.errors import LayoutError, TraceFormatError

HARNESS_US = 2.4
"""One process that drives several GPUs adds this for each further one (fits on public logs of
both kinds); it is not the library's time and is subtracted."""

_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s+.*?Pid\s+(\d+)\s+on\s+(\S+)\s+device", re.I)
_KINDS = "all_?reduce|all_?gather|reduce_?scatter|broadcast|reduce|all_?to_?all|sendrecv"
_TEST = re.compile(rf"\b({_KINDS})_perf")
_FILE = re.compile(rf"(?<![a-z])({_KINDS})", re.I)
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)")
_NAMES = {
    "collective": ("collective", "kind"),
    "size_bytes": ("size_bytes", "bytes", "size"),
    "ranks": ("ranks", "n_gpus", "gpus", "n_ranks"),
    "nodes": ("nodes",),
    "time_us": ("time_us",),
}


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measured operations.

    Attributes:
        ops: what ran.
        time_us: how long, the harness's own time taken off; shape ``(rows,)``.
        source: where from.
    """

    ops: Collectives
    time_us: NDArray[np.float64]
    source: str


def read_measurements(
    path: str | Path, collective: str | None = None, machine: str | None = None
) -> Measurements:
    """Read one file, by its form.

    Args:
        path: an nccl-tests log, or a CSV with ``collective, size_bytes, ranks, nodes, time_us``
            (``gpus`` or ``n_gpus`` do for ``ranks``).
        collective: what an nccl-tests log measured, where it does not say so itself.
        machine: only these rows of a CSV that has a column ``machine``.

    Raises:
        TraceFormatError: neither form, or nothing usable in it.
    """
    try:
        text = Path(path).read_text("utf-8", errors="replace")
    except OSError as error:
        raise TraceFormatError(f"{path}: cannot be read: {error.strerror}") from error
    if any(_ROW.match(line) for line in text.splitlines()):
        return _read_log(text, str(path), collective)
    return _read_csv(text, str(path), machine)


def join(parts: Sequence[Measurements]) -> Measurements:
    """Several files as one."""
    columns = Collectives.__slots__
    ops = Collectives(*(np.concatenate([getattr(p.ops, c) for p in parts]) for c in columns))
    time_us = np.concatenate([p.time_us for p in parts])
    return Measurements(ops, time_us, ", ".join(p.source for p in parts))


def _read_log(text: str, where: str, collective: str | None) -> Measurements:
    found = [m.groups() for m in map(_RANK.match, text.splitlines()) if m]
    if len(found) < 2:
        raise TraceFormatError(
            f"{where}: an nccl-tests log without its '# Rank ... on HOST device ...' lines: "
            "keep the head of the output, it says how many GPUs and hosts ran"
        )
    ranks = len({rank for rank, _, _ in found})
    nodes = len({host for _, _, host in found})
    processes = len({(pid, host) for _, pid, host in found})
    rows = [m.groups() for m in map(_ROW.match, text.splitlines()) if m]
    name = collective or _named(text, where) or _by_bus(rows, ranks)
    if name is None:
        raise TraceFormatError(
            f"{where}: does not say which collective it measured; give --collective"
        )
    size = np.array([float(row[0]) for row in rows])
    took = np.array([float(row[5]) for row in rows]) - HARNESS_US * (ranks / processes - 1)
    good = (size > 0) & (took > 0)
    ops = Collectives.of(kind_code(name), size[good], ranks, nodes)
    return Measurements(ops, took[good], where)


def _named(text: str, where: str) -> str | None:
    """What newer versions print in the head, else what the file is called."""
    found = _TEST.search(text) or _FILE.search(Path(where).name)
    return found[1] if found else None


def _by_bus(rows: list[tuple[str, ...]], ranks: int) -> str | None:
    """An all-reduce is known by its bus bandwidth; the others share theirs."""
    algbw, busbw = (np.array([float(row[i]) for row in rows]) for i in (6, 7))
    sure = algbw > 1
    if ranks > 2 and sure.any():
        factor = float(np.median(busbw[sure] / algbw[sure]))
        if abs(factor / (2 * (ranks - 1) / ranks) - 1) < 0.02:
            return "all_reduce"
    return None


def _read_csv(text: str, where: str, machine: str | None) -> Measurements:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    table = list(csv.DictReader(lines))
    if not table:
        raise TraceFormatError(f"{where}: neither an nccl-tests log nor a CSV table with rows")
    names = {key: _column(table[0], key, where) for key in _NAMES}
    if machine is not None:
        table = [row for row in table if row.get("machine") == machine]
        if not table:
            raise TraceFormatError(f"{where}: no row has machine {machine!r}")
    kinds = _values(table, names["collective"], kind_code, where)
    size, ranks, nodes, took = (
        np.array(_values(table, names[key], float, where))
        for key in ("size_bytes", "ranks", "nodes", "time_us")
    )
    return Measurements(Collectives.of(kinds, size, ranks, nodes), took, where)


def _column(row: dict[str, str], key: str, where: str) -> str:
    for name in _NAMES[key]:
        if name in row:
            return name
    raise TraceFormatError(
        f"{where}: expected a column {' or '.join(_NAMES[key])}, found {', '.join(row)}"
    )


_T = TypeVar("_T")


def _values(
    table: list[dict[str, str]], name: str, read: Callable[[str], _T], where: str
) -> list[_T]:
    out = []
    for number, row in enumerate(table):
        try:
            out.append(read(row[name]))
        except (ValueError, TypeError, LayoutError) as error:
            raise TraceFormatError(
                f"{where}: row {number + 1}, column {name}: {row[name]!r} cannot be read: {error}"
            ) from error
    return out
