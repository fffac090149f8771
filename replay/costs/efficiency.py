"""What share of a datasheet peak real kernels reach, where no trace says it.

``matmul_share`` is the highest bf16 (fp8) matmul rate that a search over shapes found, over
the dense peak: stas00/ml-engineering, compute/accelerator, "Maximum Achievable Matmul FLOPS",
version 2 of the benchmark. GPUs it lacks take their nearest relative's share; they are listed
in ``ASSUMED``. Attention shares: FlashAttention-2 (arXiv 2307.08691), section 4.1: forward up to
73 %, backward up to 63 % of the A100's peak; FlashAttention-3 (arXiv 2407.08608): 75 % forward
on H100; FA2 kernels run at 35 % there. CDNA3: 24 %, the Triton kernel of a public trace at
sequence 4096 with heads of 128.
"""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.replay.cluster import Gpu

_MATMUL = {
    "a100-40g": 0.869,
    "a100": 0.869,
    "a800": 0.869,
    "h100": 0.803,
    "h800": 0.803,
    "h200": 0.803,
    "gh200": 0.836,
    "mi300x": 0.514,
    "mi325x": 0.604,
}
_MATMUL_FP8 = {"h100": 0.709, "h800": 0.709, "h200": 0.709, "gh200": 0.776}
_NEAREST = {"v100": "a100", "b200": "h100", "gb200": "h100", "mi355x": "mi325x"}
ASSUMED = tuple(_NEAREST)
"""GPU types whose share is a relative's."""
FALLBACK_SHARE = 0.75
"""For a GPU type of a user's own file."""

_FUSED_ATTENTION = {
    "ampere": (0.73, 0.63),
    "hopper": (0.35, 0.30),
    "volta": (0.3, 0.25),
    "cdna3": (0.24, 0.21),
}


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """How memory-bound kernels of one class use the device's bandwidth.

    Attributes:
        share: of the datasheet bandwidth, for large kernels.
        latency_s: what a kernel takes however little it moves.
        spread: relative uncertainty (one standard deviation of the log error).
    """

    share: float
    latency_s: float
    spread: float


MEMORY_DEFAULTS = {
    "elementwise": MemoryShare(0.80, 3e-6, 0.25),
    "copy": MemoryShare(0.70, 3e-6, 0.35),
    "reduce": MemoryShare(0.60, 4e-6, 0.40),
    "norm": MemoryShare(0.60, 4e-6, 0.40),
    "softmax": MemoryShare(0.70, 4e-6, 0.35),
    "cross_entropy": MemoryShare(0.60, 5e-6, 0.40),
    "embedding": MemoryShare(0.50, 4e-6, 0.50),
    "optimizer": MemoryShare(0.80, 5e-6, 0.30),
    "other": MemoryShare(0.50, 4e-6, 0.70),
}
"""Starting points without a fit: copies on V100 to H100 reach 80-92 % of the datasheet rate
(BabelStream); the classes that reduce, gather or transpose reach less."""


def matmul_share(gpu: Gpu, dtype: str = "bf16") -> float:
    """Share of the dense matmul peak that the best shapes reach.

    Args:
        gpu: GPU type.
        dtype: as in ``Gpu.flops``.
    """
    name = _NEAREST.get(gpu.name, gpu.name)
    if dtype in ("fp8", "int8") and name in _MATMUL_FP8:
        return _MATMUL_FP8[name]
    return _MATMUL.get(name, FALLBACK_SHARE)


def attention_share(gpu: Gpu, *, backward: bool) -> float:
    """Share of the matmul peak that fused attention reaches on long sequences."""
    known = _FUSED_ATTENTION.get(gpu.generation)
    if known:
        return known[1] if backward else known[0]
    share = matmul_share(gpu)
    return share * (0.63 / 0.73) if backward else share
