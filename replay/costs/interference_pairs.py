"""Kernels of a trace seen both alone and beside communication: what slowdown was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from foretrace.replay.costs.interference import F64, Load
from foretrace.replay.costs.kernel_class import is_matrix
from foretrace.replay.costs.kernel_table import KernelTable, read_kernels
from foretrace.replay.graph import I64

if TYPE_CHECKING:
    from foretrace.traces.store import TraceSet

ALONE_BELOW = 0.02
"""A kernel counts as alone with less than this share of its time under communication."""
OVERLAPPED_ABOVE = 0.9
MIN_ALONE_NS = 10_000
MAX_SPREAD = 0.12
"""Largest relative spread (standard deviation over mean) of a kernel's times alone."""

_BUS_FACTOR = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Bus bandwidth over bytes / time, times ``(n - 1) / n`` (nccl-tests' definition)."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Overlapped kernel instances with a known time alone; arrays of shape ``(n,)``.

    Attributes:
        event: row of the events table.
        identity: number of the kernel's identity (name, grid, block, operand shapes).
        load: what ran beside it.
        measured: time over the median time alone.
    """

    event: I64
    identity: I64
    load: Load
    measured: F64

    def __len__(self) -> int:
        return len(self.event)

    def only(self, mask: np.ndarray) -> Pairs:
        """The instances where ``mask`` holds."""
        load = Load(*(getattr(self.load, f)[mask] for f in Load.__slots__))
        return Pairs(self.event[mask], self.identity[mask], load, self.measured[mask])


def read_pairs(trace: TraceSet, rank: int) -> Pairs:
    """Overlapped and alone instances of one rank's kernels.

    Args:
        trace: an open trace set.
        rank: which rank.
    """
    kernels = read_kernels(trace, rank)
    return find_pairs(kernels, bus_rates(trace, rank, kernels))


def bus_rates(trace: TraceSet, rank: int, kernels: KernelTable) -> F64:
    """Bus bandwidth (bytes/s, waiting included) of each kernel; 0 unless it communicates."""
    columns = ["kind", "work_event", "bytes_in", "bytes_out", "group_size"]
    table = trace.collectives(rank, columns=columns)
    work = table["work_event"].to_numpy()
    size = np.maximum(table["group_size"].to_numpy(), 1).astype(np.float64)
    moved = np.maximum(table["bytes_in"].to_numpy(), table["bytes_out"].to_numpy())
    kinds = table["kind"].to_pylist()
    factor = np.array([_BUS_FACTOR.get(kind, 1.0) for kind in kinds], np.float64)
    members = np.where(np.isin(kinds, list(_BUS_FACTOR)), (size - 1) / size, 1.0)
    total = np.zeros(len(kernels.event))
    if not len(kernels.event):
        return total
    at = np.minimum(np.searchsorted(kernels.event, work), len(kernels.event) - 1)
    known = (kernels.event[at] == work) & (moved > 0)
    np.add.at(total, at[known], (factor * members * moved)[known])
    return total / np.maximum(kernels.dur_ns, 1) * 1e9


def find_pairs(kernels: KernelTable, bus_bytes_per_s: F64) -> Pairs:
    """Instances under communication whose identity was also seen alone.

    Args:
        kernels: kernels of one rank.
        bus_bytes_per_s: bus bandwidth of each kernel that communicates.
    """
    comm = kernels.communicates
    beside = _beside(kernels, comm, bus_bytes_per_s)
    share, channels, rate = beside
    identity = kernels.identity()
    alone = typical_alone(identity, kernels.dur_ns, ~comm & (share < ALONE_BELOW))
    mine = ~comm & (share > OVERLAPPED_ABOVE) & (alone[identity] >= MIN_ALONE_NS)
    rows = np.flatnonzero(mine)
    load = Load(
        alone_ns=alone[identity[rows]],
        blocks=kernels.blocks[rows].astype(np.float64),
        threads=kernels.threads[rows].astype(np.float64),
        channels=channels[rows],
        bus_bytes_per_s=rate[rows],
        matrix=is_matrix(kernels.name.values)[kernels.name.codes[rows]],
    )
    measured = kernels.dur_ns[rows] / np.maximum(load.alone_ns, 1)
    return Pairs(kernels.event[rows], identity[rows], load, measured)


def share_under_communication(kernels: KernelTable) -> F64:
    """Share of each kernel's time during which a communication kernel runs. Shape ``(n,)``."""
    comm = kernels.communicates
    weight = np.ones(int(comm.sum()))
    span = kernels.start_ns, kernels.end_ns
    busy = integral(kernels.start_ns[comm], kernels.end_ns[comm], weight, span, capped=True)
    return busy / np.maximum(kernels.dur_ns, 1)


def typical_alone(identity: I64, dur_ns: I64, alone: np.ndarray) -> F64:
    """Median time alone per identity, 0 where there is none or the spread is too large."""
    typical = np.zeros(int(identity.max(initial=-1)) + 1)
    rows = np.flatnonzero(alone)
    if not len(rows):
        return typical
    order = rows[np.argsort(identity[rows], kind="stable")]
    keys, first = np.unique(identity[order], return_index=True)
    for key, times in zip(keys, np.split(dur_ns[order], first[1:]), strict=True):
        spread = times.std(ddof=1) / times.mean() if len(times) > 1 and times.mean() > 0 else 0.0
        typical[key] = np.median(times) if spread < MAX_SPREAD else 0.0
    return typical


def _beside(kernels: KernelTable, comm: np.ndarray, rate: F64) -> tuple[F64, F64, F64]:
    """Share of each kernel's time under communication; mean channels and rate over it."""
    start, end = kernels.start_ns[comm], kernels.end_ns[comm]
    span = kernels.start_ns, kernels.end_ns
    busy = integral(start, end, np.ones(int(comm.sum())), span, capped=True)
    blocks = integral(start, end, np.maximum(kernels.blocks[comm], 1).astype(float), span)
    moved = integral(start, end, rate[comm], span)
    scale = np.maximum(busy, 1.0)
    return busy / np.maximum(kernels.dur_ns, 1), blocks / scale, moved / scale


def integral(
    start: I64, end: I64, weight: F64, span: tuple[I64, I64], *, capped: bool = False
) -> F64:
    """Integral of the summed weights of running intervals over each span, ns x weight."""
    if not len(start):
        return np.zeros(len(span[0]))
    times = np.concatenate([start, end])
    change = np.concatenate([weight, -weight])
    order = np.argsort(times, kind="stable")
    times = times[order]
    level = np.cumsum(change[order])
    if capped:
        level = np.minimum(np.round(level), 1.0)
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))])

    def until(moment: I64) -> F64:
        at = np.searchsorted(times, moment, side="right") - 1
        inside = np.maximum(at, 0)
        ahead = area[inside] + level[inside] * (moment - times[inside])
        return np.where(at >= 0, ahead, 0.0)

    return until(span[1]) - until(span[0])


def with_identity_offset(pairs: Pairs, offset: int) -> Pairs:
    """The same pairs with their identities moved, so that sets of several ranks can join."""
    return replace(pairs, identity=pairs.identity + offset)


def join(parts: list[Pairs]) -> Pairs:
    """Several ranks' pairs as one; identities of different parts stay apart."""
    moved, offset = [], 0
    for part in parts:
        moved.append(with_identity_offset(part, offset))
        offset += int(part.identity.max(initial=-1)) + 1
    load = Load(*(np.concatenate([getattr(p.load, f) for p in moved]) for f in Load.__slots__))
    return Pairs(
        np.concatenate([p.event for p in moved]),
        np.concatenate([p.identity for p in moved]),
        load,
        np.concatenate([p.measured for p in moved]),
    )
