"""Write a timeline as Chrome trace events (JSON), which the Perfetto UI opens.

The input is plain arrays, so that measured, replayed and predicted timelines all go this way.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]

_CHUNK = 20_000  # slices encoded at a time
_GZIP_LEVEL = 3  # level 6 took 1.4 times as long over all for 11% less
# Some Perfetto versions cut a time to whole nanoseconds instead of rounding it, and a slice
# that then overlaps its neighbour by 1 ns is dropped. A fifth of a nanosecond more makes
# both give the exact value.
_NUDGE_NS = 0.2


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


class _Slice(msgspec.Struct, tag_field="ph", tag="X", omit_defaults=True):
    name: msgspec.Raw
    cat: msgspec.Raw
    pid: int
    tid: int
    ts: float
    dur: float
    args: dict[str, Any] = {}


class _Flow(msgspec.Struct, omit_defaults=True):
    ph: str
    name: str
    id: int
    pid: int
    tid: int
    ts: float
    cat: str = "flow"
    bp: str = ""


class _Meta(msgspec.Struct, tag_field="ph", tag="M"):
    name: str
    pid: int
    tid: int
    args: dict[str, Any]


def write_perfetto(
    path: str | Path,
    tracks: Tracks,
    slices: Slices,
    flows: Sequence[Flows] = (),
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a timeline for the Perfetto UI.

    Times count from the earliest slice; its own time stands in the file's metadata as
    ``base_time_ns``. Bars of one track that overlap without nesting are spread over
    sub-tracks, because Perfetto drops such bars.

    Args:
        path: ``.json``, or ``.gz`` to compress. Replaced only when all is written.
        tracks: the rows.
        slices: the bars.
        flows: the arrows.
        metadata: shown in the UI under "Info and stats".

    Raises:
        OSError: the file cannot be written.
    """
    order = np.lexsort((-slices.dur_ns, slices.start_ns, slices.track))
    sub = subtracks(slices, order)
    tid, rows = thread_ids(slices.track, sub)
    base_ns = int(slices.start_ns.min()) if len(slices) else 0
    encoder = msgspec.json.Encoder()
    with replacing(Path(path)) as out:
        out.write(b'{"displayTimeUnit":"ns","otherData":')
        out.write(encoder.encode({"base_time_ns": str(base_ns), **(metadata or {})}))
        out.write(b',"traceEvents":[\n')
        out.write(_lines(encoder, _meta_events(tracks, rows)))
        pid = tracks.process.astype(np.int64) + 1
        for bars in _slice_events(slices, order, pid, tid, base_ns):
            out.write(b",\n" + _lines(encoder, bars))
        for arrows in _flow_events(slices, flows, pid, tid, base_ns):
            out.write(b",\n" + _lines(encoder, arrows))
        out.write(b"\n]}\n")


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


def thread_ids(track: I32, sub: I32) -> tuple[I64, list[tuple[int, int]]]:
    """One thread id per (track, sub-track): of each slice, and the pair of each id from 1."""
    width = int(sub.max(initial=0)) + 1
    pairs, inverse = np.unique(track.astype(np.int64) * width + sub, return_inverse=True)
    return inverse.astype(np.int64) + 1, [divmod(int(pair), width) for pair in pairs]


def _meta_events(tracks: Tracks, rows: list[tuple[int, int]]) -> list[_Meta]:
    events = []
    for number, name in enumerate(tracks.processes):
        events.append(_Meta("process_name", number + 1, 0, {"name": name}))
        events.append(_Meta("process_sort_index", number + 1, 0, {"sort_index": number}))
    for tid, (track, sub) in enumerate(rows, start=1):
        pid = int(tracks.process[track]) + 1
        name = tracks.name[track] + (f" (overlap {sub})" if sub else "")
        events.append(_Meta("thread_name", pid, tid, {"name": name}))
        events.append(_Meta("thread_sort_index", pid, tid, {"sort_index": tid}))
    return events


def _slice_events(
    slices: Slices, order: I64, pid: I64, tid: I64, base_ns: int
) -> Iterator[list[_Slice]]:
    names = [msgspec.Raw(msgspec.json.encode(name)) for name in slices.names]
    categories = [msgspec.Raw(msgspec.json.encode(name)) for name in slices.categories]
    for low in range(0, len(order), _CHUNK):
        part = order[low : low + _CHUNK]
        yield [
            _Slice(names[name], categories[category], *rest)
            for name, category, *rest in zip(
                slices.name[part].tolist(),
                slices.category[part].tolist(),
                pid[slices.track[part]].tolist(),
                tid[part].tolist(),
                _us(slices.start_ns[part] - base_ns),
                _us(slices.dur_ns[part]),
                _args(slices.args, part),
                strict=True,
            )
        ]


def _args(columns: Mapping[str, NDArray[Any] | Sequence[Any]], part: I64) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{} for _ in part]
    for key, column in columns.items():
        values = np.asarray(column)[part].tolist()
        for row, value in zip(rows, values, strict=True):
            if value not in (-1, ""):
                row[key] = value
    return rows


def _flow_events(
    slices: Slices, flows: Sequence[Flows], pid: I64, tid: I64, base_ns: int
) -> Iterator[list[_Flow]]:
    """Two events per arrow; they come after all slices, which they bind to by time."""
    process = pid[slices.track]
    first = 1
    for flow in flows:
        ids = range(first, first + len(flow.source))
        first = ids.stop
        tail_ns = slices.start_ns[flow.source]
        head_ns = slices.start_ns[flow.target] if flow.head_ns is None else flow.head_ns
        tails, heads = (
            zip(ids, process[end].tolist(), tid[end].tolist(), _us(ns - base_ns), strict=True)
            for end, ns in ((flow.source, tail_ns), (flow.target, head_ns))
        )
        if ids:
            yield [
                event
                for tail, head in zip(tails, heads, strict=True)
                for event in (_Flow("s", flow.name, *tail), _Flow("f", flow.name, *head, bp="e"))
            ]


def _us(ns: I64) -> list[float]:
    us: list[float] = ((ns + _NUDGE_NS) / 1000).tolist()
    return us


def _lines(encoder: msgspec.json.Encoder, events: Sequence[Any]) -> bytes:
    """Encoded events, one a line, without the closing newline."""
    return encoder.encode_lines(events).rstrip().replace(b"}\n{", b"},\n{")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes ``path``'s place when the block ends well, and vanishes otherwise."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield raw
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
