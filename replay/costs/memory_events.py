"""What a recorded trace says of its own memory: the live set over time, and what held the peak.

Works on the trace set's memory table (one row per allocation or release of the caching
allocator). Blocks that were allocated before the recording are seen only in the totals: they
are the part of the peak that no recorded block explains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foretrace.replay.build.columns import dictionary
from foretrace.replay.graph import I64
from foretrace.traces.enclosing import enclosing_rows
from foretrace.traces.errors import IncompleteTraceError
from foretrace.traces.store import TraceSet

GPU_DEVICE = 1
_NONE = "(before the recording)"


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """Memory of one device over time; arrays of shape ``(events,)`` by time.

    Attributes:
        time_ns: when.
        change_bytes: allocated (positive) or released.
        allocated_bytes: allocated after the event.
        reserved_bytes: reserved from the device after it, -1 unknown.
        event: row of the memory table.
    """

    time_ns: I64
    change_bytes: I64
    allocated_bytes: I64
    reserved_bytes: I64
    event: I64

    @property
    def peak(self) -> int:
        """Position of the highest allocation."""
        return int(np.argmax(self.allocated_bytes))


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """What one rank's device held.

    Attributes:
        peak_bytes: highest allocated.
        peak_ns: when.
        start_bytes: allocated before the first recorded event.
        reserved_peak_bytes: highest reserved, -1 unknown.
        unused_share: reserved but not allocated at the allocated peak, of the reserved;
            NaN unknown. An upper bound of fragmentation.
        growth_bytes: change of the allocated bytes from the first to the last event.
        holders: operator and the bytes it had allocated of what lives at the peak, most first.
    """

    peak_bytes: int
    peak_ns: int
    start_bytes: int
    reserved_peak_bytes: int
    unused_share: float
    growth_bytes: int
    holders: tuple[tuple[str, int], ...]


def read_timeline(trace: TraceSet, rank: int, device: int | None = None) -> MemoryTimeline:
    """The live set of a rank's GPU.

    Args:
        trace: an open trace set.
        rank: which rank.
        device: device index; the one with most events by default.

    Raises:
        IncompleteTraceError: the rank recorded no memory events of a GPU.
    """
    table = trace.memory(rank)
    kind = table["device_type"].to_numpy() if table is not None and len(table) else np.zeros(0)
    mine = np.flatnonzero(kind == GPU_DEVICE)
    if not len(mine):
        raise IncompleteTraceError(
            f"rank {rank}: no memory events of a GPU; record with profile_memory=True"
        )
    index = table["device"].to_numpy()[mine]
    chosen = int(np.bincount(np.maximum(index, 0)).argmax()) if device is None else device
    mine = mine[index == chosen]
    order = mine[np.argsort(table["time_ns"].to_numpy()[mine], kind="stable")]
    change = table["bytes"].to_numpy()[order]
    total = table["allocated_bytes"].to_numpy()[order]
    if len(total) and (total < 0).any():  # old profilers give changes only
        total = np.cumsum(change)
        total = total - min(int(total.min()), 0)
    return MemoryTimeline(
        table["time_ns"].to_numpy()[order], change, total,
        table["reserved_bytes"].to_numpy()[order], order,
    )  # fmt: skip


def live_at(address: NDArray[np.uint64], change: I64, position: int) -> I64:
    """Positions of the allocations that live right after event ``position``.

    Args:
        address: block of each event, in order of time.
        change: bytes, negative for a release.
        position: index into the events.
    """
    seen = np.arange(position + 1)
    order = np.lexsort((seen, address[: position + 1]))
    block = address[: position + 1][order]
    final = np.ones(len(order), bool)
    final[:-1] = block[1:] != block[:-1]
    last = order[final]
    return np.sort(last[change[last] > 0])


def summarise(
    trace: TraceSet, rank: int, device: int | None = None, top: int = 10
) -> MemorySummary:
    """Peak, reserved against allocated, and who holds the peak.

    Args:
        trace: an open trace set.
        rank: which rank.
        device: device index; the busiest by default.
        top: how many holders to name.
    """
    line = read_timeline(trace, rank, device)
    at = line.peak
    table = trace.memory(rank)
    address = table["address"].to_numpy()[line.event]
    living = live_at(address, line.change_bytes, at)
    reserved = int(line.reserved_bytes[at])
    peak = int(line.allocated_bytes[at])
    start = int(line.allocated_bytes[0] - line.change_bytes[0])
    return MemorySummary(
        peak_bytes=peak,
        peak_ns=int(line.time_ns[at]),
        start_bytes=start,
        reserved_peak_bytes=int(line.reserved_bytes.max()),
        unused_share=1 - peak / reserved if reserved > 0 else float("nan"),
        growth_bytes=int(line.allocated_bytes[-1]) - start,
        holders=_holders(trace, rank, table, line, living)[:top],
    )


def _holders(
    trace: TraceSet, rank: int, table: pa.Table, line: MemoryTimeline, living: I64
) -> tuple[tuple[str, int], ...]:
    """Operators by the bytes they allocated of ``living``; what came before as one line."""
    events = trace.events(rank, columns=["kind", "name", "start_ns", "dur_ns", "thread"])
    kinds, words = dictionary(events["kind"])
    host = np.flatnonzero(np.array([w == "host_op" for w in words] or [False])[kinds])
    start = events["start_ns"].to_numpy()
    spans = (start, start + events["dur_ns"].to_numpy(), events["thread"].to_numpy())
    thread = table["thread"].to_numpy()[line.event][living]
    rows = enclosing_rows(host, spans, (line.time_ns[living], thread))
    codes, names = dictionary(events["name"])
    label = [names[codes[r]] if r >= 0 else "(no operator)" for r in rows]
    held: dict[str, int] = {}
    for name, size in zip(label, line.change_bytes[living].tolist(), strict=True):
        held[name] = held.get(name, 0) + size
    before = int(line.allocated_bytes[line.peak]) - sum(held.values())
    if before > 0:
        held[_NONE] = before
    return tuple(sorted(held.items(), key=lambda item: -item[1]))
