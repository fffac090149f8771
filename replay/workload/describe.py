"""A workload from a model's description: no trace, every duration is modelled."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.replay.layout import Layout, check_layout
from foretrace.replay.model import Model
from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.ends import embedding, head
from foretrace.replay.workload.experts import mixture
from foretrace.replay.workload.layer import layer, projections
from foretrace.replay.workload.operations import Block, Rows, Workload
from foretrace.replay.workload.sizes import Sizes


def describe(model: Model, layout: Layout) -> Workload:
    """What one rank of each role does.

    Args:
        model: the model.
        layout: how it is split.

    Raises:
        LayoutError: the layout does not fit the model.
    """
    check_layout(model, layout)
    sizes = Sizes(model, layout)
    kinds = ["mixture" if model.is_mixture(n) else "layer" for n in range(model.layers)]
    used = [name for name in ("layer", "mixture") if name in kinds]
    names = ["embedding", *used, "head"]
    sequence = [0, *(names.index(kind) for kind in kinds), len(names) - 1]
    return Workload(
        name=model.name,
        blocks=tuple(_block(name, sizes) for name in names),
        sequence=tuple(sequence),
        places=(1, 1),
        boundary_bytes=round(sizes.own_bytes),
        flops=step_flops(model, layout.seq, layout.global_batch),
        tokens=layout.seq * layout.global_batch,
    )


_WRITERS: dict[str, Callable[[Rows, Sizes], None]] = {
    "embedding": embedding,
    "layer": layer,
    "mixture": mixture,
    "head": head,
}


def _block(name: str, sizes: Sizes) -> Block:
    rows = Rows(sizes.layout.precision, sizes.layout.fused)
    dense, experts = _parameters(name, sizes)
    _state(rows, sizes.layout, dense + experts, before=True)
    _WRITERS[name](rows, sizes)
    _state(rows, sizes.layout, dense + experts, before=False)
    return Block(name, round(dense), round(experts), rows.table())


def _state(rows: Rows, layout: Layout, parameters: float, before: bool) -> None:
    """What a rank does to parameters and gradients for each micro-batch, beside computing them.

    Sharded parameters are copied out of the buffer they were gathered in (forward and backward),
    gradients into the one that is reduced. Else a new 16-bit gradient is added to the sum.
    """
    width = layout.accumulate_bytes
    if before and layout.zero == 3:
        rows.memory("parameters copied", Phase.FORWARD, "copy", parameters * 4)
        rows.memory("parameters copied again", Phase.INPUT, "copy", parameters * 4)
    elif not before and layout.zero == 3:
        rows.memory("gradients copied", Phase.WEIGHT, "copy", parameters * (2 + width))
    elif not before and layout.micro_batches > 1:
        moved = parameters * (2 + 2 * width)
        rows.memory("gradients added", Phase.WEIGHT, "elementwise", moved)


def _parameters(name: str, sizes: Sizes) -> tuple[float, float]:
    """Parameters on a rank outside of experts, and in them."""
    model, tp = sizes.model, sizes.layout.tp
    matrices = sizes.matrices_up + 1
    if name in ("embedding", "head"):
        return model.vocab * model.hidden / tp, 0.0
    attention = sum(n * k for _, n, k in projections(sizes))
    attention += sizes.value_width * model.hidden + 2 * model.hidden
    if name == "layer":
        return attention + matrices * model.hidden * model.ffn / tp, 0.0
    one = matrices * model.hidden * model.expert_width
    dense = attention + model.hidden * model.experts + model.shared_experts * one / tp
    return dense, sizes.local_experts * one / sizes.layout.etp


def step_flops(model: Model, seq: int, sequences: int) -> float:
    """Floating-point operations of a step as MFU counts them.

    Six for each parameter of a matrix that a token meets, and attention over the whole square of
    scores (``12 * seq * heads * width`` a layer and token), as in Chowdhery et al. (PaLM,
    arXiv 2204.02311, appendix B); nothing for recomputation and for the embedding's look-up.

    Args:
        model: the model.
        seq: tokens of a sequence.
        sequences: sequences of a step.
    """
    whole = Sizes(model, Layout(seq=seq, global_batch=1))
    matrices = whole.matrices_up + 1
    used = model.vocab * model.hidden
    for n in range(model.layers):
        used += sum(int(a * b) for _, a, b in projections(whole))
        used += int(whole.value_width * model.hidden)
        if model.is_mixture(n):
            used += model.hidden * model.experts
            used += (
                matrices * model.hidden * model.expert_width * (model.topk + model.shared_experts)
            )
        else:
            used += matrices * model.hidden * model.ffn
    scores = 6 * seq * model.heads * (model.width + model.value_width) * model.layers
    return float(sequences) * seq * (6.0 * used + scores)
