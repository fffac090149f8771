"""How a training job is split over ranks, and which ranks talk to each other.

Ranks are numbered as Megatron-LM does by default: tensor-parallel ranks are neighbours, then
context-, data- and pipeline-parallel ones::

    rank = ((pp * dp_size + dp) * cp_size + cp) * tp_size + tp

The experts of a mixture model have a split of their own over the same ranks of a stage
(parallel folding): ``etp`` neighbours share an expert, then come ``ep`` and expert-data ranks.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from foretrace.replay.costs.memory_layout import even_layers
from foretrace.replay.graph import I64
from foretrace.replay.model import Model
from foretrace.traces.errors import LayoutError

GROUP_KINDS = ("tp", "cp", "dp", "pp", "ep", "etp", "edp", "shard", "replica")
"""Groups of ranks: ``dp`` holds the ranks with the same parameters, context-parallel ones
included; ``shard`` those that share one copy under ZeRO, ``replica`` the copies of a shard."""


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A layout, and the options that change what is sent or kept.

    Attributes:
        seq: sequence length, tokens.
        global_batch: sequences of a step.
        micro_batch: sequences of a micro-batch.
        tp: tensor-parallel ranks.
        cp: context-parallel ranks.
        pp: pipeline ranks.
        dp: data-parallel ranks.
        ep: expert-parallel ranks.
        etp: tensor-parallel ranks of an expert.
        virtual: stages of a pipeline rank.
        schedule: name of a pipeline schedule, or a CSV file.
        layers: layers of each stage in the order of the model, empty to spread them evenly.
        zero: ZeRO stage; 3 is FSDP with full sharding.
        shard: ranks that share one copy of the sharded state, 0 for all of ``dp * cp`` (HSDP).
        sequence_parallel: norms and residuals are split over ``tp`` too.
        context: how attention gets the whole sequence under ``cp``.
        flash: attention never writes its scores to memory.
        fused: norms, rotation and activation are one kernel each (by hand or by a compiler); else
            each of their steps is one, in fp32 where PyTorch's own code goes there.
        recompute: what the backward pass computes again: ``selective`` attention alone,
            ``operations`` all but attention and every other matrix product (as torchtitan does).
        precision: operand type of matrix products, as in ``Gpu.flops``.
        accumulate_bytes: of one gradient as it is reduced.
        overlap_gradients: gradients are reduced while the backward pass runs.
        overlap_parameters: parameters are gathered while the forward pass runs.
        overlap_tensor: tensor-parallel communication hides behind its matrix products.
        overlap_pipeline: transfers between stages run beside computation.
        bucket_bytes: gradients reduced at once, 0 for one bucket a layer.
        capacity: tokens an expert takes over an even share, 0 for as many as come.
    """

    seq: int
    global_batch: int
    micro_batch: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    virtual: int = 1
    schedule: str = "1f1b"
    layers: tuple[int, ...] = ()
    zero: Literal[0, 1, 2, 3] = 1
    shard: int = 0
    sequence_parallel: bool = True
    context: Literal["ring", "ulysses"] = "ring"
    flash: bool = True
    fused: bool = True
    recompute: Literal["none", "selective", "operations", "full"] = "none"
    precision: str = "bf16"
    accumulate_bytes: int = 4
    overlap_gradients: bool = True
    overlap_parameters: bool = True
    overlap_tensor: bool = False
    overlap_pipeline: bool = True
    bucket_bytes: int = 0
    capacity: float = 0.0

    @property
    def gpus(self) -> int:
        """Ranks of the job."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline rank's stages."""
        return self.tp * self.cp * self.dp

    @property
    def edp(self) -> int:
        """Ranks that hold the same experts."""
        return self.stage_ranks // (self.ep * self.etp)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step on each rank."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def stages(self) -> int:
        """Parts that the model is cut into."""
        two = self.virtual == 1 and self.schedule == "zbv"
        return self.pp * (2 if two else self.virtual)

    @property
    def shards(self) -> int:
        """Ranks that share one copy of the sharded state."""
        return self.shard or self.dp * self.cp

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank of attention."""
        return self.micro_batch * self.seq // self.cp


def stage_layers(model: Model, layout: Layout) -> tuple[int, ...]:
    """Layers of each stage, shape ``(stages,)``."""
    return layout.layers or tuple(even_layers(model.layers, layout.stages))


def check_layout(model: Model, layout: Layout) -> None:
    """Refuse layouts that cannot be.

    Raises:
        LayoutError: naming the number that does not fit, and what would.
    """
    for key in (
        "seq",
        "global_batch",
        "micro_batch",
        "tp",
        "cp",
        "pp",
        "dp",
        "ep",
        "etp",
        "virtual",
    ):
        if getattr(layout, key) < 1:
            raise LayoutError(f"{key}={getattr(layout, key)}: must be at least 1")
    _divides("heads", model.heads, "tp", layout.tp)
    if model.kv % layout.tp and layout.tp % model.kv:
        raise LayoutError(
            f"{model.kv} key-value heads and tp={layout.tp}: one must divide the other"
        )
    if not model.experts:
        _divides("ffn", model.ffn, "tp", layout.tp)
    _divides("seq", layout.seq, "cp", layout.cp)
    if layout.context == "ulysses":
        _divides("heads of a tensor-parallel rank", model.heads // layout.tp, "cp", layout.cp)
    per_replica = layout.dp * layout.micro_batch
    _divides("global_batch", layout.global_batch, "dp x micro_batch", per_replica)
    _check_experts(model, layout)
    _check_shards(layout)
    if layout.stages > model.layers:
        raise LayoutError(
            f"{layout.stages} pipeline stages (pp={layout.pp}) for {model.layers} layers: use at "
            "most one a layer"
        )
    layers = stage_layers(model, layout)
    if len(layers) != layout.stages or sum(layers) != model.layers or min(layers) < 0:
        raise LayoutError(
            f"layers={list(layers)}: expected {layout.stages} numbers that sum to {model.layers}"
        )


def _check_experts(model: Model, layout: Layout) -> None:
    if not model.experts:
        if layout.ep * layout.etp > 1:
            raise LayoutError(f"ep={layout.ep}, etp={layout.etp}: {model.name} has no experts")
        return
    _divides("experts", model.experts, "ep", layout.ep)
    _divides("expert_ffn", model.expert_width, "etp", layout.etp)
    _divides("tp x cp x dp", layout.stage_ranks, "ep x etp", layout.ep * layout.etp)


def _check_shards(layout: Layout) -> None:
    if layout.shard:
        _divides("dp x cp", layout.dp * layout.cp, "shard", layout.shard)


def _divides(whole_name: str, whole: int, part_name: str, part: int) -> None:
    if whole % part:
        near = [n for n in range(1, whole + 1) if whole % n == 0]
        best = min(near, key=lambda n: abs(n - part))
        raise LayoutError(
            f"{part_name}={part} does not divide {whole_name}={whole}; the nearest that does "
            f"is {best}"
        )


def group_of(layout: Layout, kind: str) -> I64:
    """Group of every rank: ranks with equal numbers are in one group. Shape ``(gpus,)``.

    Numbers go from 0 without gaps, in the order of each group's first rank. Members are in
    the order of their ranks.

    Args:
        layout: the layout.
        kind: one of ``GROUP_KINDS``.
    """
    rank = np.arange(layout.gpus)
    stage, inside = np.divmod(rank, layout.stage_ranks)
    tp, rest = inside % layout.tp, inside // layout.tp  # rest numbers (dp, cp)
    expert = inside // layout.etp  # numbers (edp, ep)
    shards = layout.shards
    keys: dict[str, tuple[I64, ...]] = {
        "tp": (stage, rest),
        "cp": (stage, rest // layout.cp, tp),
        "dp": (stage, tp),
        "pp": (inside,),
        "etp": (stage, expert),
        "ep": (stage, expert // layout.ep, inside % layout.etp),
        "edp": (stage, expert % layout.ep, inside % layout.etp),
        "shard": (stage, tp, rest // shards),
        "replica": (stage, tp, rest % shards),
    }
    code = np.zeros(layout.gpus, np.int64)
    for key in keys[kind]:
        code = code * (int(key.max()) + 1) + key
    _, first, number = np.unique(code, return_index=True, return_inverse=True)
    place = np.empty(len(first), np.int64)
    place[np.argsort(first, kind="stable")] = np.arange(len(first))
    result: I64 = place[number.reshape(-1)]
    return result


def group_size(layout: Layout, kind: str) -> int:
    """Members of a group of this kind."""
    sizes = {
        "tp": layout.tp, "cp": layout.cp, "dp": layout.dp * layout.cp, "pp": layout.pp,
        "ep": layout.ep, "etp": layout.etp, "edp": layout.edp, "shard": layout.shards,
        "replica": layout.dp * layout.cp // layout.shards,
    }  # fmt: skip
    return sizes[kind]
