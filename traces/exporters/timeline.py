"""A trace set as the bars and arrows of a timeline viewer, as it was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foretrace.traces.exporters.rows import Flows, Slices, Timeline, Tracks
from foretrace.traces.schema import EVENT_KINDS
from foretrace.traces.steps import launch_rows
from foretrace.traces.store import TraceSet

I32 = NDArray[np.int32]

_COLUMNS = ("kind", "name", "start_ns", "dur_ns", "thread", "device", "stream", "correlation")
_SHOWN = ("step", "bytes", "correlation")
_ON_DEVICE = [
    EVENT_KINDS.index(k) for k in ("kernel", "memcpy", "memset", "sync", "gpu_annotation")
]
_COPY = EVENT_KINDS.index("gpu_annotation")


class RankTimelines:
    """The timelines of ranks, made one at a time, as often as they are gone through.

    One row per host thread and per stream.

    Args:
        traces: the trace set.
        ranks: which; None for all.
    """

    def __init__(self, traces: TraceSet, ranks: Sequence[int] | None = None) -> None:
        self._traces = traces
        self._ranks = traces.ranks if ranks is None else ranks

    def __iter__(self) -> Iterator[Timeline]:
        return (_timeline(self._traces, rank) for rank in self._ranks)


def _timeline(traces: TraceSet, rank: int) -> Timeline:
    table = traces.events(rank, list(dict.fromkeys((*_COLUMNS, *_SHOWN))))
    columns: dict[str, Any] = {
        c: table[c].combine_chunks().to_numpy()
        for c in table.column_names
        if not pa.types.is_dictionary(table.schema.field(c).type)
    }
    kind, name = table["kind"].combine_chunks(), table["name"].combine_chunks()
    codes = [EVENT_KINDS.index(k) if k in EVENT_KINDS else len(EVENT_KINDS) - 1
             for k in kind.dictionary.to_pylist()]  # fmt: skip
    columns["kind"] = np.array([*codes, 0], np.int32)[kind.indices.to_numpy()]
    labels, track = _rank_tracks(columns)
    host = traces.info(rank).host
    process = f"rank {rank}" + (f" on {host}" if host else "")
    slices = Slices(
        names=name.dictionary.to_pylist(),
        categories=EVENT_KINDS,
        track=track,
        name=name.indices.to_numpy(),
        category=columns["kind"],
        start_ns=columns["start_ns"],
        dur_ns=columns["dur_ns"],
        args={c: columns[c] for c in _SHOWN},
    )
    tracks = Tracks([process], np.zeros(len(labels), np.int32), labels)
    return Timeline(tracks, slices, _flows(columns))


def _rank_tracks(block: dict[str, Any]) -> tuple[list[str], I32]:
    """Label of each row of one rank, and the row of each event."""
    on_device = np.isin(block["kind"], _ON_DEVICE)
    copies = block["kind"] == _COPY  # they lie over the work that they name
    keys = np.stack(
        [
            on_device.astype(np.int64),
            np.where(on_device, block["device"], 0),
            np.where(on_device, block["stream"], block["thread"]),
            copies.astype(np.int64),
        ],
        axis=1,
    )
    found, row = np.unique(keys, axis=0, return_inverse=True)
    labels = [
        (f"GPU {device} stream {number}" if gpu else f"thread {number}")
        + (" annotations" if copy else "")
        for gpu, device, number, copy in found.tolist()
    ]
    return labels, row.reshape(-1).astype(np.int32)


def _flows(block: dict[str, Any]) -> list[Flows]:
    """Arrows from calls to the device work that they launched."""
    on_device = np.isin(block["kind"], _ON_DEVICE)
    is_call = block["kind"] == EVENT_KINDS.index("runtime")
    launch = launch_rows(block["correlation"], is_call, on_device)
    target = np.flatnonzero(launch >= 0)
    return [Flows(launch[target], target, "launch")] if len(target) else []
