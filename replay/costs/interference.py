"""How much a kernel slows while a collective runs beside it on the same GPU.

Two shares are taken away. *SMs*: a collective's thread blocks (channels) each hold a whole
multiprocessor for as long as the communication kernel is resident, waiting included.
*Memory bandwidth*: the collective reads and writes device memory while data moves.

Matrix kernels (blocks that fill a multiprocessor's shared memory and registers cannot join a
collective's block there)::

    s = ceil(B / (N - c)) / ceil(B / N) * (1 + epsilon)

Memory kernels (small blocks that partly fit beside it)::

    s = max(1 + beta * (N / (N - c + c * j) - 1), (1 + lam * f * w) / (1 - f))
    f = kappa * r / HBM         w = min(1, L2 / (t * HBM))

with B thread blocks of the kernel, N multiprocessors, c blocks of the collective, j the share
of a multiprocessor's usual residents that still fit beside a collective's block, r the bus
bandwidth that the collective reaches (bytes/s, waiting included), HBM the device's bandwidth,
L2 its cache, t the kernel's time alone: w is the share of the kernel's data that the cache
would have kept. All inputs are arrays of one shape, or scalars.

Sources: that blocks of a collective take whole multiprocessors, and that its memory traffic
is 2-3 times the bus bandwidth (``kappa``): maintainers in NVIDIA/nccl #689, #1428, #1433. The
second wave of a one-wave GEMM beside 24 channels: NVIDIA developer forum 337991, which measured
1.70 where the formula says 2.0. ``lam``, ``beta`` and ``epsilon`` were chosen on public traces of
V100, A100, A800 and H800; the benchmark prints what they do on each.

The collective in turn takes ``1 + phi`` times as long while any member computes beside it.

Validity: 1 <= c < N, f < 0.9, kernels above some 10 µs. Below that, launch and drain effects
that no share explains dominate (slowdowns up to 4 were seen). ``phi`` is from one trace (A800,
groups of two over NVLink: all-gathers of 64 MiB 1.6% slower beside computation, 392 against 784;
reduce-scatters 2.9%, 390 against 385) and may be larger where links are slower than memory is busy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrace.replay.cluster import Gpu

F64 = NDArray[np.float64]
MAX_SHARE = 0.9
"""A collective never takes more of the memory bandwidth than this."""
COLLECTIVE_REGISTERS = 57344
"""Registers that one NCCL block holds of a multiprocessor's 65536 (52-61 K in traces)."""
_SM_REGISTERS = 65536
_SM_THREADS = 2048
_REGISTERS_PER_THREAD = 32  # typical of elementwise, copy and normalisation kernels


@dataclass(frozen=True, slots=True)
class Interference:
    """Constants of the model.

    Attributes:
        kappa: memory traffic of a collective per byte of bus bandwidth.
        lam: extra cost of cached data that the collective's traffic evicts.
        beta: share of the lost multiprocessors that memory kernels feel.
        epsilon: relative slowdown of matrix kernels that keep their waves.
        phi: relative slowdown of a collective beside computation.
        origin: ``default`` or ``fitted``.
    """

    kappa: float = 2.5
    lam: float = 3.3
    beta: float = 0.5
    epsilon: float = 0.03
    phi: float = 0.02
    origin: str = "default"


DEFAULT = Interference()


@dataclass(frozen=True, slots=True)
class Load:
    """What runs beside a kernel and how large the kernel is; arrays of one shape ``(n,)``.

    Attributes:
        alone_ns: the kernel's time alone.
        blocks: its thread blocks, 0 unknown.
        threads: threads of one block, 0 unknown.
        channels: blocks of the collectives beside it, averaged over the overlap.
        bus_bytes_per_s: bus bandwidth they reach, waiting included; 0 unknown.
        matrix: whether the kernel is limited by the matrix units.
    """

    alone_ns: F64
    blocks: F64
    threads: F64
    channels: F64
    bus_bytes_per_s: F64
    matrix: NDArray[np.bool_]


def slowdown(load: Load, gpu: Gpu, model: Interference = DEFAULT) -> F64:
    """Time under communication over time alone, at least 1 per class formula.

    Args:
        load: kernels and what runs beside them.
        gpu: the device.
        model: constants.

    Returns:
        Factor per kernel, shape ``(n,)``; 1 where no channel runs beside it.
    """
    matrix = matrix_slowdown(load, gpu, model)
    memory = memory_slowdown(load, gpu, model)
    return np.where(load.channels > 0, np.where(load.matrix, matrix, memory), 1.0)


def matrix_slowdown(load: Load, gpu: Gpu, model: Interference = DEFAULT) -> F64:
    """Whole waves on the multiprocessors that the collective leaves. Shape ``(n,)``."""
    left = gpu.sms - np.clip(load.channels, 0, gpu.sms - 1)
    blocks = np.maximum(load.blocks, 1)
    waves = np.ceil(blocks / left) / np.ceil(blocks / gpu.sms)
    unknown = load.blocks <= 0
    return np.where(unknown, gpu.sms / left, waves) * (1 + model.epsilon)


def memory_slowdown(load: Load, gpu: Gpu, model: Interference = DEFAULT) -> F64:
    """The worse of lost multiprocessors and lost memory bandwidth. Shape ``(n,)``."""
    channels = np.clip(load.channels, 0, gpu.sms - 1)
    left = gpu.sms - channels * (1 - joining_share(load.threads))
    by_sms = 1 + model.beta * (gpu.sms / left - 1)
    share = np.minimum(model.kappa * load.bus_bytes_per_s / gpu.hbm_bytes_per_s, MAX_SHARE)
    moved = np.maximum(load.alone_ns, 1) * 1e-9 * gpu.hbm_bytes_per_s
    cached = np.minimum(1.0, gpu.l2_bytes / moved)
    by_memory = (1 + model.lam * share * cached) / (1 - share)
    slower: F64 = np.maximum(by_sms, by_memory)
    return slower


def joining_share(threads: ArrayLike) -> F64:
    """Residents of a multiprocessor that fit beside a collective's block, as a share of all.

    Registers decide: what the collective leaves, at 32 a thread.
    """
    size = np.maximum(np.asarray(threads, np.float64), 32.0)
    usual = np.maximum(np.floor(_SM_THREADS / size), 1.0)
    spare = np.floor((_SM_REGISTERS - COLLECTIVE_REGISTERS) / (size * _REGISTERS_PER_THREAD))
    return np.minimum(spare, usual) / usual


def overlapped_time(alone_ns: ArrayLike, window_ns: ArrayLike, factor: ArrayLike) -> F64:
    """Duration of kernels that start with ``window_ns`` of communication still ahead.

    Work goes at ``1 / factor`` inside the window and at full speed after it. Continuous and
    non-decreasing in each argument for ``factor >= 1``.

    Args:
        alone_ns: time without communication.
        window_ns: how long communication still runs beside the kernel.
        factor: slowdown inside the window.
    """
    alone = np.asarray(alone_ns, np.float64)
    window, factor = np.asarray(window_ns, np.float64), np.asarray(factor, np.float64)
    inside = np.minimum(alone * factor, window)
    total: F64 = inside + alone - inside / factor
    return total
