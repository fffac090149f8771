"""One rank's device kernels with what decides their cost: launch shape and operand shapes.

A kernel's operator is the innermost host operator *with input shapes* that was running when
the kernel was launched: kernel to launch by correlation, launch to operator by time on its
thread. Where the launch was not recorded the external id joins them. Recorded backward
operators carry shapes of their own, so nothing is guessed from the forward pass.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace.replay.graph import I8, I32, I64
from foretrace.traces.classify import classify
from foretrace.traces.coded import Coded
from foretrace.traces.enclosing import enclosing_rows

if TYPE_CHECKING:  # a prediction without a trace reads no tables
    import pyarrow as pa

    from foretrace.traces.store import TraceSet

_COLUMNS = (
    "kind", "name", "start_ns", "dur_ns", "thread", "stream", "correlation", "external_id",
    "shapes", "dtypes", "inputs", "grid", "block",
)  # fmt: skip
_UNTOLD = ("record_param_comms",)  # an operator around a call that says nothing about compute


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Kernels of one rank by start; arrays of shape ``(kernels,)``.

    Attributes:
        event: row of the events table.
        name: kernel name.
        start_ns: start.
        end_ns: end.
        stream: device stream.
        blocks: thread blocks of the grid, 0 unknown.
        threads: threads of a block, 0 unknown.
        communicates: whether it is a communication kernel.
        operator: name of the launching operator, "" unknown.
        shapes: its input shapes as recorded, "" unknown.
        dtypes: its input types as recorded.
        inputs: its concrete inputs as recorded.
    """

    event: I64
    name: Coded
    start_ns: I64
    end_ns: I64
    stream: I64
    blocks: I64
    threads: I64
    communicates: np.ndarray
    operator: Coded
    shapes: Coded
    dtypes: Coded
    inputs: Coded

    @property
    def dur_ns(self) -> I64:
        """Duration of each kernel."""
        return self.end_ns - self.start_ns

    def identity(self) -> I64:
        """Number of each kernel's identity: name, blocks, threads and operand shapes."""
        columns = (
            self.name.codes, self.blocks, self.threads, self.operator.codes, self.shapes.codes,
        )  # fmt: skip
        stacked = np.stack([np.asarray(c, np.int64) for c in columns], axis=1)
        return np.unique(stacked, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def read_kernels(trace: TraceSet, rank: int) -> KernelTable:
    """Kernels of one rank.

    Args:
        trace: an open trace set.
        rank: which rank.
    """
    table = trace.events(rank, columns=list(_COLUMNS))
    kinds = _coded(table, "kind")
    names = _coded(table, "name")
    start = table["start_ns"].to_numpy()
    end = start + table["dur_ns"].to_numpy()
    rows = np.flatnonzero(kinds.marked(lambda kind: kind == "kernel"))
    operator = _operators(table, rows, (start, end))
    grid, block = _coded(table, "grid")[rows], _coded(table, "block")[rows]
    mine = names[rows]
    return KernelTable(
        event=rows,
        name=mine,
        start_ns=start[rows],
        end_ns=end[rows],
        stream=table["stream"].to_numpy()[rows],
        blocks=_volumes(grid),
        threads=_volumes(block),
        communicates=classify(mine.values).communicates[mine.codes],
        operator=_of_operator(names, operator),
        shapes=_of_operator(_coded(table, "shapes"), operator),
        dtypes=_of_operator(_coded(table, "dtypes"), operator),
        inputs=_of_operator(_coded(table, "inputs"), operator),
    )


def _operators(table: pa.Table, kernels: I64, span: tuple[I64, I64]) -> I64:
    """Row of the launching operator with shapes of each kernel, -1 for none."""
    start, end = span
    thread = table["thread"].to_numpy()
    correlation = table["correlation"].to_numpy()
    kinds, shapes = _coded(table, "kind"), _coded(table, "shapes")
    told = ~_coded(table, "name").marked(lambda name: name in _UNTOLD)
    host = kinds.marked(lambda kind: kind == "host_op") & told
    rows = np.flatnonzero(host & shapes.marked(bool))
    calls = np.flatnonzero(kinds.marked(lambda kind: kind == "runtime") & (correlation > 0))
    launch = _row_of(correlation[calls], calls, correlation[kernels])
    found = np.full(len(kernels), -1, np.int64)
    known = launch >= 0
    at = launch[known]
    found[known] = enclosing_rows(rows, (start, end, thread), (start[at], thread[at]))
    lost = found < 0
    external = table["external_id"].to_numpy()
    mine = rows[external[rows] > 0]
    found[lost] = _row_of(external[mine], mine, external[kernels][lost])
    return found


def _row_of(keys: I64, rows: I64, asked: I64) -> I64:
    """The row whose key is asked for, -1 for none; the first of several."""
    if not len(keys):
        return np.full(len(asked), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], asked), len(keys) - 1)
    return np.where(keys[order][at] == asked, rows[order][at], -1)


def _coded(table: pa.Table, column: str) -> Coded:
    from foretrace.replay.build.columns import dictionary

    codes, words = dictionary(table[column])
    return Coded(codes, words or [""])


def _of_operator(column: Coded, operator: I64) -> Coded:
    """The column's text of each kernel's operator; "" where there is none."""
    values = [*column.values, ""]
    codes = np.where(operator >= 0, column.codes[np.maximum(operator, 0)], len(values) - 1)
    return Coded(codes.astype(np.int32), values)


def _volumes(column: Coded) -> I64:
    sizes = np.array([_volume(text) for text in column.values] or [0], np.int64)
    return sizes[column.codes]


def _volume(text: str) -> int:
    sides = parse_list(text)
    return int(np.prod([int(s) for s in sides])) if sides else 0


@lru_cache(maxsize=1 << 16)
def parse_list(text: str) -> list[Any]:
    """A recorded JSON list; [] where there is none or it is cut."""
    try:
        value = json.loads(text) if text else []
    except json.JSONDecodeError:
        return []
    return value if isinstance(value, list) else []


__all__ = ["I8", "I32", "KernelTable", "parse_list", "read_kernels"]
