"""Which rows of the profiler's events belong to the calls and waits that the hooks saw.

Everything is matched within one rank and, on the host, within one thread; both sides are in
order of time there. The profiler's clock and the hook's agree to microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

SLACK_NS = 50_000
"""How far the two clocks may be apart."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of the sorted events that matching reads; each of shape ``(events,)``.

    Attributes:
        names: distinct names.
        code: index into ``names``.
        host: whether it is a host operator or annotation.
        operators: rows that are host operators.
        start_ns: start.
        end_ns: end.
        thread: host thread.
    """

    names: list[str]
    code: NDArray[np.int32]
    host: Mask
    operators: I64
    start_ns: I64
    end_ns: I64
    thread: I64

    @classmethod
    def of(cls, events: pa.Table) -> Rows:
        """The columns of an events table."""
        names, code = _codes(events, "name")
        kinds, kind = _codes(events, "kind")
        start = _ints(events, "start_ns")
        wanted = [i for i, k in enumerate(kinds) if k in ("host_op", "annotation")]
        return cls(
            names=names,
            code=code,
            host=np.isin(kind, wanted),
            operators=np.flatnonzero(kind == kinds.index("host_op"))
            if "host_op" in kinds
            else np.zeros(0, np.int64),
            start_ns=start,
            end_ns=start + _ints(events, "dur_ns"),
            thread=_ints(events, "thread"),
        )

    def named(self, *names: str, prefix: str = "") -> I64:
        """Host rows with one of ``names``, or whose name begins with ``prefix``."""
        wanted = np.array(
            [n in names or bool(prefix and n.startswith(prefix)) for n in self.names], np.bool_
        )
        if not wanted.any():
            return np.zeros(0, np.int64)
        return np.flatnonzero(wanted[self.code] & self.host)


def _codes(events: pa.Table, column: str) -> tuple[list[str], NDArray[np.int32]]:
    array = events.column(column).combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    codes = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return array.dictionary.to_pylist(), codes


def _ints(events: pa.Table, column: str) -> I64:
    values: Any = events.column(column).to_numpy()
    return np.ascontiguousarray(values, np.int64)


def rows_of_spans(rows: Rows, candidates: I64, thread: I64, start_ns: I64) -> I64:
    """For each span the hook saw, the candidate row that it lies in.

    Args:
        rows: the events.
        candidates: rows that may be meant, ascending.
        thread: thread of each span, shape ``(spans,)``.
        start_ns: start of each span.

    Returns:
        A row for each span, -1 for none; no row is given twice.
    """
    found = np.full(len(thread), -1, np.int64)
    for lane in np.unique(thread):
        here = candidates[rows.thread[candidates] == lane]
        mine = np.flatnonzero(thread == lane)
        mine = mine[np.argsort(start_ns[mine], kind="stable")]
        found[mine] = _in_order(rows, here, start_ns[mine])
    return found


def _in_order(rows: Rows, here: I64, start_ns: I64) -> I64:
    """Rows of one thread for spans in order of time."""
    if len(here) == len(start_ns):
        apart = np.abs(start_ns - rows.start_ns[here])
        if not len(here) or np.median(apart) < SLACK_NS:
            return here
    at = np.searchsorted(rows.start_ns[here], start_ns + SLACK_NS // 10, side="right") - 1
    inside = (at >= 0) & (len(here) > 0)
    inside[inside] = start_ns[inside] <= rows.end_ns[here[at[inside]]] + SLACK_NS
    first = np.zeros(len(at), np.bool_)
    first[np.unique(at, return_index=True)[1]] = True
    hit = inside & first
    found = np.full(len(at), -1, np.int64)
    found[hit] = here[at[hit]]
    return found


def rows_inside(rows: Rows, inner: I64, outer: I64) -> I64:
    """For each of ``outer`` the first of ``inner`` that starts within it on its thread; -1: none.

    ``outer`` may hold -1, which has nothing inside.
    """
    found = np.full(len(outer), -1, np.int64)
    for i, row in enumerate(outer.tolist()):
        if row >= 0:
            low, high = np.searchsorted(
                rows.start_ns[inner], (rows.start_ns[row], rows.end_ns[row]), side="left"
            )
            same = inner[low:high][rows.thread[inner[low:high]] == rows.thread[row]]
            found[i] = same[0] if len(same) else -1
    return found


def gloo_work_rows(
    rows: Rows, work: I64, call: I64, kind: NDArray[np.int64], group: NDArray[np.int64]
) -> I64:
    """The execution of each gloo collective: first issued, first run, within one group.

    gloo runs the collectives of one group on threads of that group alone. Which group a
    thread serves is found first from all calls of a kind, then used to match again.

    Args:
        rows: the events.
        work: annotation rows of collectives (no p2p), ascending.
        call: row of each call, -1 unknown, in issue order; shape ``(calls,)``.
        kind: for each call, the code in ``rows.names`` of its annotation; -1 for none.
        group: group of each call.

    Returns:
        A row of ``work`` for each call, -1 for none.
    """
    any_group = np.zeros(len(call), np.int64), np.zeros(len(work), np.int64)
    first = _first_in_first_out(rows, work, call, kind, any_group)
    home: dict[int, int] = {}
    known = np.flatnonzero(first >= 0)
    for thread in np.unique(rows.thread[first[known]]):
        groups = group[known[rows.thread[first[known]] == thread]]
        home[int(thread)] = int(np.bincount(groups).argmax())
    of_work = np.array([home.get(int(t), -1) for t in rows.thread[work]], np.int64)
    return _first_in_first_out(rows, work, call, kind, (group, of_work))


def _first_in_first_out(
    rows: Rows,
    work: I64,
    call: I64,
    kind: NDArray[np.int64],
    groups: tuple[I64, I64],
) -> I64:
    """As :func:`gloo_work_rows`, with the ``groups`` of the calls and of the work rows given."""
    group, work_group = groups
    waiting: dict[tuple[int, int], list[int]] = {}
    for i in np.flatnonzero((call >= 0) & (kind >= 0)).tolist():
        waiting.setdefault((int(kind[i]), int(group[i])), []).append(i)
    found = np.full(len(call), -1, np.int64)
    served: dict[tuple[int, int], int] = {}
    for row, owner in zip(work.tolist(), work_group.tolist(), strict=True):
        key = (int(rows.code[row]), owner)
        queue, at = waiting.get(key, []), served.get(key, 0)
        # A work that starts before the next call belongs to a call before the recording.
        if at < len(queue) and rows.start_ns[call[queue[at]]] <= rows.start_ns[row]:
            found[queue[at]] = row
            served[key] = at + 1
    return found
