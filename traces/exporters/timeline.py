"""A trace set as the bars and arrows of a timeline viewer, as it was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foretrace.traces.exporters.perfetto import Flows, Slices, Tracks
from foretrace.traces.schema import EVENT_KINDS
from foretrace.traces.steps import launch_rows
from foretrace.traces.store import TraceSet

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]

_COLUMNS = ("kind", "name", "start_ns", "dur_ns", "thread", "device", "stream", "correlation")
_SHOWN = ("step", "bytes", "correlation")
_ON_DEVICE = [
    EVENT_KINDS.index(k) for k in ("kernel", "memcpy", "memset", "sync", "gpu_annotation")
]
_COPY = EVENT_KINDS.index("gpu_annotation")


@dataclass(slots=True)
class _Names:
    """Distinct names over all ranks."""

    codes: dict[str, int]

    def of(self, column: pa.DictionaryArray) -> I32:
        here = [self.codes.setdefault(n, len(self.codes)) for n in column.dictionary.to_pylist()]
        codes: I32 = np.array([*here, 0], np.int32)[column.indices.to_numpy()]
        return codes


def timeline_arrays(
    traces: TraceSet, ranks: Sequence[int] | None = None
) -> tuple[Tracks, Slices, list[Flows]]:
    """Rows, bars and arrows of some ranks; one row per host thread and per stream.

    Args:
        traces: the trace set.
        ranks: which; None for all.

    Returns:
        What the writers of :mod:`foretrace.traces.exporters` take.
    """
    names = _Names({})
    blocks: list[dict[str, Any]] = []
    tracks = Tracks([], np.zeros(0, np.int32), [])
    first = 0
    for rank in traces.ranks if ranks is None else ranks:
        block = _rank_block(traces, rank, names)
        process, labels, block["track"] = _rank_tracks(block, len(tracks.processes))
        block["track"] += len(tracks.name)
        block["source"], block["target"] = (a + first for a in _launches(block))
        first += len(block["kind"])
        host = traces.info(rank).host
        tracks = Tracks(
            [*tracks.processes, f"rank {rank}" + (f" on {host}" if host else "")],
            np.concatenate([tracks.process, process]),
            [*tracks.name, *labels],
        )
        blocks.append(block)
    joined = {k: np.concatenate([b[k] for b in blocks]) for k in blocks[0]} if blocks else {}
    return tracks, _slices(joined, list(names.codes)), _flows(joined)


def _rank_block(traces: TraceSet, rank: int, names: _Names) -> dict[str, Any]:
    table = traces.events(rank, list(dict.fromkeys((*_COLUMNS, *_SHOWN))))
    block: dict[str, Any] = {
        c: table[c].combine_chunks().to_numpy()
        for c in table.column_names
        if not pa.types.is_dictionary(table.schema.field(c).type)
    }
    kind = table["kind"].combine_chunks()
    codes = [EVENT_KINDS.index(k) if k in EVENT_KINDS else len(EVENT_KINDS) - 1
             for k in kind.dictionary.to_pylist()]  # fmt: skip
    block["kind"] = np.array([*codes, 0], np.int32)[kind.indices.to_numpy()]
    block["name"] = names.of(table["name"].combine_chunks())
    return block


def _rank_tracks(block: dict[str, Any], process: int) -> tuple[I32, list[str], I32]:
    """Process and label of each row of one rank, and the row of each event."""
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
    return np.full(len(found), process, np.int32), labels, row.reshape(-1).astype(np.int32)


def _launches(block: dict[str, Any]) -> tuple[I64, I64]:
    """Rows of the calls and of the device work that they launched."""
    on_device = np.isin(block["kind"], _ON_DEVICE)
    is_call = block["kind"] == EVENT_KINDS.index("runtime")
    launch = launch_rows(block["correlation"], is_call, on_device)
    target = np.flatnonzero(launch >= 0)
    return launch[target], target


def _slices(columns: dict[str, Any], names: list[str]) -> Slices:
    none = np.zeros(0, np.int64)
    return Slices(
        names=names,
        categories=EVENT_KINDS,
        track=columns.get("track", none.astype(np.int32)),
        name=columns.get("name", none.astype(np.int32)),
        category=columns.get("kind", none.astype(np.int32)),
        start_ns=columns.get("start_ns", none),
        dur_ns=columns.get("dur_ns", none),
        args={c: columns[c] for c in _SHOWN if c in columns},
    )


def _flows(columns: dict[str, Any]) -> list[Flows]:
    if not columns or not len(columns["source"]):
        return []
    return [Flows(columns["source"], columns["target"], "launch")]
