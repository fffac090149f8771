"""Faults of what was measured: found by evidence, mended where that is sure, always counted.

Profilers write kernels that last for hours because a counter ran over, kernels that happened
at time 0, and the same record twice. Each of these would pass for a fact in every later sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.traces.classify import kernel_class
from foretrace.traces.coded import Coded
from foretrace.traces.importers.columns import TOO_LONG
from foretrace.traces.salvage import Losses
from foretrace.traces.steps import launch_rows

I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

FAR_NS = 3_600_000_000_000
"""Further apart than a profiler window can be long: an hour."""
_EARLY_NS = 1_000  # the oldest traces know no finer time
_TIMES_TYPICAL = 10
_LEAST_LIKE_IT = 3


def usable_rows(columns: dict[str, Any], losses: Losses) -> Mask:
    """Rows that have a time of their own: not at 0 while all others lie far away, no copies.

    Args:
        columns: raw columns by key of the file, sorted by start.
        losses: takes note of the others.
    """
    start = columns["start_ns"]
    keep = np.ones(len(start), np.bool_)
    later = start[start > 0]
    if len(later) and later[0] > FAR_NS:
        keep = start > 0
        first = int(np.argmin(keep))
        example = _name(columns, first)
        losses.add("event at time 0, which is none (left out)", int((~keep).sum()), example)
    doubles = _doubles(columns) & keep
    if doubles.any():
        example = _name(columns, int(np.argmax(doubles)))
        losses.add("same event twice (one kept)", int(doubles.sum()), example)
    return keep & ~doubles


def _doubles(columns: dict[str, Any]) -> Mask:
    """Rows that repeat an earlier one in everything, an id of their own included."""
    start, duration = columns["start_ns"], columns["dur_ns"]
    has_id = (columns["correlation"] > 0) | (columns["External id"] > 0)
    same = np.zeros(len(start), np.bool_)
    same[1:] = (start[1:] == start[:-1]) & (duration[1:] == duration[:-1])
    same[:-1] |= same[1:]
    rows = np.flatnonzero(same & has_id)
    doubles = np.zeros(len(start), np.bool_)
    if not len(rows):
        return doubles
    values = [c.codes if isinstance(c, Coded) else c for c in columns.values()]
    table = np.stack([v[rows].astype(np.int64) for v in values])
    order = np.lexsort(table)
    repeats = (table[:, order[1:]] == table[:, order[:-1]]).all(axis=0)
    doubles[rows[order[1:][repeats]]] = True
    return doubles


@dataclass(frozen=True, slots=True)
class Work:
    """Rows of device work, by device, stream and start; each of shape ``(rows,)``.

    Attributes:
        row: row of the events.
        stop_ns: end.
        next_ns: start of the next work of the stream, -1 for the last one.
        next_stop_ns: its end.
    """

    row: I64
    stop_ns: I64
    next_ns: I64
    next_stop_ns: I64


def cap_overruns(columns: dict[str, Any], is_work: Mask, losses: Losses) -> None:
    """Cut durations that cannot be down to what the stream's next work leaves room for.

    A stream works in order: what lasts until after the next one has ended was measured wrong,
    or the stream number is. It is cut where it also lasts far longer than its like, or beyond
    everything else in the trace; else it is only counted. Nodes of a graph may run side by
    side, and communication waits for others as long as it takes: neither is ever cut.
    """
    duration = columns["dur_ns"]
    too_long = duration >= TOO_LONG
    work = _in_streams(columns, is_work)
    covers = np.zeros(len(duration), np.bool_)
    covers[work.row] = (work.next_ns >= 0) & (work.stop_ns > work.next_stop_ns)
    covers &= ~_side_by_side(columns, is_work)
    faulty = too_long | (covers & _unlike(columns, covers, is_work))
    _cut(columns, work, faulty, losses)
    rest = covers & ~faulty
    reason = "kernel that ends after the next one of its stream (kept as it is)"
    _count(columns, rest, reason, losses)


def _cut(columns: dict[str, Any], work: Work, faulty: Mask, losses: Losses) -> None:
    duration = columns["dur_ns"]
    room = np.full(len(duration), -1, np.int64)
    room[work.row] = np.where(work.next_ns >= 0, work.next_ns - columns["start_ns"][work.row], -1)
    cut, lost = faulty & (room >= 0), faulty & (room < 0)
    for rows, words in (
        (cut, "duration runs over the next work of its stream (cut to its start)"),
        (lost, "duration beyond all bounds (set to 0)"),
    ):
        if rows.any():
            row = int(np.argmax(rows))
            was = int(duration[row])
            measured = "no number" if was >= TOO_LONG else f"{was} ns"
            example = f"{columns['name'].text(row)}: {measured}, now {max(int(room[row]), 0)} ns"
            losses.add(words, int(rows.sum()), example)
    duration[cut] = room[cut]
    duration[lost] = 0


def _in_streams(columns: dict[str, Any], is_work: Mask) -> Work:
    rows = np.flatnonzero(is_work)
    device, stream = columns["device"][rows], columns["stream"][rows]
    order = np.lexsort((rows, stream, device))
    rows, device, stream = rows[order], device[order], stream[order]
    start = columns["start_ns"][rows]
    stop = start + columns["dur_ns"][rows]
    following, following_stop = np.full((2, len(rows)), -1, np.int64)
    together = (device[1:] == device[:-1]) & (stream[1:] == stream[:-1])
    following[:-1] = np.where(together, start[1:], -1)
    following_stop[:-1] = np.where(together, stop[1:], -1)
    return Work(rows, stop, following, following_stop)


def _side_by_side(columns: dict[str, Any], is_work: Mask) -> Mask:
    """Work that may overlap on one stream: nodes of a graph, and communication."""
    names: Coded = columns["name"]
    communicates = names.marked(lambda name: bool(kernel_class(name)[0]))
    correlation = np.where(is_work, columns["correlation"], -1)
    ids, inverse, counts = np.unique(correlation, return_inverse=True, return_counts=True)
    in_graph = (counts > 1)[inverse] & (ids > 0)[inverse]
    result: Mask = communicates | in_graph | (columns["graph_node"] >= 0)
    return result


def _unlike(columns: dict[str, Any], covers: Mask, is_work: Mask) -> Mask:
    """Those of ``covers`` that last far longer than others of their name or than the trace."""
    unlike = np.zeros(len(covers), np.bool_)
    rows = np.flatnonzero(covers)
    if not len(rows):
        return unlike
    start, duration, codes = columns["start_ns"], columns["dur_ns"], columns["name"].codes
    others = ~covers & (duration < TOO_LONG)
    last_ns = int((start + duration)[others].max()) if others.any() else 0
    for code in np.unique(codes[rows]).tolist():
        mine = rows[codes[rows] == code]
        like = duration[others & is_work & (codes == code)]
        if len(like) >= _LEAST_LIKE_IT:
            unlike[mine] = duration[mine] > _TIMES_TYPICAL * max(float(np.median(like)), 1.0)
        else:
            unlike[mine] = start[mine] + duration[mine] > last_ns
    return unlike


def note_clocks(columns: dict[str, Any], losses: Losses, is_call: Mask, on_device: Mask) -> None:
    """Count device work before its launch, and events far away from all others; all are kept."""
    start = columns["start_ns"]
    launch = launch_rows(columns["correlation"], is_call, on_device)
    early = np.where(launch >= 0, start[np.maximum(launch, 0)] - start, 0)
    if (early > _EARLY_NS).any():
        row = int(np.argmax(early))
        example = f"{columns['name'].text(row)}: {int(early[row])} ns before"
        count = int((early > _EARLY_NS).sum())
        losses.add("device work starts before its launch (kept as it is)", count, example)
    breaks = np.flatnonzero(np.diff(start) > FAR_NS) + 1
    if len(breaks):
        sizes = np.diff(np.concatenate([[0], breaks, [len(start)]]))
        reason = "clock jumps: event more than an hour away from most others (kept)"
        losses.add(reason, int(sizes.sum() - sizes.max()), _name(columns, int(breaks[0])))


def _count(columns: dict[str, Any], rows: Mask, reason: str, losses: Losses) -> None:
    if rows.any():
        losses.add(reason, int(rows.sum()), columns["name"].text(int(np.argmax(rows))))


def _name(columns: dict[str, Any], row: int) -> str:
    return f"{columns['name'].text(row)} at {int(columns['start_ns'][row])} ns"
