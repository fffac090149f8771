"""What is split and how: a model's shape, its layout over ranks, bytes of each kind of tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrace.traces.errors import LayoutError

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """Shape of a decoder-only language model.

    Attributes:
        layers: transformer layers.
        hidden: model width.
        heads: query heads.
        kv_heads: key and value heads.
        ffn: width of the MLP (of one expert with ``experts``).
        vocab: vocabulary, padded.
        gated: the MLP has a gate (three matrices) instead of two.
        tied: embedding and head are one matrix.
        experts: routed experts per layer, 0 for a dense model.
        topk: experts a token goes to.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    gated: bool = True
    tied: bool = False
    experts: int = 0
    topk: int = 1

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention and norms."""
        ratio = self.kv_heads / self.heads
        return int((2 + 2 * ratio) * self.hidden * self.hidden) + 2 * self.hidden

    @property
    def mlp_parameters(self) -> int:
        """Parameters of one layer's MLP, or of one expert."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer, all experts included."""
        experts = max(self.experts, 1)
        router = self.hidden * self.experts
        return self.attention_parameters + experts * self.mlp_parameters + router

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding; the head has as many."""
        return self.vocab * self.hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a model is split over ranks, and how a step is cut into micro-batches.

    Attributes:
        seq: sequence length.
        micro_batch: sequences of one micro-batch.
        accumulation: micro-batches of a step.
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        dp: data-parallel ranks.
        cp: context-parallel ranks.
        ep: expert-parallel ranks (out of ``dp``).
        zero: ZeRO stage 0 to 3; 3 is FSDP with full sharding, 2 FSDP that keeps parameters.
        virtual: model chunks per rank of an interleaved schedule.
        schedule: ``1f1b`` or ``gpipe`` (all forward, then all backward).
        sequence_parallel: norms and residuals are split over ``tp`` too.
        regather: inputs of column-parallel layers are gathered again in the backward pass,
            into one shared buffer, rather than kept whole (only with ``sequence_parallel``).
    """

    seq: int
    micro_batch: int = 1
    accumulation: int = 1
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0
    virtual: int = 1
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    sequence_parallel: bool = True
    regather: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes a parameter and a logit take.

    Attributes:
        param_bytes: working copy.
        grad_bytes: gradients as the backward pass writes them (and as buckets send them).
        accumulate_bytes: separate accumulation buffer, 0 for none.
        optimizer_bytes: master copy and moments (Adam with fp32 master: 4 + 4 + 4).
        activation_bytes: of one activation element.
        logit_bytes: of all live copies of one logit: 2 as computed, 4 as fp32, 4 for the
            softmax; 2 with a fused loss.
        recompute: what the backward pass computes again: nothing, the core of attention
            where scores are materialised, or whole layers.
        flash: attention never materialises scores.
    """

    param_bytes: float = 2
    grad_bytes: float = 2
    accumulate_bytes: float = 4
    optimizer_bytes: float = 12
    activation_bytes: float = 2
    logit_bytes: float = 10
    recompute: Recompute = "none"
    flash: bool = True


@dataclass(frozen=True, slots=True)
class Placement:
    """Which stage holds what.

    Attributes:
        layers: layers of each stage.
        head: stage of the language-model head.
        loss: stage of the loss; the head's stage sends it the logits where they differ.
    """

    layers: tuple[int, ...]
    head: int
    loss: int


def even_layers(layers: int, stages: int) -> list[int]:
    """Layers of each stage, spread evenly; the first stages take the rest."""
    each, rest = divmod(layers, stages)
    return [each + (stage < rest) for stage in range(stages)]


def even_placement(model: Transformer, stages: int) -> Placement:
    """Layers spread evenly, head and loss on the last stage."""
    return Placement(tuple(even_layers(model.layers, stages)), stages - 1, stages - 1)


def stages_by_cost(costs: ArrayLike, stages: int) -> NDArray[np.int64]:
    """Stage of each block where a stage takes blocks until it passes its share of the cost.

    A stage closes with the block that takes the running sum over ``(stage + 1) / stages`` of
    the total, so early stages get more, and blocks after the costly ones open a stage.

    Args:
        costs: cost of each block in order of the forward pass, shape ``(blocks,)``.
        stages: pipeline stages.
    """
    total = np.cumsum(np.asarray(costs, np.float64))
    found, stage = np.zeros(len(total), np.int64), 0
    for block, reached in enumerate(total):
        found[block] = stage
        if stage < stages - 1 and reached > total[-1] * (stage + 1) / stages:
            stage += 1
    return found


def check(model: Transformer, split: Split, placement: Placement) -> None:
    """Refuse layouts that cannot be.

    Raises:
        LayoutError: naming the number that does not fit.
    """
    layers = placement.layers
    if split.pp > model.layers:
        raise LayoutError(f"{split.pp} pipeline stages for {model.layers} layers: use at most that")
    if len(layers) != split.pp or sum(layers) != model.layers:
        raise LayoutError(
            f"layers per stage {list(layers)}: expected {split.pp} numbers that sum to "
            f"{model.layers}"
        )
    if split.zero not in (0, 1, 2, 3):
        raise LayoutError(f"ZeRO stage {split.zero}: expected 0, 1, 2 or 3")
    if model.heads % split.tp:
        raise LayoutError(f"{model.heads} heads do not split over tp={split.tp}")
