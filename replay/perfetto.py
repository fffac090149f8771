"""Timelines as the bars and arrows of a timeline viewer, several side by side per rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.arrivals import arrivals
from foretrace.replay.graph import I32, I64, EdgeKind, JobGraph, TaskKind, Timeline
from foretrace.replay.timeline import step_windows
from foretrace.traces.exporters.rows import Flows, Slices, Tracks
from foretrace.traces.schema import COLLECTIVE_KINDS

_CATEGORY = {
    TaskKind.HOST: "host",
    TaskKind.CALL: "launch",
    TaskKind.SYNC: "sync",
    TaskKind.STALL: "stall",
    TaskKind.KERNEL: "compute",
    TaskKind.MEMCPY: "copy",
    TaskKind.MEMSET: "copy",
    TaskKind.COMM: "comm",
}
_CATEGORIES = ("host", "launch", "sync", "stall", "compute", "copy", "comm", "wait")
_WAIT = "waiting"
_NETWORK = -2  # device of lanes whose host threads carry out communication


@dataclass(frozen=True, slots=True)
class _Bars:
    """Bars of one timeline; ``task`` is what each shows."""

    task: I64
    start_ns: I64
    end_ns: I64
    wait: NDArray[np.bool_]
    for_rank: I32


def viewer_arrays(timelines: Sequence[Timeline]) -> tuple[Tracks, Slices, list[Flows]]:
    """Rows, bars and arrows of some timelines of one job, each beginning at 0.

    A collective is one bar from the rank's arrival to its end; the part before all have
    arrived is a bar inside it, called "waiting", which names the rank waited for.

    Args:
        timelines: over the same trace set; each becomes a group of rows beside the others
            of its rank.

    Returns:
        What :func:`foretrace.traces.exporters.perfetto.write_perfetto` takes.
    """
    track_parts = [_tracks(t, i, len(timelines)) for i, t in enumerate(timelines)]
    bars = [_bars(timeline) for timeline in timelines]
    first_track = np.cumsum([0] + [len(process) for process, _ in track_parts])
    first_bar = np.cumsum([0] + [len(b.task) for b in bars])
    slices = _slices(timelines, bars, first_track)
    flows = [_arrows(t, b, int(n)) for t, b, n in zip(timelines, bars, first_bar, strict=False)]
    tracks = Tracks(
        _processes(timelines),
        np.concatenate([process for process, _ in track_parts]),
        [name for _, names in track_parts for name in names],
    )
    return tracks, slices, [flow for pair in flows for flow in pair]


def _ranks(graph: JobGraph) -> I32:
    return np.unique(graph.lanes.rank)


def _processes(timelines: Sequence[Timeline]) -> list[str]:
    ranks = _ranks(timelines[0].graph)
    return [f"rank {rank} {timeline.label}" for rank in ranks for timeline in timelines]


def _tracks(timeline: Timeline, number: int, count: int) -> tuple[I32, list[str]]:
    """Process and name of each lane's row: host threads, threads that communicate, streams."""
    lanes = timeline.graph.lanes
    order = _lane_order(timeline.graph)
    rank_row = np.searchsorted(_ranks(timeline.graph), lanes.rank[order])
    words = {-1: "thread", _NETWORK: "communication thread"}
    names = [f"{words.get(int(lanes.device[i]), 'stream')} {lanes.number[i]}" for i in order]
    return (rank_row * count + number).astype(np.int32), names


def _lane_order(graph: JobGraph) -> I64:
    lanes = graph.lanes
    place = np.where(lanes.device == _NETWORK, -0.5, lanes.device)
    return np.lexsort((lanes.number, place, lanes.rank))


def _bars(timeline: Timeline) -> _Bars:
    graph = timeline.graph
    drawn = np.isin(graph.kind, list(_CATEGORY)) & (graph.lane >= 0)
    arrived = arrivals(graph)
    begin = np.where(arrived >= 0, timeline.start_ns[arrived], timeline.start_ns)
    tasks = np.flatnonzero(drawn & (timeline.end_ns > begin))
    waits = tasks[(arrived[tasks] >= 0) & (timeline.start_ns[tasks] > begin[tasks])]
    task = np.concatenate([tasks, waits])
    is_wait = np.arange(len(task)) >= len(tasks)
    end = np.where(is_wait, timeline.start_ns[task], timeline.end_ns[task])
    origin = _origin_ns(timeline)
    for_rank = np.where(is_wait, _released_by(timeline)[1][task], -1).astype(np.int32)
    return _Bars(task, begin[task] - origin, end - origin, is_wait, for_rank)


def _released_by(timeline: Timeline) -> tuple[I64, I32]:
    """The arrival that let each task start, and its rank; -1 where it was none."""
    graph = timeline.graph
    source = _source(timeline, np.arange(len(graph)))
    through = graph.kind[source] == TaskKind.JOIN
    source = np.where((source >= 0) & through, _source(timeline, source), source)
    by_arrival = (source >= 0) & (graph.kind[source] == TaskKind.ARRIVE)
    return np.where(by_arrival, source, -1), np.where(by_arrival, graph.rank[source], -1)


def _source(timeline: Timeline, task: I64) -> I64:
    """Predecessor that bound each task, -1 for none."""
    bound = timeline.bound[task]
    padded = np.append(timeline.graph.pred, -1)
    found: I64 = np.where((task >= 0) & (bound >= 0), padded[bound], -1)
    return found


def _origin_ns(timeline: Timeline) -> int:
    """Begin of the first step, or of everything where there is none."""
    steps = step_windows(timeline).start_ns
    if len(steps):
        return int(steps.min())
    return int(timeline.start_ns.min(initial=0))


def _slices(timelines: Sequence[Timeline], bars: Sequence[_Bars], first_track: I64) -> Slices:
    """All bars of all timelines, their names merged into one list."""
    names: dict[str, int] = {}
    columns: dict[str, list[NDArray[np.integer]]] = {}
    group_names: list[str] = []
    for timeline, bar, first in zip(timelines, bars, first_track, strict=False):
        graph = timeline.graph
        row = np.empty(len(graph.lanes.rank), np.int64)
        row[_lane_order(graph)] = np.arange(len(row)) + first
        for key, column in {
            "track": row[graph.lane[bar.task]],
            "name": _name_numbers(graph, bar, names),
            "category": _categories(graph, bar),
            "start_ns": bar.start_ns,
            "dur_ns": bar.end_ns - bar.start_ns,
            "event": graph.event[bar.task],
            "step": graph.step[bar.task],
            "bytes": _of_collective(graph, bar.task, graph.collectives.bytes),
        }.items():
            columns.setdefault(key, []).append(column)
        group_names += _groups(graph, bar.task)
    joined = {key: np.concatenate(parts) for key, parts in columns.items()}
    return Slices(
        names=list(names),
        categories=_CATEGORIES,
        track=joined["track"].astype(np.int32),
        name=joined["name"].astype(np.int32),
        category=joined["category"].astype(np.int32),
        start_ns=joined["start_ns"],
        dur_ns=joined["dur_ns"],
        args={key: joined[key] for key in ("event", "step", "bytes")} | {"ranks": group_names},
    )


def _name_numbers(graph: JobGraph, bar: _Bars, names: dict[str, int]) -> I64:
    """Index of each bar's name in ``names``, which grows."""
    task_name = graph.name[bar.task].astype(np.int64)
    stall = graph.kind[bar.task] == TaskKind.STALL
    width = len(graph.names)
    # Names of tasks, then "stall: name" of each, then one for each rank waited for.
    local = np.where(stall, task_name + width, task_name)
    local = np.where(bar.wait, 2 * width + 1 + bar.for_rank, local)
    used, place = np.unique(local, return_inverse=True)
    numbers = np.array(
        [names.setdefault(_text(graph, int(n), width), len(names)) for n in used], np.int64
    )
    return numbers[place]


def _text(graph: JobGraph, local: int, width: int) -> str:
    if local < width:
        return graph.names[local]
    if local < 2 * width:
        return f"stall after {graph.names[local - width]}"
    rank = local - 2 * width - 1
    return f"{_WAIT} for rank {rank}" if rank >= 0 else _WAIT


def _categories(graph: JobGraph, bar: _Bars) -> I64:
    table = np.zeros(len(TaskKind), np.int64)
    for kind, word in _CATEGORY.items():
        table[kind] = _CATEGORIES.index(word)
    return np.where(bar.wait, _CATEGORIES.index("wait"), table[graph.kind[bar.task]])


def _of_collective(graph: JobGraph, task: I64, column: NDArray[np.integer]) -> I64:
    """A column of the collectives for each task, -1 where it is no collective."""
    values: I64 = np.append(column, -1)[graph.collective[task]]
    return values


def _groups(graph: JobGraph, task: I64) -> list[str]:
    """Kind and ranks of each task's collective, "" for other tasks."""
    kinds, groups = graph.collectives.kind.tolist(), graph.collectives.group.tolist()
    texts = [
        f"{COLLECTIVE_KINDS[kind]} over {_short(graph.groups[group])}"
        for kind, group in zip(kinds, groups, strict=True)
    ]
    texts.append("")
    return [texts[c] for c in graph.collective[task].tolist()]


def _short(ranks: tuple[int, ...], most: int = 16) -> str:
    text = ", ".join(str(rank) for rank in ranks[:most])
    return f"ranks {text}" + (f", … ({len(ranks)})" if len(ranks) > most else "")


def _arrows(timeline: Timeline, bars: _Bars, first: int) -> tuple[Flows, Flows]:
    """From launches to what they launched, and from the last to arrive to who waited."""
    graph = timeline.graph
    bar_of = np.full(len(graph), -1, np.int64)
    whole = np.flatnonzero(~bars.wait)
    bar_of[bars.task[whole]] = whole
    begins = arrivals(graph)
    comm = np.flatnonzero(begins >= 0)
    bar_of[begins[comm]] = bar_of[comm]  # an arrival is drawn as its operation's bar
    edges = np.flatnonzero(graph.edge_kind == EdgeKind.LAUNCH)
    target = np.searchsorted(graph.pred_ptr, edges, side="right") - 1
    launch = _joined(bar_of[graph.pred[edges]], bar_of[target], first)
    waits = np.flatnonzero(bars.wait)
    releaser = _released_by(timeline)[0][bars.task[waits]]
    # The arrow ends in the operation's bar, where its waiting ends.
    source = np.where(releaser >= 0, bar_of[releaser], -1)
    release = _joined(source, bar_of[bars.task[waits]], first)
    kept = (source >= 0) & (bar_of[bars.task[waits]] >= 0)
    head_ns = np.maximum(bars.end_ns[waits][kept], bars.start_ns[source[kept]])
    return (
        Flows(*launch, "launch"),
        Flows(*release, "last to arrive", head_ns),
    )


def _joined(source: I64, target: I64, first: int) -> tuple[I64, I64]:
    """Ends of the arrows whose two bars exist, numbered over all timelines."""
    keep = (source >= 0) & (target >= 0)
    return source[keep] + first, target[keep] + first
