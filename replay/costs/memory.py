"""Device memory of a training step: what each pipeline stage holds at its peak.

For a rank of a stage that holds P parameters (its tensor-parallel share), in bytes::

    parameters  param_bytes * P                       / dp with ZeRO-3
    gradients   (grad_bytes + accumulate_bytes) * P   / dp with ZeRO-2 and up (accumulation)
    optimizer   optimizer_bytes * P                   / dp with ZeRO-1 and up
    activations in_flight * layers * tokens * per_token_layer(...)
    logits      tokens * vocab / tp * logit_bytes     on the stage of the language-model head
    buffers     gathered sequences, gathered parameters of two layers with ZeRO-3
    overhead    (fragmentation - 1) * activations + base

``in_flight`` micro-batches: ``min(pp - stage, accumulation)`` for 1F1B (see ``in_flight``).

Sources: ZeRO stages, Rajbhandari et al. (arXiv 1910.02054); activation terms, Korthikanti
et al. (arXiv 2205.05198), rewritten for flash attention, RMS norms and gated MLPs by what the
autograd of a Llama layer saves; ``fragmentation`` and ``base`` are fitted to one half of public
runs of 1 to 80 B Llama models on H100 (the benchmark has the split and the other half).

Validity: reserved memory of the caching allocator, steady state, 16-bit compute. Not
included: what lives outside of the allocator (``RESERVE_BYTES``), temporaries of the optimizer
step, memory held back by streams (tensors recorded on a communication stream return late).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Gpu
from foretrace.replay.costs.memory_layout import (
    Placement,
    Precision,
    Split,
    Transformer,
    check,
    even_placement,
)

F64 = NDArray[np.float64]
GIB = 2.0**30
FRAGMENTATION = 1.115
"""Reserved over needed bytes of activations."""
BASE_BYTES = 0.25 * GIB
"""Allocator bytes of a rank that grow with nothing: cuBLAS workspaces, masks, small tensors."""
RESERVE_BYTES = 3.0 * GIB
"""Device memory that the allocator never gets: CUDA context and kernels (some 0.5 GiB) and NCCL
buffers of the usual communicators (some 0.5 to 2.5 GiB). Documented, not tuned."""

MARGIN = 0.045
"""Median relative error of the peak on the half of the public runs that the constants were
fitted to: a verdict asks for that much more than the predicted peak."""

_VISIBLE_MIB = {
    "v100": 32510, "a100-40g": 40536, "a100": 81920, "a800": 81920, "h100": 81559, "h800": 81559,
    "h200": 143771, "gh200": 97871, "b200": 183359, "gb200": 189471, "mi300x": 196592,
}  # fmt: skip
"""Total memory as the driver's tools print it, MiB; datasheets round."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes per pipeline stage; arrays of shape ``(stages,)``."""

    parameters: F64
    gradients: F64
    optimizer: F64
    activations: F64
    logits: F64
    buffers: F64
    overhead: F64

    @property
    def peak(self) -> F64:
        """All terms together, as the allocator reserves it."""
        terms = [getattr(self, name) for name in StageMemory.__slots__]
        return np.asarray(np.sum(terms, axis=0), np.float64)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a job fits.

    Attributes:
        fits: the peak and its margin are within the limit on every stage.
        stage: the stage with the highest peak.
        peak_bytes: its peak.
        limit_bytes: device memory less the reserve.
    """

    fits: bool
    stage: int
    peak_bytes: float
    limit_bytes: float


def stage_memory(
    model: Transformer, split: Split, precision: Precision | None = None,
    placement: Placement | None = None,
) -> StageMemory:  # fmt: skip
    """Peak memory of one rank of every stage.

    Args:
        model: its shape.
        split: how it is split.
        precision: bytes of each kind; mixed precision with fp32 accumulation by default.
        placement: which stage holds what; spread evenly by default.

    Raises:
        LayoutError: a split that does not divide the model.
    """
    bytes_of = precision or Precision()
    where = placement or even_placement(model, split.pp)
    check(model, split, where)
    layers = np.asarray(where.layers, np.float64)
    own = stage_parameters(model, split, layers, where.head)
    tokens = split.seq * split.micro_batch / split.cp
    kept = layer_bytes_per_token(model, split, bytes_of) * tokens * layers
    activations = in_flight(split) * kept + _recomputed(model, split, bytes_of, tokens)
    activations += (
        gathered_held(split) * gathered_bytes_per_token(model, split, bytes_of) * tokens * layers
    )
    shard = [split.dp if split.zero >= stage else 1 for stage in (1, 2, 3)]
    gradients = bytes_of.grad_bytes / shard[2] + bytes_of.accumulate_bytes / shard[1]
    return StageMemory(
        parameters=bytes_of.param_bytes * own / shard[2],
        gradients=gradients * own,
        optimizer=bytes_of.optimizer_bytes * own / shard[0],
        activations=activations,
        logits=_logits(model, split, bytes_of, where),
        buffers=np.full(split.pp, _buffers(model, split, bytes_of, tokens)),
        overhead=(FRAGMENTATION - 1) * activations + BASE_BYTES,
    )


def _logits(model: Transformer, split: Split, precision: Precision, where: Placement) -> F64:
    """Logits on the stage of the loss, and as computed on the head's where that differs."""
    count = split.seq * split.micro_batch / split.cp * model.vocab / split.tp
    logits = np.zeros(split.pp)
    logits[where.loss] = count * precision.logit_bytes
    if where.head != where.loss:
        logits[where.head] = count * precision.activation_bytes * in_flight(split)[where.head]
    return logits


def verdict(
    memory: StageMemory, device_bytes: float, reserve_bytes: float = RESERVE_BYTES,
    margin: float = MARGIN,
) -> Verdict:  # fmt: skip
    """Does every stage fit the device?

    Args:
        memory: per stage.
        device_bytes: total device memory (``visible_bytes``).
        reserve_bytes: what the allocator cannot have.
        margin: relative room asked for above the predicted peak.
    """
    peak = memory.peak
    stage = int(np.argmax(peak))
    limit = device_bytes - reserve_bytes
    return Verdict(bool(peak[stage] * (1 + margin) <= limit), stage, float(peak[stage]), limit)


def visible_bytes(gpu: Gpu) -> float:
    """Total memory of a GPU as its driver reports it; the datasheet's where unknown."""
    mib = _VISIBLE_MIB.get(gpu.name)
    return mib * 2.0**20 if mib else gpu.hbm_bytes


def stage_parameters(model: Transformer, split: Split, layers: F64, head: int) -> F64:
    """Parameters that one rank of each stage holds, shape ``(stages,)``."""
    experts = model.experts * model.mlp_parameters / (split.tp * split.ep) if model.experts else 0.0
    routed = model.experts * model.mlp_parameters if model.experts else 0
    per_layer = (model.layer_parameters - routed) / split.tp + experts
    own = layers * per_layer
    own[0] += model.embedding_parameters / split.tp
    if not (model.tied and head == 0):
        own[head] += model.embedding_parameters / split.tp
    return own


def in_flight(split: Split) -> F64:
    """Micro-batches whose activations each stage holds at its peak, shape ``(stages,)``.

    Interleaved (Narayanan et al., arXiv 2104.04473): stage s warms up with
    ``2 (pp - s - 1) + (virtual - 1) pp`` chunks and runs one more; a chunk is a
    ``virtual``-th of the stage's layers.
    """
    stage = np.arange(split.pp)
    if split.schedule == "gpipe":
        return np.full(split.pp, float(split.accumulation))
    if split.virtual > 1:
        chunks = 2 * (split.pp - stage - 1) + (split.virtual - 1) * split.pp + 1
        return np.minimum(chunks / split.virtual, split.accumulation)
    return np.minimum(split.pp - stage, split.accumulation).astype(np.float64)


def layer_bytes_per_token(model: Transformer, split: Split, precision: Precision) -> float:
    """Activation bytes that one layer keeps per token of a micro-batch.

    In elements per token: the residual before attention and before the MLP (2h) and both
    norms' outputs (2h), queries and output (2h), keys and values (2h kv/heads), and gate, up,
    activation and product of the MLP (4 ffn; 2 ffn without a gate). One more h where the
    batch has several sequences: attention's output is transposed for the projection.
    """
    h, size = model.hidden, precision.activation_bytes
    whole = split.tp if split.sequence_parallel else 1
    if precision.recompute == "full":
        return size * h / whole
    kv = model.kv_heads / model.heads
    several = h if split.micro_batch > 1 else 0
    experts = model.topk if model.experts else 1
    mlp = experts * (4 if model.gated else 2) * model.ffn
    inner = (2 * h + 2 * h * kv + several + mlp) / split.tp
    scores = 0.0
    if not precision.flash and precision.recompute == "none":
        scores = 2.5 * model.heads * split.seq / split.tp  # 5 a s bytes: scores, softmax, mask
    return size * (4 * h / whole + inner + scores)


def gathered_held(split: Split) -> F64:
    """Micro-batches whose gathered sequences are alive at the peak, shape ``(stages,)``.

    A release that gathers the inputs of column-parallel layers anew has none. One that does not
    keeps those of its one micro-batch; in a pipeline, all but two of the micro-batches in
    flight (found on the fit half of the public runs, see docs/cost-memory.md).
    """
    if split.regather or not split.sequence_parallel:
        return np.zeros(split.pp)
    return np.ones(1) if split.pp == 1 else np.maximum(in_flight(split) - 2, 0.0)


def gathered_bytes_per_token(model: Transformer, split: Split, precision: Precision) -> float:
    """What both gathered inputs of a layer take beyond this rank's own part of them."""
    if precision.recompute == "full":
        return 0.0
    return precision.activation_bytes * 2 * model.hidden * (1 - 1 / split.tp)


def _recomputed(model: Transformer, split: Split, precision: Precision, tokens: float) -> float:
    """With full recomputation, one layer is whole again during the backward pass."""
    if precision.recompute != "full":
        return 0.0
    kept = Precision(activation_bytes=precision.activation_bytes, flash=precision.flash)
    return layer_bytes_per_token(model, split, kept) * tokens


def _buffers(model: Transformer, split: Split, precision: Precision, tokens: float) -> float:
    gathered = 0.0
    if split.tp > 1 and split.sequence_parallel and (split.regather or split.pp > 1):
        gathered = 2 * tokens * model.hidden * precision.activation_bytes
    if split.zero == 3:
        gathered += 2 * model.layer_parameters / (split.tp * split.ep) * precision.param_bytes
    return gathered
