"""Bars on rows, and which row of a viewer each bar goes to.

Viewers know only bars that nest: of what overlaps otherwise, they drop some. Such bars are
spread over several rows here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tracks:
    """Rows of the timeline; arrays of shape ``(tracks,)``.

    Attributes:
        process: index into ``processes``, the names of the groups of rows.
        name: shown at the left of the row.
    """

    processes: Sequence[str]
    process: I32
    name: Sequence[str]


@dataclass(frozen=True, slots=True)
class Slices:
    """Bars on tracks; arrays of shape ``(slices,)``. Bars may overlap in any way.

    Attributes:
        names: distinct names.
        categories: distinct categories.
        track: index into the tracks.
        name: index into ``names``.
        category: index into ``categories``.
        start_ns: start, ns.
        dur_ns: duration, ns, not negative.
        args: values shown when a bar is clicked, one column each; ``-1`` and ``""`` are left out.
    """

    names: Sequence[str]
    categories: Sequence[str]
    track: I32
    name: I32
    category: I32
    start_ns: I64
    dur_ns: I64
    args: Mapping[str, NDArray[Any] | Sequence[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Flows:
    """Arrows between bars; arrays of shape ``(flows,)``.

    Attributes:
        source: index of the slice at whose start the arrow begins.
        target: index of the slice to which it leads.
        name: what the arrows stand for.
        head_ns: when the arrow arrives, a time inside the target; its start by default.
            Viewers drop arrows that lead back in time.
    """

    source: I64
    target: I64
    name: str
    head_ns: I64 | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rows, bars and arrows that belong together, such as those of one rank.

    Attributes:
        tracks: the rows.
        slices: the bars.
        flows: the arrows.
    """

    tracks: Tracks
    slices: Slices
    flows: Sequence[Flows] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """A timeline among others.

    Attributes:
        timeline: the timeline.
        order: its bars by track, start and falling duration, shape ``(slices,)``.
        process: group of rows of each of its tracks among all groups, shape ``(tracks,)``.
        row: row of each bar among all rows, from 0, shape ``(slices,)``.
        names: what stands at the left of each of its rows.
        process_of_row: group of each of its rows, among all groups.
    """

    timeline: Timeline
    order: I64
    process: I64
    row: I64
    names: Sequence[str]
    process_of_row: Sequence[int]


def placed(timelines: Iterable[Timeline]) -> Iterator[Placed]:
    """The timelines one below the other, one at a time.

    Bars of one track that overlap without nesting are spread over further rows.
    """
    processes = rows = 0
    for timeline in timelines:
        tracks, slices = timeline.tracks, timeline.slices
        order = np.lexsort((-slices.dur_ns, slices.start_ns, slices.track))
        row, pairs = _numbered(slices.track, subtracks(slices, order))
        process = tracks.process.astype(np.int64) + processes
        names = [tracks.name[t] + (f" (overlap {sub})" if sub else "") for t, sub in pairs]
        of_row = [int(process[t]) for t, _ in pairs]
        yield Placed(timeline, order, process, row + rows, names, of_row)
        processes += len(tracks.processes)
        rows += len(pairs)


def subtracks(slices: Slices, order: I64) -> I32:
    """Number of the sub-track of each slice so that every sub-track only nests.

    Args:
        slices: the bars.
        order: slices by track, start and falling duration.

    Returns:
        Shape ``(slices,)``; 0 wherever a track needs no splitting.
    """
    sub = np.zeros(len(slices), np.int32)
    if not len(slices):
        return sub
    start, track = slices.start_ns[order], slices.track[order]
    end = start + slices.dur_ns[order]
    heads = np.flatnonzero(np.r_[True, track[1:] != track[:-1]])
    for low, high in zip(heads, np.r_[heads[1:], len(order)], strict=True):
        so_far = np.maximum.accumulate(end[low:high])
        if (start[low + 1 : high] >= so_far[:-1]).all():
            continue  # one after the other
        part = order[low:high]
        sub[part] = _first_fit(start[low:high].tolist(), end[low:high].tolist())
    return sub


def _first_fit(starts: list[int], ends: list[int]) -> list[int]:
    """Each bar goes to the first sub-track where it nests in, or follows, what is there."""
    open_ends: list[list[int]] = []
    chosen = []
    for start, end in zip(starts, ends, strict=True):
        number = next((i for i, stack in enumerate(open_ends) if _fits(stack, start, end)), None)
        if number is None:
            number = len(open_ends)
            open_ends.append([])
        open_ends[number].append(end)
        chosen.append(number)
    return chosen


def _fits(stack: list[int], start: int, end: int) -> bool:
    """Whether a bar nests in the innermost open bar; those that ended are closed first."""
    while stack and stack[-1] <= start:
        stack.pop()
    return not stack or end <= stack[-1]


def _numbered(track: I32, sub: I32) -> tuple[I64, list[tuple[int, int]]]:
    """A number from 0 for each (track, sub-track) in use: that of each slice, and all pairs."""
    width = int(sub.max(initial=0)) + 1
    pairs, inverse = np.unique(track.astype(np.int64) * width + sub, return_inverse=True)
    return inverse.astype(np.int64), [divmod(int(pair), width) for pair in pairs]
