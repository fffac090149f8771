"""Operations of one rank on one micro-batch, and the blocks that they make up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.costs.kernel_class import KERNEL_CLASSES
from foretrace.replay.costs.kernel_work import Work
from foretrace.replay.graph import I8, I64
from foretrace.replay.layout import GROUP_KINDS
from foretrace.replay.schedule.order import Phase
from foretrace.traces.schema import COLLECTIVE_KINDS

NONE = -1
EAGER = {"norm": 9.0}
"""Bytes of a kind of kernel in steps over those in one. An RMS norm of 16-bit values in PyTorch's
own steps, bytes an element: to fp32 2 + 4, square 4 + 4, mean 4, scale 4 + 4, to 16 bits 4 + 2,
weight 2 + 2; in one kernel 2 + 2."""
EAGER_ROTATION = 5.0
"""To fp32 2 + 4, complex product 4 + 4, to 16 bits 4 + 2 bytes an element; in one kernel 2 + 2."""
EAGER_ACTIVATION = 5 / 3
"""Gate through its function 2 + 2, product 4 + 2 bytes an element; in one kernel 4 + 2."""


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations in the order in which a rank runs them; arrays of shape ``(ops,)``.

    A backward pass runs the rows of ``Phase.INPUT`` and ``Phase.WEIGHT`` in the order of the
    rows; a schedule that puts weights off runs them apart.

    Attributes:
        name: what it is, for people.
        phase: ``FORWARD``, ``INPUT`` or ``WEIGHT``.
        work: what a computation has to do; empty rows for communication.
        collective: index into ``COLLECTIVE_KINDS``, -1 for computation.
        group: index into ``GROUP_KINDS`` of the ranks that take part, -1 for computation.
        bytes: largest buffer of a rank, as nccl-tests counts, 0 for computation.
        beside: it runs together with the operation before it.
        measured_ns: duration where it was measured, waiting excluded, else -1.
    """

    name: tuple[str, ...]
    phase: I8
    work: Work
    collective: I8
    group: I8
    bytes: I64
    beside: NDArray[np.bool_]
    measured_ns: I64

    def __len__(self) -> int:
        return len(self.phase)


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the model that several layers may share, such as a transformer layer.

    Attributes:
        name: such as ``layer``, ``mixture``, ``embedding``, ``head``.
        parameters: parameters that a rank holds (split over ``tp``), experts excluded.
        expert_parameters: parameters of experts that a rank holds.
        operations: forward and backward of one micro-batch.
    """

    name: str
    parameters: int
    expert_parameters: int
    operations: Operations


@dataclass(frozen=True, slots=True)
class Workload:
    """One training step under one layout.

    Attributes:
        name: of the model.
        blocks: the different blocks.
        sequence: block of each place of the model in the order of the forward pass.
        places: number of leading blocks (embedding) and trailing ones (head) that are no layer.
        boundary_bytes: activations that go from a stage to the next for one micro-batch.
        flops: floating-point operations that the model needs for one step, recomputation
            excluded (what MFU counts).
        tokens: tokens of one step.
        gpu: GPU type on which durations were measured, "" if none were.
    """

    name: str
    blocks: tuple[Block, ...]
    sequence: tuple[int, ...]
    places: tuple[int, int]
    boundary_bytes: int
    flops: float
    tokens: int
    gpu: str = ""


class Rows:
    """Collects operations in order."""

    def __init__(self, dtype: str, fused: bool = True) -> None:
        self.dtype, self.fused = dtype, fused
        self._rows: list[tuple[object, ...]] = []

    def product(  # noqa: PLR0917
        self, name: str, phase: Phase, m: float, n: float, k: float, batch: float = 1.0,
        beside: bool = False, wide: bool = False, cast: bool = False,
    ) -> None:  # fmt: skip
        """A matrix product ``(m, k) x (k, n)``, ``batch`` times.

        Args:
            name: what it is.
            phase: its phase.
            m: rows of the result.
            n: columns of the result.
            k: summed dimension.
            batch: independent products.
            beside: it runs together with the operation before it.
            wide: it keeps 16-bit operands where others have 8 bits.
            cast: with 8-bit operands a kernel of its own rounds the left one and turns it round for
                the gradient of weights: two bytes read, two written an element.
        """
        dtype = "bf16" if wide and self.dtype == "fp8" else self.dtype
        moved = batch * (m * k + k * n + m * n) * (1 if dtype == "fp8" else 2)
        cost = (2 * batch * m * n * k, moved)
        rounds = cast and dtype == "fp8"
        if rounds and not beside:
            self.memory(f"{name} cast", phase, "elementwise", batch * m * k * 4)
        self._compute(name, phase, "gemm", (batch, m, n, k), cost, beside=beside, dtype=dtype)
        if rounds and beside:  # what stands before it has to stay next to it
            self.memory(f"{name} cast", phase, "elementwise", batch * m * k * 4)

    def attention(
        self, name: str, phase: Phase, sides: tuple[float, float, float, float], backward: bool,
        beside: bool = False,
    ) -> None:  # fmt: skip
        """Causal attention; ``sides`` as in ``Work``: sequences x heads, queries, keys, width."""
        b, q, kv, d = sides
        flops = 4 * b * q * kv * d * 0.5 * (2.5 if backward else 1.0)
        moved = b * d * (2 * q + 2 * kv) * 2
        self._compute(name, phase, "attention", sides, (flops, moved), backward, beside)

    def memory(self, name: str, phase: Phase, kind: str, moved: float) -> None:
        """A computation limited by the bytes that it reads and writes."""
        if not self.fused:
            moved *= EAGER.get(kind, 1.0)
        self._compute(name, phase, kind, (0.0, 0.0, 0.0, 0.0), (0.0, moved))

    def communicate(
        self, name: str, phase: Phase, kind: str, group: str, size: float, beside: bool = False
    ) -> None:
        """A collective or transfer of ``size`` bytes."""
        codes = (COLLECTIVE_KINDS.index(kind), GROUP_KINDS.index(group), round(size))
        work = (KERNEL_CLASSES.index("other"), "", (0.0,) * 4, False, 0.0, 0.0)
        self._rows.append((name, phase, *work, *codes, beside))

    def _compute(  # noqa: PLR0917
        self, name: str, phase: Phase, kind: str, sides: tuple[float, ...],
        cost: tuple[float, float], backward: bool = False, beside: bool = False,
        dtype: str = "bf16",
    ) -> None:  # fmt: skip
        work = (KERNEL_CLASSES.index(kind), dtype, sides, backward, *cost)
        self._rows.append((name, phase, *work, NONE, NONE, 0, beside))

    def table(self) -> Operations:
        """What was collected."""
        columns = list(zip(*self._rows, strict=True)) or [()] * 12
        names, phase, kind, dtype, sides, backward, flops, moved, *rest = columns
        collective, group, size, beside = rest
        kinds = np.array(kind, np.int8)
        attention = kinds == KERNEL_CLASSES.index("attention")
        return Operations(
            name=tuple(str(name) for name in names),
            phase=np.array(phase, np.int8),
            work=Work(
                kind=kinds,
                dtype=np.array(dtype, np.str_),
                sides=np.array(sides, np.float64).reshape(-1, 4),
                causal=attention,
                backward=np.array(backward, np.bool_),
                flops=np.array(flops, np.float64),
                bytes=np.array(moved, np.float64),
            ),
            collective=np.array(collective, np.int8),
            group=np.array(group, np.int8),
            bytes=np.array(size, np.int64),
            beside=np.array(beside, np.bool_),
            measured_ns=np.full(len(kinds), NONE, np.int64),
        )
