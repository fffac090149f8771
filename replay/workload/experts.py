"""A mixture layer: attention as in a dense one, then experts that tokens are sent to.

Every rank routes its own tokens: scores, choice of ``topk`` experts, an all-to-all to the ranks
that hold them, one grouped product per matrix, and the way back. Experts that are split over
``etp`` ranks gather the tokens of those ranks first and sum their results behind. Routing is
even unless loads say otherwise.
"""

from __future__ import annotations

from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.layer import (
    activation_bytes,
    attention_backward,
    attention_forward,
    gather,
    scatter,
)
from foretrace.replay.workload.operations import Rows
from foretrace.replay.workload.sizes import ELEMENT, Sizes

F, I, W = Phase.FORWARD, Phase.INPUT, Phase.WEIGHT  # noqa: E741


def mixture(rows: Rows, sizes: Sizes) -> None:
    """A whole layer."""
    again = (I,) if sizes.layout.recompute == "full" else ()
    for phase in (F, *again):
        attention_forward(rows, sizes, phase)
        experts_forward(rows, sizes, phase)
    experts_backward(rows, sizes)
    attention_backward(rows, sizes)


def experts_forward(rows: Rows, sizes: Sizes, phase: Phase) -> None:
    """Norm, routing, experts, residual."""
    model = sizes.model
    rows.memory("mlp norm", phase, "norm", 2 * sizes.own_bytes)
    rows.product("router", phase, sizes.own_tokens, model.experts, model.hidden, wide=True)
    rows.memory("choice of experts", phase, "softmax", 6 * _scores(sizes))
    _shared_forward(rows, sizes, phase)
    rows.memory("permute", phase, "copy", 2 * _sent(sizes))
    _exchange(rows, sizes, "dispatch", phase)
    _split(rows, sizes, "experts gather", phase, "all_gather")
    up, down = _matrices(sizes)
    _grouped(rows, sizes, "experts up", phase, up)
    width = model.expert_width / sizes.layout.etp
    moved = activation_bytes(sizes, sizes.expert_tokens, width)
    rows.memory("experts activation", phase, "elementwise", moved)
    _grouped(rows, sizes, "experts down", phase, down)
    _split(rows, sizes, "experts scatter", phase, "reduce_scatter")
    _exchange(rows, sizes, "combine", phase)
    rows.memory("unpermute", phase, "copy", 2 * _sent(sizes))
    rows.memory("mlp residual", phase, "elementwise", 3 * sizes.own_bytes)


def experts_backward(rows: Rows, sizes: Sizes) -> None:
    """The same in reverse."""
    model = sizes.model
    rows.memory("mlp residual gradient", I, "elementwise", 2 * sizes.own_bytes)
    rows.memory("unpermute gradient", I, "copy", 2 * _sent(sizes))
    _exchange(rows, sizes, "combine gradient", I)
    _split(rows, sizes, "experts scatter gradient", I, "all_gather")
    up, down = _matrices(sizes)
    _grouped_gradients(rows, sizes, "experts down", down)
    width = model.expert_width / sizes.layout.etp
    moved = 2 * activation_bytes(sizes, sizes.expert_tokens, width)
    rows.memory("experts activation gradient", I, "elementwise", moved)
    _grouped_gradients(rows, sizes, "experts up", up)
    _split(rows, sizes, "experts gather gradient", I, "reduce_scatter")
    _exchange(rows, sizes, "dispatch gradient", I)
    rows.memory("permute gradient", I, "copy", 2 * _sent(sizes))
    _shared_backward(rows, sizes)
    rows.memory("choice of experts gradient", I, "softmax", 4 * _scores(sizes))
    rows.product("router dgrad", I, sizes.own_tokens, model.hidden, model.experts, wide=True)
    rows.product("router wgrad", W, model.hidden, model.experts, sizes.own_tokens, wide=True)
    rows.memory("mlp norm gradient", I, "norm", 3 * sizes.own_bytes)


def _scores(sizes: Sizes) -> float:
    """Bytes of the router's scores, computed in fp32."""
    return sizes.own_tokens * sizes.model.experts * 4


def _sent(sizes: Sizes) -> float:
    """Bytes of a rank's tokens, once for each expert that they go to."""
    copies = sizes.model.topk * (sizes.layout.capacity or 1.0)
    return sizes.own_tokens * copies * sizes.model.hidden * ELEMENT


def _exchange(rows: Rows, sizes: Sizes, name: str, phase: Phase) -> None:
    if sizes.layout.ep > 1:
        rows.communicate(name, phase, "all_to_all", "ep", _sent(sizes))


def _split(rows: Rows, sizes: Sizes, name: str, phase: Phase, kind: str) -> None:
    """Tokens of the ranks that an expert is split over."""
    if sizes.layout.etp > 1:
        rows.communicate(name, phase, kind, "etp", _sent(sizes) * sizes.layout.etp)


def _matrices(sizes: Sizes) -> tuple[tuple[float, float], tuple[float, float]]:
    """Columns and inner width of an expert's matrices."""
    h, width = sizes.model.hidden, sizes.model.expert_width / sizes.layout.etp
    return (sizes.matrices_up * width, h), (h, width)


def _grouped(
    rows: Rows, sizes: Sizes, name: str, phase: Phase, matrix: tuple[float, float]
) -> None:
    n, k = matrix
    each = sizes.expert_tokens / sizes.local_experts
    rows.product(name, phase, each, n, k, batch=sizes.local_experts, cast=True)


def _grouped_gradients(rows: Rows, sizes: Sizes, name: str, matrix: tuple[float, float]) -> None:
    n, k = matrix
    each = sizes.expert_tokens / sizes.local_experts
    rows.product(f"{name} dgrad", I, each, k, n, batch=sizes.local_experts, cast=True)
    rows.product(f"{name} wgrad", W, k, n, each, batch=sizes.local_experts)


def _shared_forward(rows: Rows, sizes: Sizes, phase: Phase) -> None:
    """Experts that every token goes to: an MLP that is split over the tensor-parallel ranks."""
    model = sizes.model
    if not model.shared_experts:
        return
    width = model.shared_experts * model.expert_width / sizes.layout.tp
    gather(rows, sizes, "shared gather", phase)
    up = sizes.matrices_up * width
    rows.product("shared up", phase, sizes.tokens, up, model.hidden)
    moved = activation_bytes(sizes, sizes.tokens, width)
    rows.memory("shared activation", phase, "elementwise", moved)
    rows.product("shared down", phase, sizes.tokens, model.hidden, width)
    scatter(rows, sizes, "shared scatter", phase)


def _shared_backward(rows: Rows, sizes: Sizes) -> None:
    model, t = sizes.model, sizes.tokens
    if not model.shared_experts:
        return
    width = model.shared_experts * model.expert_width / sizes.layout.tp
    up = sizes.matrices_up * width
    gather(rows, sizes, "shared gradient gather", I)
    rows.product("shared down dgrad", I, t, width, model.hidden)
    rows.product("shared down wgrad", W, width, model.hidden, t)
    moved = 2 * activation_bytes(sizes, t, width)
    rows.memory("shared activation gradient", I, "elementwise", moved)
    rows.product("shared up dgrad", I, t, model.hidden, up)
    rows.product("shared up wgrad", W, model.hidden, up, t)
    scatter(rows, sizes, "shared gradient scatter", I)
