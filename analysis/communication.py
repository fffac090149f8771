"""What each kind of communication costs and how fast it runs.

Bandwidths follow the conventions of NVIDIA's nccl-tests (doc/PERFORMANCE.md there):
*algorithm bandwidth* is the size of the operation over its time, *bus bandwidth* that times
a factor which makes it comparable with the speed of a link whatever the number of ranks.
The time counts from the last arrival, so waiting for a late rank lowers neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foretrace.analysis.intervals import total_by
from foretrace.replay.arrivals import arrivals
from foretrace.replay.graph import I64, JobGraph, TaskKind, Timeline
from foretrace.traces.classify import collective_kind
from foretrace.traces.schema import COLLECTIVE_KINDS

if TYPE_CHECKING:
    import pandas as pd


def bus_factor(kind: str, size: int) -> float:
    """Bus bandwidth over algorithm bandwidth, NaN where nccl-tests defines none.

    Args:
        kind: one of COLLECTIVE_KINDS.
        size: ranks in the group.
    """
    if size < 1 or kind in {"unknown", "barrier"}:
        return float("nan")
    if kind == "all_reduce":
        return 2 * (size - 1) / size
    if kind in {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}:
        return (size - 1) / size
    return 1.0  # broadcast, reduce, send, recv, send_recv


@dataclass(frozen=True, slots=True)
class Labels:
    """What each COMM task takes part in; all of shape ``(n,)``, -1 for other tasks.

    Attributes:
        kind: index into COLLECTIVE_KINDS: of its matched operation, else by its kernel's name.
        group: index into the graph's groups, -1 unknown.
    """

    kind: I64
    group: I64


def labels(graph: JobGraph) -> Labels:
    """Kind and group of every communication task, matched with other ranks or not."""
    kind = np.full(len(graph), -1, np.int64)
    group = np.full(len(graph), -1, np.int64)
    comm = np.flatnonzero(graph.kind == TaskKind.COMM)
    matched = comm[graph.collective[comm] >= 0]
    kind[matched] = graph.collectives.kind[graph.collective[matched]]
    group[matched] = graph.collectives.group[graph.collective[matched]]
    alone = comm[graph.collective[comm] < 0]
    names, row = np.unique(graph.name[alone], return_inverse=True)
    words = [collective_kind(graph.names[i]) or "unknown" for i in names.tolist()]
    codes = np.array([COLLECTIVE_KINDS.index(word) for word in words], np.int64)
    kind[alone] = codes[row]
    return Labels(kind, group)


@dataclass(frozen=True, slots=True)
class Operations:
    """Every operation that ran, over its members; arrays of shape ``(operations,)``.

    A task without a match in other ranks is an operation of its own.

    Attributes:
        kind: index into COLLECTIVE_KINDS.
        group: index into the graph's groups, -1 unknown.
        bytes: size of the operation, -1 unknown.
        members: ranks whose part was recorded.
        wait_ns: waiting for the last arrival, summed over the members.
        exec_ns: execution, summed over the members.
        time_ns: execution of the slowest member.
    """

    kind: I64
    group: I64
    bytes: I64
    members: I64
    wait_ns: I64
    exec_ns: I64
    time_ns: I64


def operations(timeline: Timeline) -> Operations:
    """Gather the tasks of each operation."""
    graph = timeline.graph
    comm = np.flatnonzero(graph.kind == TaskKind.COMM)
    number = graph.collective[comm].astype(np.int64)
    alone = number < 0
    number[alone] = len(graph.collectives.kind) + np.arange(int(alone.sum()))
    number, first, row = np.unique(number, return_index=True, return_inverse=True)
    size = len(number)
    arrive = arrivals(graph)[comm]
    reached = np.where(arrive >= 0, timeline.start_ns[arrive], timeline.start_ns[comm])
    ran = timeline.end_ns[comm] - timeline.start_ns[comm]
    longest = np.zeros(size, np.int64)
    np.maximum.at(longest, row, ran)
    known = np.append(graph.collectives.bytes, -1)
    label = labels(graph)
    return Operations(
        label.kind[comm[first]],
        label.group[comm[first]],
        known[np.minimum(number, len(known) - 1)],
        np.bincount(row, minlength=size),
        total_by(row, np.maximum(timeline.start_ns[comm] - reached, 0), size),
        total_by(row, ran, size),
        longest,
    )


def communication(timeline: Timeline, by_size: bool = False) -> pd.DataFrame:
    """Cost and speed of each kind of communication in each group.

    Args:
        timeline: measured, replayed or what-if.
        by_size: one row for each message size as well.

    Returns:
        ``kind, group, ranks, count, bytes, wait_ns, exec_ns, time_ns, algbw_GBps,
        busbw_GBps``, costliest first. ``group`` is an index into the graph's groups and
        ``ranks`` its members; ``count`` counts operations, not kernels; ``bytes`` sums the
        known sizes (-1: none known); ``wait_ns`` and ``exec_ns`` sum over ranks, ``time_ns``
        sums the slowest member's execution. Bandwidths are NaN where no size is known.
    """
    import pandas as pd

    graph = timeline.graph
    ops = operations(timeline)
    size = ops.bytes
    keys = {"kind": ops.kind, "group": ops.group}
    if by_size:
        keys["size_bytes"] = size
    known = size >= 0
    table = pd.DataFrame(
        {
            **keys,
            "count": 1,
            "bytes": np.where(known, size, 0),
            "sized": known.astype(np.int64),
            "sized_ns": np.where(known, ops.time_ns, 0),
            "wait_ns": ops.wait_ns,
            "exec_ns": ops.exec_ns,
            "time_ns": ops.time_ns,
        }
    )
    table = table.groupby(list(keys), as_index=False, sort=True).sum()
    return _with_bandwidth(table, graph.groups, list(keys))


def _with_bandwidth(
    table: pd.DataFrame, groups: tuple[tuple[int, ...], ...], keys: list[str]
) -> pd.DataFrame:
    """Names, ranks and bandwidths in place of codes."""
    table["kind"] = [COLLECTIVE_KINDS[code] for code in table["kind"]]
    table["ranks"] = [groups[g] if g >= 0 else () for g in table["group"]]
    sized = (table["sized"] > 0) & (table["sized_ns"] > 0) & (table["bytes"] > 0)
    # Bytes per nanosecond are gigabytes per second.
    table["algbw_GBps"] = (table["bytes"] / table["sized_ns"].where(sized)).astype(float)
    factor = [
        bus_factor(kind, len(ranks))
        for kind, ranks in zip(table["kind"], table["ranks"], strict=True)
    ]
    table["busbw_GBps"] = table["algbw_GBps"] * np.array(factor, float)
    table["bytes"] = table["bytes"].where(table["sized"] > 0, -1)
    columns = [*keys, "ranks", "count", "bytes", "wait_ns", "exec_ns", "time_ns"]
    table = table[[*columns, "algbw_GBps", "busbw_GBps"]]
    order = (-(table["wait_ns"] + table["exec_ns"])).sort_values(kind="stable").index
    return table.loc[order].reset_index(drop=True)
