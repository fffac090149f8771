"""Write a timeline as Chrome trace events (JSON), which the Perfetto UI opens.

The input is plain arrays, so that measured, replayed and predicted timelines all go this way.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.traces.exporters.rows import Flows, Placed, Slices, Timeline, Tracks, placed

I64 = NDArray[np.int64]

_CHUNK = 20_000  # slices encoded at a time
_GZIP_LEVEL = 3  # level 6 took 1.4 times as long over all for 11% less
# Some Perfetto versions cut a time to whole nanoseconds instead of rounding it, and a slice
# that then overlaps its neighbour by 1 ns is dropped. A fifth of a nanosecond more makes
# both give the exact value.
_NUDGE_NS = 0.2


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
    write_timelines(path, [Timeline(tracks, slices, flows)], metadata)


def write_timelines(
    path: str | Path, timelines: Iterable[Timeline], metadata: Mapping[str, Any] | None = None
) -> None:
    """Write timelines one below the other, as :func:`write_perfetto` writes one.

    Args:
        path: as there.
        timelines: gone through twice, one at a time.
        metadata: as there.

    Raises:
        OSError: the file cannot be written.
    """
    encoder = msgspec.json.Encoder()
    labels, base_ns = _survey(timelines)
    with replacing(Path(path)) as out, TemporaryFile() as arrows:
        out.write(b'{"displayTimeUnit":"ns","otherData":')
        out.write(encoder.encode({"base_time_ns": str(base_ns), **(metadata or {})}))
        out.write(b',"traceEvents":[\n')
        out.write(_lines(encoder, labels))
        number = 1
        for part in placed(timelines):
            for bars in _slice_events(part, base_ns):
                out.write(b",\n" + _lines(encoder, bars))
            for flow in part.timeline.flows:  # viewers want all bars before the first arrow
                if len(flow.source):
                    events = _flow_events(part, flow, number, base_ns)
                    arrows.write(b",\n" + _lines(encoder, events))
                number += len(flow.source)
        arrows.seek(0)
        shutil.copyfileobj(arrows, out)
        out.write(b"\n]}\n")


def _survey(timelines: Iterable[Timeline]) -> tuple[list[_Meta], int]:
    """The names of all groups and rows, and the earliest start, ns."""
    groups: list[_Meta] = []
    rows: list[_Meta] = []
    base_ns: int | None = None
    process = tid = 0
    for part in placed(timelines):
        for name in part.timeline.tracks.processes:
            process += 1
            groups.append(_Meta("process_name", process, 0, {"name": name}))
            groups.append(_Meta("process_sort_index", process, 0, {"sort_index": process - 1}))
        for group, name in zip(part.process_of_row, part.names, strict=True):
            tid += 1
            rows.append(_Meta("thread_name", group + 1, tid, {"name": name}))
            rows.append(_Meta("thread_sort_index", group + 1, tid, {"sort_index": tid}))
        start_ns = part.timeline.slices.start_ns
        if len(start_ns):
            base_ns = min(int(start_ns.min()), int(start_ns.min()) if base_ns is None else base_ns)
    return groups + rows, base_ns or 0


def _slice_events(part: Placed, base_ns: int) -> Iterator[list[_Slice]]:
    slices, pid = part.timeline.slices, part.process + 1
    names = [msgspec.Raw(msgspec.json.encode(name)) for name in slices.names]
    categories = [msgspec.Raw(msgspec.json.encode(name)) for name in slices.categories]
    for low in range(0, len(slices), _CHUNK):
        bars = part.order[low : low + _CHUNK]
        yield [
            _Slice(names[name], categories[category], *rest)
            for name, category, *rest in zip(
                slices.name[bars].tolist(),
                slices.category[bars].tolist(),
                pid[slices.track[bars]].tolist(),
                (part.row[bars] + 1).tolist(),
                _us(slices.start_ns[bars] - base_ns),
                _us(slices.dur_ns[bars]),
                _args(slices.args, bars),
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


def _flow_events(part: Placed, flow: Flows, number: int, base_ns: int) -> list[_Flow]:
    """Two events for each arrow, numbered from ``number`` on."""
    slices = part.timeline.slices
    process, tid = part.process[slices.track] + 1, part.row + 1
    ids = range(number, number + len(flow.source))
    tail_ns = slices.start_ns[flow.source]
    head_ns = slices.start_ns[flow.target] if flow.head_ns is None else flow.head_ns
    tails, heads = (
        zip(ids, process[end].tolist(), tid[end].tolist(), _us(ns - base_ns), strict=True)
        for end, ns in ((flow.source, tail_ns), (flow.target, head_ns))
    )
    return [
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
