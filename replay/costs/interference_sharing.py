"""What the tasks of a recorded job take from their GPUs, for a replay with rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.replay.cluster import Gpu
from foretrace.replay.costs.device import gpu_of_device
from foretrace.replay.costs.interference import (
    F64,
    MAX_SHARE,
    Interference,
    Load,
    joining_share,
    matrix_slowdown,
    memory_slowdown,
)
from foretrace.replay.costs.interference_pairs import (
    ALONE_BELOW,
    Pairs,
    bus_rates,
    find_pairs,
    share_under_communication,
    typical_alone,
)
from foretrace.replay.costs.kernel_class import is_matrix
from foretrace.replay.costs.kernel_table import KernelTable, read_kernels
from foretrace.replay.graph import I64, JobGraph, TaskKind
from foretrace.replay.rates import Sharing, devices
from foretrace.traces.store import TraceSet


@dataclass(frozen=True, slots=True)
class RankKernels:
    """Kernels of one rank and what the model needs to know of them; arrays of shape ``(k,)``.

    Attributes:
        gpu: the rank's device.
        kernels: the kernels, by event.
        alone_ns: time alone: the median of the same kernel seen alone, else its own time.
        moved: bytes that a communication kernel moves over the bus, 0 unknown.
        pairs: kernels seen both alone and beside communication.
    """

    gpu: Gpu
    kernels: KernelTable
    alone_ns: F64
    moved: F64
    pairs: Pairs


def read_rank_kernels(trace: TraceSet, ranks: Sequence[int]) -> dict[int, RankKernels]:
    """Kernels of some ranks.

    Raises:
        LayoutError: a rank's device is of no known type.
    """
    return {rank: _read(trace, rank) for rank in ranks}


def _read(trace: TraceSet, rank: int) -> RankKernels:
    gpu = gpu_of_device(trace.info(rank).device_name)
    kernels = read_kernels(trace, rank)
    rate = bus_rates(trace, rank, kernels)
    identity = kernels.identity()
    alone = ~kernels.communicates & (share_under_communication(kernels) < ALONE_BELOW)
    typical = typical_alone(identity, kernels.dur_ns, alone)[identity]
    return RankKernels(
        gpu,
        kernels,
        np.where(typical > 0, typical, kernels.dur_ns),
        rate * kernels.dur_ns * 1e-9,
        find_pairs(kernels, rate),
    )


def sharing_of(graph: JobGraph, found: dict[int, RankKernels], model: Interference) -> Sharing:
    """What each task of a recorded job takes and feels.

    The rate of a communication operation is its bytes over its own execution, waiting excluded.

    Args:
        graph: the job as recorded.
        found: kernels of its ranks.
        model: constants.
    """
    n = len(graph)
    row, evicted = np.full(n, -1, np.int32), np.full(n, -1.0)
    holds, moves = np.zeros(n, np.int64), np.zeros(n)
    on_device = devices(graph) >= 0
    levels = max((rank.gpu.sms for rank in found.values()), default=1)
    tables: list[F64] = []
    rows = 0
    for number, rank in found.items():
        mine = np.flatnonzero(on_device & (graph.rank == number))
        tasks, at = _known(graph, mine, TaskKind.KERNEL, rank.kernels.event)
        table, of_kernel = slowdown_table(rank, at, model, levels)
        row[tasks] = rows + of_kernel
        tables.append(table)
        rows += len(table)
        matrix = is_matrix(rank.kernels.name.values)[rank.kernels.name.codes[at]]
        evicted[tasks] = np.where(matrix, -1.0, model.lam * _cached(rank, at))
        tasks, at = _known(graph, mine, TaskKind.COMM, rank.kernels.event)
        holds[tasks] = np.maximum(rank.kernels.blocks[at], 1)
        per_s = rank.moved[at] / np.maximum(graph.dur_ns[tasks], 1) * 1e9
        moves[tasks] = np.minimum(model.kappa * per_s / rank.gpu.hbm_bytes_per_s, MAX_SHARE)
    table = np.concatenate([*tables, np.ones((1, levels))])
    disturbed = np.where((graph.kind == TaskKind.COMM) & on_device, 1 + model.phi, 1.0)
    return Sharing(row, table, evicted, holds, moves, disturbed)


def slowdown_table(rank: RankKernels, at: I64, model: Interference, levels: int) -> tuple[F64, I64]:
    """Slowdown of kernels by held multiprocessors, memory bandwidth left out.

    Args:
        rank: kernels of a rank.
        at: which of them, shape ``(k,)``.
        model: constants.
        levels: 0 to this many held multiprocessors, exclusive.

    Returns:
        Table of shape ``(rows, levels)``, and the row of each kernel, shape ``(k,)``.
    """
    kernels = rank.kernels
    matrix = is_matrix(kernels.name.values)[kernels.name.codes[at]]
    joining = np.where(matrix, 0.0, joining_share(kernels.threads[at]))
    blocks = np.where(matrix, kernels.blocks[at], 0)
    what = np.stack([matrix, blocks, joining], axis=1).astype(np.float64)
    _, first, number = np.unique(what, axis=0, return_index=True, return_inverse=True)
    held = np.broadcast_to(np.arange(levels, dtype=np.float64), (len(first), levels))

    def column(values: np.ndarray) -> F64:
        return np.broadcast_to(values[at[first], None].astype(np.float64), held.shape)

    load = Load(
        column(rank.alone_ns), column(kernels.blocks), column(kernels.threads), held,
        np.zeros(held.shape), np.broadcast_to(matrix[first, None], held.shape),
    )  # fmt: skip
    slow = np.where(
        load.matrix,
        matrix_slowdown(load, rank.gpu, model),
        memory_slowdown(load, rank.gpu, model),
    )
    slow = np.maximum(slow, 1.0)
    slow[:, 0] = 1.0
    return slow, number.reshape(-1).astype(np.int64)


def _cached(rank: RankKernels, at: I64) -> F64:
    """Share of each kernel's data that the cache would have kept, shape ``(k,)``."""
    moved = np.maximum(rank.alone_ns[at], 1) * 1e-9 * rank.gpu.hbm_bytes_per_s
    return np.minimum(1.0, rank.gpu.l2_bytes / moved)


def _known(graph: JobGraph, tasks: I64, kind: TaskKind, event: I64) -> tuple[I64, I64]:
    """Tasks of one kind that stand for a known kernel, and which."""
    tasks = tasks[graph.kind[tasks] == kind]
    if not len(event):
        return tasks[:0], tasks[:0]
    at = np.minimum(np.searchsorted(event, graph.event[tasks]), len(event) - 1)
    found = event[at] == graph.event[tasks]
    return tasks[found], at[found]
