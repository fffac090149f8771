"""A step of every rank in so many bins of time that any number of ranks stays legible.

Nothing is drawn over anything else: a bin says which share of its time each activity takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.activity import Activity, pieces
from foretrace.analysis.intervals import Cover, first_come
from foretrace.replay.arrivals import arrivals
from foretrace.replay.graph import I32, I64, TaskKind, Timeline

CLASSES = (*(a.name.lower() for a in Activity), "host_work")
"""What a bin tells apart: the activities, and work of host threads on the host strip."""

HOST_WORK = len(CLASSES) - 1


@dataclass(frozen=True, slots=True)
class Strips:
    """Strips of binned time, several per rank; ``s`` strips and ``b`` bins.

    Attributes:
        rank: rank of each strip, shape ``(s,)``.
        lane: "device", "communication" or "host" for each strip.
        edges_ns: borders of the bins, shape ``(b + 1,)``.
        share: share of each bin that each of CLASSES takes, shape ``(s, b, classes)``.
        text: row of ``texts`` that says what takes most of a bin, shape ``(s, b)``; -1 nothing.
        texts: names of tasks, and who is waited for.
    """

    rank: I32
    lane: tuple[str, ...]
    edges_ns: I64
    share: NDArray[np.float32]
    text: I32
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Intervals of one lane of all ranks that do not overlap within a rank."""

    rank: I32
    start_ns: I64
    end_ns: I64
    kind: I64
    text: I64


def strips(
    timeline: Timeline, window: tuple[int, int], bins: int, lanes: tuple[str, ...] = ("device",)
) -> Strips:
    """Bin the time of every rank between two instants.

    Args:
        timeline: measured, replayed or what-if.
        window: begin and end, ns.
        bins: how many bins.
        lanes: which strips each rank gets, from the top.
    """
    ranks = np.unique(timeline.graph.rank[timeline.graph.rank >= 0])
    edges = window[0] + (np.arange(bins + 1) * (window[1] - window[0])) // bins
    make = {"device": _device, "communication": _communication, "host": _host}
    binned = [_bin(make[lane](timeline), ranks, edges) for lane in lanes]
    texts = (*timeline.graph.names, *(f"waits for rank {r}" for r in range(int(ranks.max()) + 1)))
    text = np.stack([t for _, t in binned], axis=1).reshape(-1, bins)
    used, small = np.unique(text, return_inverse=True)
    return Strips(
        np.repeat(ranks, len(lanes)).astype(np.int32),
        lanes * len(ranks),
        edges,
        np.stack([s for s, _ in binned], axis=1).reshape(-1, bins, len(CLASSES)),
        small.reshape(text.shape).astype(np.int32) - int(used[0] < 0),
        tuple(texts[i] for i in used.tolist() if i >= 0),
    )


def _device(timeline: Timeline) -> _Intervals:
    cut = pieces(timeline)
    name = np.where(cut.task >= 0, timeline.graph.name[cut.task], -1).astype(np.int64)
    waits = cut.activity == Activity.IDLE_RANK
    text = np.where(waits, len(timeline.graph.names) + cut.culprit, name)
    return _Intervals(cut.rank, cut.start_ns, cut.end_ns, cut.activity.astype(np.int64), text)


def _communication(timeline: Timeline) -> _Intervals:
    """Executions, and waits where no other collective executes meanwhile."""
    graph = timeline.graph
    comm = np.flatnonzero(graph.kind == TaskKind.COMM)
    arrive = arrivals(graph)[comm]
    came = np.where(arrive >= 0, timeline.start_ns[arrive], timeline.start_ns[comm])
    runs = _by_rank(timeline, comm, timeline.start_ns[comm])
    whole = _by_rank(timeline, comm, came)
    # Within the union of both, a stretch is execution where an execution covers it.
    points = np.unique(np.concatenate([runs.start, runs.end, whole.start, whole.end]))
    begin, end = points[:-1], points[1:]
    running, present = runs.at(begin), whole.at(begin)
    some = present >= 0
    begin, end, running, present = begin[some], end[some], running[some], present[some]
    task = np.where(running >= 0, running, present)
    kind = np.where(running >= 0, Activity.COMMUNICATION, Activity.IDLE_RANK)
    return _placed(timeline, begin, end, task, kind)


def _host(timeline: Timeline) -> _Intervals:
    graph = timeline.graph
    kinds = (TaskKind.HOST, TaskKind.CALL, TaskKind.SYNC, TaskKind.STALL)
    task = np.flatnonzero(np.isin(graph.kind, kinds) & (graph.rank >= 0))
    cover = _by_rank(timeline, task, timeline.start_ns[task])
    kind = np.where(graph.kind[cover.owner] == TaskKind.STALL, Activity.IDLE_STALL, HOST_WORK)
    return _placed(timeline, cover.start, cover.end, cover.owner, kind)


def _span(timeline: Timeline) -> tuple[int, int]:
    origin = int(timeline.start_ns.min())
    return origin, int(timeline.end_ns.max()) - origin + 1


def _by_rank(timeline: Timeline, task: I64, start: I64) -> Cover:
    """Tasks of all ranks laid one rank behind the other, without overlap."""
    origin, span = _span(timeline)
    shift = timeline.graph.rank[task].astype(np.int64) * span - origin
    return first_come(start + shift, timeline.end_ns[task] + shift, task)


def _placed(timeline: Timeline, begin: I64, end: I64, task: I64, kind: I64) -> _Intervals:
    """Back from the common axis to each rank's time."""
    origin, span = _span(timeline)
    rank = timeline.graph.rank[task]
    shift = origin - rank.astype(np.int64) * span
    name = timeline.graph.name[task].astype(np.int64)
    return _Intervals(rank, begin + shift, end + shift, kind, name)


def _bin(spans: _Intervals, ranks: I32, edges: I64) -> tuple[NDArray[np.float32], I64]:
    """Share per rank, bin and class, and the text of the longest part of each bin."""
    bins = len(edges) - 1
    inside = (spans.end_ns > edges[0]) & (spans.start_ns < edges[-1])
    start = np.maximum(spans.start_ns[inside], edges[0])
    end = np.minimum(spans.end_ns[inside], edges[-1])
    first = np.searchsorted(edges, start, side="right") - 1
    count = np.searchsorted(edges, end, side="left") - first
    item = np.repeat(np.arange(len(start)), count)
    column = first[item] + np.arange(len(item)) - np.repeat(np.cumsum(count) - count, count)
    part = np.minimum(end[item], edges[column + 1]) - np.maximum(start[item], edges[column])
    row = np.searchsorted(ranks, spans.rank[inside])[item]
    cell = row * bins + column
    size = len(ranks) * bins * len(CLASSES)
    kind = spans.kind[inside][item]
    time = np.bincount(cell * len(CLASSES) + kind, weights=part, minlength=size)
    width = np.maximum(np.diff(edges), 1)
    share = (time.reshape(len(ranks), bins, len(CLASSES)) / width[None, :, None]).astype(np.float32)
    longest = np.full(len(ranks) * bins, -1, np.int64)
    order = np.argsort(part, kind="stable")  # later assignments win: the longest stays
    longest[cell[order]] = spans.text[inside][item][order]
    return share, longest.reshape(len(ranks), bins)
