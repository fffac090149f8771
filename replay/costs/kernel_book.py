"""What timed kernels teach about one GPU: times per shape, and a curve per class and type.

A book is filled from traces whose operators carry shapes. Kernels under communication are
left out: their slowdown is another model's (``interference``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Gpu
from foretrace.replay.costs.efficiency import MEMORY_DEFAULTS, MemoryShare
from foretrace.replay.costs.gemm import GemmModel
from foretrace.replay.costs.gemm_fit import fit_gemm
from foretrace.replay.costs.interference_pairs import ALONE_BELOW, share_under_communication
from foretrace.replay.costs.kernel_class import KERNEL_CLASSES
from foretrace.replay.costs.kernel_table import KernelTable
from foretrace.replay.costs.kernel_work import Work, work_of
from foretrace.replay.costs.roofline import fit_memory
from foretrace.replay.graph import I64

F64 = NDArray[np.float64]
GEMM = KERNEL_CLASSES.index("gemm")
ATTENTION = KERNEL_CLASSES.index("attention")


@dataclass(frozen=True, slots=True)
class Samples:
    """Timed kernels, one row per (kernel name, operator, shapes); arrays of shape ``(n,)``.

    Attributes:
        name: kernel name of each row.
        work: what it does.
        seconds: median time alone.
        spread: relative spread of its times (median absolute deviation, scaled to sigma).
        count: instances.
    """

    name: tuple[str, ...]
    work: Work
    seconds: F64
    spread: F64
    count: I64

    def __len__(self) -> int:
        return len(self.name)

    def only(self, mask: NDArray[np.bool_]) -> Samples:
        """The rows where ``mask`` holds."""
        names = tuple(n for n, keep in zip(self.name, mask, strict=True) if keep)
        return Samples(
            names, self.work.only(mask), self.seconds[mask], self.spread[mask], self.count[mask]
        )


@dataclass(frozen=True, slots=True)
class Book:
    """Everything known of one GPU.

    Attributes:
        gpu: the device the samples ran on.
        samples: timed kernels.
        gemm: fitted constants per operand type.
        memory: fitted constants per memory-bound class.
    """

    gpu: Gpu
    samples: Samples
    gemm: dict[str, GemmModel] = field(default_factory=dict)
    memory: dict[str, MemoryShare] = field(default_factory=dict)


def samples_of(kernels: KernelTable) -> Samples:
    """Distinct timed kernels of a rank, those that ran alone."""
    share = share_under_communication(kernels)
    alone = np.flatnonzero(~kernels.communicates & (share < ALONE_BELOW) & (kernels.dur_ns > 0))
    work = work_of(kernels)
    columns = (
        kernels.name.codes,
        kernels.operator.codes,
        kernels.shapes.codes,
        kernels.dtypes.codes,
    )
    stacked = np.stack([np.asarray(c, np.int64)[alone] for c in columns], axis=1)
    _, first, group = np.unique(stacked, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    edges = np.cumsum(np.bincount(group.reshape(-1), minlength=len(first)))[:-1]
    times = np.split(kernels.dur_ns[alone][order] * 1e-9, edges) if len(first) else []
    middle = np.array([np.median(t) for t in times])
    off = [np.median(np.abs(t - m)) / m * 1.4826 for t, m in zip(times, middle, strict=True)]
    rows = alone[first]
    return Samples(
        name=tuple(kernels.name.text(r) for r in rows),
        work=work.only(rows),
        seconds=middle,
        spread=np.array(off),
        count=np.array([len(t) for t in times], np.int64),
    )


def make_book(gpu: Gpu, samples: Samples) -> Book:
    """Fit a curve per class and type."""
    gemm = {
        dtype: fit_gemm(*products(samples, dtype), gpu, dtype)
        for dtype in sorted(set(samples.work.dtype[samples.work.kind == GEMM].tolist()) - {""})
        if len(products(samples, dtype)[0])
    }
    memory = {}
    for name, prior in MEMORY_DEFAULTS.items():
        mine = (samples.work.kind == KERNEL_CLASSES.index(name)) & (samples.work.bytes > 0)
        if mine.any():
            memory[name] = fit_memory(samples.work.bytes[mine], samples.seconds[mine], gpu, prior)
    return Book(gpu, samples, gemm, memory)


def products(samples: Samples, dtype: str) -> tuple[F64, F64]:
    """Distinct matrix products of one type: (batch, m, n, k), and their median seconds."""
    work = samples.work
    mine = (work.kind == GEMM) & (work.dtype == dtype) & (work.sides[:, 1] > 0)
    if not mine.any():
        return np.zeros((0, 4)), np.zeros(0)
    sides, back = np.unique(work.sides[mine], axis=0, return_inverse=True)
    group = back.reshape(-1)
    times = samples.seconds[mine]
    middle = np.array([np.median(times[group == i]) for i in range(len(sides))])
    return sides, middle


def join_samples(parts: Iterable[Samples]) -> Samples:
    """Samples of several ranks or traces of one GPU type as one."""
    every = list(parts)
    work = Work(*(np.concatenate([getattr(p.work, f) for p in every]) for f in Work.__slots__))
    return Samples(
        tuple(n for p in every for n in p.name),
        work,
        np.concatenate([p.seconds for p in every]),
        np.concatenate([p.spread for p in every]),
        np.concatenate([p.count for p in every]),
    )
