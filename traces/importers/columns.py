"""From decoded Kineto events to columns: ids as integers, texts as dictionaries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foretrace.traces.importers import scan
from foretrace.traces.importers.events import (
    EMPTY,
    NO_ARGS,
    Args,
    CommArgs,
    CommEvent,
    Event,
    MemoryArgs,
    MemoryEvent,
)
from foretrace.traces.importers.stream import Block
from foretrace.traces.salvage import Losses, repair
from foretrace.traces.schema import MEMORY

I64 = NDArray[np.int64]

_INT_FIELDS = (
    "external_id",
    "correlation",
    "device",
    "stream",
    "sequence",
    "fwd_thread",
    "bytes",
    "graph_node",
    "wait_stream",
    "wait_correlation",
    "rf_id",
)
_TEXT_FIELDS = ("shapes", "dtypes", "inputs", "grid", "block")
_INTEGER = re.compile(r"-?\d+")
_WRAP = 1 << 64


@lru_cache(maxsize=1 << 16)
def _text_to_int(text: str) -> int:
    """The first integer in a text such as ``"stream 7"``, ``"25738"`` or ``"0x1f"``; else -1."""
    if text.startswith("0x"):
        try:
            return _wrap(int(text, 16))
        except ValueError:
            return -1
    match = _INTEGER.search(text)
    return _wrap(int(match.group())) if match else -1


def _wrap(value: int) -> int:
    """An unsigned 64-bit id as the signed one of the same bits."""
    value %= _WRAP
    return value - _WRAP if value >= _WRAP >> 1 else value


def as_int(value: Any, absent: int = -1) -> int:
    """An id or a count in whatever form the writer gave it; ``absent`` if it is none."""
    if type(value) is int:
        return _wrap(value)
    if isinstance(value, str):
        return _text_to_int(value)
    if isinstance(value, bool):
        return int(value)
    return int(value) if isinstance(value, float) and value == value // 1 else absent


def as_ints(values: Sequence[Any], absent: int = -1) -> I64:
    """Ids or counts as int64, shape ``(values,)``; unsigned ones keep their bits."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter((as_int(v, absent) for v in values), np.int64, len(values))


def as_texts(values: Sequence[Any]) -> pa.DictionaryArray:
    """Names as a dictionary array."""
    try:
        texts = pa.array(values, pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        texts = pa.array(["" if v is None else str(v) for v in values], pa.string())
    return texts.fill_null("").dictionary_encode()


def _json_texts(raws: Iterable[msgspec.Raw]) -> pa.DictionaryArray:
    """JSON texts as recorded, but on one line, as a dictionary array."""
    array = pa.array([b"" if r is EMPTY else bytes(r) for r in raws], pa.binary())
    array = array.dictionary_encode()
    texts = [" ".join(v.decode("utf-8", "replace").split()) for v in array.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(array.indices, pa.array(texts, pa.string()))


class BlockDecoder:
    """Decodes the chosen events of blocks to structs; damaged ones are mended or counted.

    Args:
        kind: struct of an event.
        losses: takes note of what cannot be decoded.
    """

    def __init__(self, kind: type[Any], losses: Losses) -> None:
        self._many = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._one = msgspec.json.Decoder(kind)
        self._losses = losses

    def __call__(self, block: Block, rows: scan.I64) -> tuple[list[Any], scan.I64]:
        """The events of ``rows`` that can be decoded, and their rows."""
        out = np.empty(int((rows[:, scan.STOP] - rows[:, scan.START] + 1).sum()) + 2, np.uint8)
        n = scan.join_events(block.text, rows, out)
        try:
            return self._many.decode(memoryview(out)[:n]), rows
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._one_by_one(block, rows)

    def _one_by_one(self, block: Block, rows: scan.I64) -> tuple[list[Any], scan.I64]:
        events: list[Any] = []
        kept = []
        for i, (start, stop) in enumerate(rows[:, :2].tolist()):
            text = block.text[start:stop].tobytes()
            event = self._decode(text)
            if event is not None:
                events.append(event)
                kept.append(i)
        return events, rows[kept]

    def _decode(self, text: bytes) -> Any:
        try:
            return self._one.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        try:
            event = self._one.decode(repair(text))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._losses.add(f"event that is no valid JSON ({error})", 1, text)
            return None
        self._losses.add("event mended (kept)", 1, text)
        return event


class EventColumns:
    """Gathers the columns of all events that last.

    Args:
        losses: takes note of what is left out.
        python: keep the frames of Python functions.
    """

    def __init__(self, losses: Losses, python: bool) -> None:
        self._losses = losses
        self._python = python
        self._decode = BlockDecoder(Event, losses)
        self._decode_comm = BlockDecoder(CommEvent, losses)
        self._parts: dict[str, list[Any]] = {}
        self._rows = 0
        self.comm: dict[int, CommArgs] = {}

    def add(self, block: Block) -> None:
        """Take in the events of a block."""
        rows = block.rows
        rows = rows[(rows[:, scan.PH] == ord("X")) & (rows[:, scan.CLASS] != scan.TRACE)]
        if not self._python:
            frames = rows[:, scan.CLASS] == scan.PYTHON
            self._losses.add("python frames (use --python)", int(frames.sum()))
            rows = rows[~frames]
        rows = _with_times(block, rows, self._losses)
        if not len(rows):
            return
        events, rows = self._decode(block, rows)
        self._take_times(rows)
        self._take(events)
        args = [e.args or NO_ARGS for e in events]
        self._take_args(args)
        self._take_comm(block, rows, args)
        self._rows += len(events)

    def _take_times(self, rows: scan.I64) -> None:
        dur = rows[:, scan.DUR]
        self._losses.add("negative duration set to 0 (kept)", int((dur < 0).sum()))
        self._put("start_ns", rows[:, scan.TS].copy())
        self._put("dur_ns", np.maximum(dur, 0))

    def _take(self, events: list[Event]) -> None:
        self._put("name", as_texts([e.name for e in events]))
        category = [e.cat for e in events]
        pid = [e.pid for e in events]
        if not all(category):
            category = [c or f"pid {p}" for c, p in zip(category, pid, strict=True)]
        self._put("category", as_texts(category))
        self._put("pid", as_ints(pid))
        self._put("tid", as_ints([e.tid for e in events]))

    def _take_args(self, args: list[Args]) -> None:
        for name in _INT_FIELDS:
            self._put(name, as_ints(list(map(attrgetter(name), args))))
        old = as_ints(list(map(attrgetter("old_external_id"), args)))
        external = self._parts["external_id"]
        external[-1] = np.where(external[-1] == -1, old, external[-1])
        for name in _TEXT_FIELDS:
            self._put(name, _json_texts(list(map(attrgetter(name), args))))

    def _take_comm(self, block: Block, rows: scan.I64, args: list[Args]) -> None:
        here = [i for i, a in enumerate(args) if a.collective]
        for i in here:
            events, _ = self._decode_comm(block, rows[i : i + 1])
            if events and events[0].args is not None:
                self.comm[self._rows + i] = events[0].args

    def _put(self, name: str, values: Any) -> None:
        self._parts.setdefault(name, []).append(values)

    def finish(self) -> dict[str, Any]:
        """All columns by name, int64 arrays or Arrow dictionary arrays of equal length."""
        return {name: _join(parts) for name, parts in self._parts.items()}


class MemoryColumns:
    """Gathers allocation events."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._decode = BlockDecoder(MemoryEvent, losses)
        self._parts: dict[str, list[I64]] = {}

    def add(self, block: Block) -> None:
        """Take in the instants of a block that tell of memory."""
        rows = _with_times(block, block.rows[block.rows[:, scan.PH] == ord("i")], self._losses)
        if not len(rows):
            return
        events, rows = self._decode(block, rows)
        kept = [i for i, e in enumerate(events) if e.name == "[memory]" and e.args is not None]
        if not kept:
            return
        args = [events[i].args for i in kept]
        self._put("time_ns", rows[kept, scan.TS])
        self._put("thread", as_ints([events[i].tid for i in kept]))
        fields: dict[str, Callable[[MemoryArgs], Any]] = {
            "device_type": lambda a: a.device_type,
            "device": lambda a: a.device,
            "address": lambda a: a.address,
            "bytes": lambda a: a.bytes,
            "allocated_bytes": lambda a: a.allocated,
            "reserved_bytes": lambda a: a.reserved,
        }
        for name, get in fields.items():
            self._put(name, as_ints([get(a) for a in args]))

    def _put(self, name: str, values: I64) -> None:
        self._parts.setdefault(name, []).append(values)

    def finish(self, base_ns: int) -> pa.Table | None:
        """The memory table sorted by time, None if nothing was recorded."""
        if not self._parts:
            return None
        columns = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        columns["time_ns"] += base_ns
        order = np.argsort(columns["time_ns"], kind="stable")
        columns["device_type"] = np.clip(columns["device_type"], -1, 127)
        arrays = [pa.array(columns[c.name][order].astype(c.type.to_pandas_dtype())) for c in MEMORY]
        return pa.table(arrays, names=[c.name for c in MEMORY])


def _with_times(block: Block, rows: scan.I64, losses: Losses) -> scan.I64:
    """The rows whose time could be read."""
    flags = rows[:, scan.FLAGS]
    good = (flags & (scan.BAD_TIME | scan.HAS_TS)) == scan.HAS_TS
    if good.all():
        return rows
    bad = rows[~good]
    start, stop = bad[0, :2].tolist()
    losses.add("event without a readable time", len(bad), block.text[start:stop].tobytes())
    return rows[good]


def _join(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return pa.chunked_array(parts).unify_dictionaries().combine_chunks()
