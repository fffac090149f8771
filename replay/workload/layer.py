"""A dense transformer layer: attention and MLP, forward and backward, as Megatron-LM splits them.

With sequence parallelism (Korthikanti et al., arXiv 2205.05198) the tokens are gathered before
the first matrix of attention and MLP and scattered again behind the last one; without it, an
all-reduce stands behind the last one, and one in the backward pass before the first.
In the backward pass Megatron-LM runs the gather of the inputs beside the gradient of inputs and
the scatter of that gradient beside the gradient of weights.
"""

from __future__ import annotations

from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.operations import EAGER_ACTIVATION, EAGER_ROTATION, Rows
from foretrace.replay.workload.sizes import ELEMENT, Sizes

F, I, W = Phase.FORWARD, Phase.INPUT, Phase.WEIGHT  # noqa: E741


def layer(rows: Rows, sizes: Sizes) -> None:
    """A whole layer."""
    again = (I,) if sizes.layout.recompute == "full" else ()
    for phase in (F, *again):  # with full recomputation the backward begins with a forward
        attention_forward(rows, sizes, phase)
        mlp_forward(rows, sizes, phase)
    if sizes.layout.recompute == "operations":
        operations_again(rows, sizes)
    mlp_backward(rows, sizes)
    attention_backward(rows, sizes)


def attention_forward(rows: Rows, sizes: Sizes, phase: Phase) -> None:
    """Norm, projections, attention, output projection, residual."""
    h = sizes.model.hidden
    rows.memory("attention norm", phase, "norm", 2 * sizes.own_bytes)
    gather(rows, sizes, "attention gather", phase)
    for name, n, k in projections(sizes):
        rows.product(name, phase, sizes.tokens, n, k, beside=hidden_gather(sizes, name))
    rotate(rows, sizes, "rotary embedding", phase)
    core(rows, sizes, phase, backward=False)
    rows.product("attention output", phase, sizes.tokens, h, sizes.value_width, cast=True)
    scatter(rows, sizes, "attention scatter", phase, behind=True)
    rows.memory("attention residual", phase, "elementwise", 3 * sizes.own_bytes)


def operations_again(rows: Rows, sizes: Sizes) -> None:
    """What is computed again where attention and every second matrix product are kept.

    Of queries, keys, values, output, gate, value and last matrix these are keys, output, value;
    the tokens are gathered anew for them.
    """
    model, h, t = sizes.model, sizes.model.hidden, sizes.tokens
    width = model.ffn / sizes.layout.tp
    rows.memory("attention norm again", I, "norm", 2 * sizes.own_bytes)
    gather(rows, sizes, "attention gather again", I)
    rows.product("keys again", I, t, sizes.kv_heads * model.width, h)
    rotate(rows, sizes, "rotary embedding again", I)
    rows.product("attention output again", I, t, h, sizes.value_width)
    rows.memory("attention residual again", I, "elementwise", 3 * sizes.own_bytes)
    rows.memory("mlp norm again", I, "norm", 2 * sizes.own_bytes)
    gather(rows, sizes, "mlp gather again", I)
    rows.product("mlp up again", I, t, width, h)
    rows.memory("activation again", I, "elementwise", activation_bytes(sizes, t, width))


def attention_backward(rows: Rows, sizes: Sizes) -> None:
    """The same in reverse."""
    h, t = sizes.model.hidden, sizes.tokens
    rows.memory("attention residual gradient", I, "elementwise", 2 * sizes.own_bytes)
    gather(rows, sizes, "attention output gradient gather", I)
    output = (t, sizes.value_width, h)
    rows.product("attention output dgrad", I, *output, beside=_hides(sizes), cast=True)
    rows.product("attention output wgrad", W, sizes.value_width, h, t)
    if sizes.layout.recompute == "selective":
        core(rows, sizes, I, backward=False)
    core(rows, sizes, I, backward=True)
    rotate(rows, sizes, "rotary embedding gradient", I)
    gradients(rows, sizes, projections(sizes)[::-1])
    rows.memory("attention norm gradient", I, "norm", 3 * sizes.own_bytes)


def rotate(rows: Rows, sizes: Sizes, name: str, phase: Phase) -> None:
    """Positions of queries and keys: read and written once."""
    if sizes.model.rotary:
        heads = sizes.heads + sizes.kv_heads
        moved = 2 * sizes.tokens * heads * sizes.model.width * ELEMENT
        steps = 1.0 if sizes.layout.fused else EAGER_ROTATION
        rows.memory(name, phase, "elementwise", steps * moved)


def projections(sizes: Sizes) -> list[tuple[str, float, float]]:
    """Products before attention: name, columns and inner width on the rank."""
    model, h = sizes.model, sizes.model.hidden
    if not model.kv_rank:
        n = sizes.heads * model.width + sizes.kv_heads * (model.width + model.value_width)
        return [("query key value", n, h)]
    nope = model.width - model.rope_dim
    up = sizes.heads * (nope + model.value_width)
    query = sizes.heads * model.width
    return [
        ("query down", model.query_rank or query, h),
        *([("query up", query, model.query_rank)] if model.query_rank else []),
        ("key value down", model.kv_rank + model.rope_dim, h),
        ("key value up", up, model.kv_rank),
    ]


def core(rows: Rows, sizes: Sizes, phase: Phase, backward: bool) -> None:
    """Attention itself, and what context parallelism sends for it.

    Ring: every rank sees the keys and values of all others, balanced so that each has an equal
    share of the causal triangle; they go round beside the computation. Ulysses: ranks swap
    tokens for heads before and behind (twice as much going back).
    """
    model, layout = sizes.model, sizes.layout
    cp, sequences = layout.cp, layout.micro_batch
    name = "attention backward" if backward else "attention"
    sides = (sequences * sizes.heads / cp, layout.seq, layout.seq, model.width)
    query = sizes.tokens * sizes.heads * model.width * ELEMENT
    pair = sizes.tokens * sizes.kv_heads * (model.width + model.value_width) * ELEMENT
    out = sizes.tokens * sizes.value_width * ELEMENT
    if cp > 1 and layout.context == "ulysses":
        rows.communicate(f"{name} heads", phase, "all_to_all", "cp", query + pair)
        rows.attention(name, phase, sides, backward)
        rows.communicate(f"{name} tokens", phase, "all_to_all", "cp", out)
        return
    if not layout.flash:
        _unfused(rows, sizes, phase, backward)
        return
    ring = cp > 1
    if ring:
        times = (cp - 1) * (2 if backward else 1)
        rows.communicate(f"{name} ring", phase, "send_recv", "cp", times * pair)
    rows.attention(name, phase, sides, backward, beside=ring)


def _unfused(rows: Rows, sizes: Sizes, phase: Phase, backward: bool) -> None:
    """Attention that writes its scores: two products around a softmax, dropout on its result.

    Passes over the 16-bit scores: the softmax reads and writes them, dropout reads and writes
    them and one byte of mask each; backward both read one more.
    """
    model, seq = sizes.model, float(sizes.layout.seq)
    batch = sizes.layout.micro_batch * sizes.heads
    rows_of = seq / sizes.layout.cp
    scores = batch * rows_of * seq
    head, value = float(model.width), float(model.value_width)
    if not backward:
        rows.product("attention scores", phase, rows_of, seq, head, batch)
        rows.memory("attention softmax", phase, "softmax", scores * 4)
        rows.memory("attention dropout", phase, "elementwise", scores * 5)
        rows.product("attention values", phase, rows_of, value, seq, batch)
        return
    rows.product("attention values dgrad", phase, rows_of, seq, value, batch)
    rows.product("attention values gradient", phase, seq, value, rows_of, batch)
    rows.memory("attention dropout gradient", phase, "elementwise", scores * 5)
    rows.memory("attention softmax gradient", phase, "softmax", scores * 6)
    rows.product("query gradient", phase, rows_of, head, seq, batch)
    rows.product("key gradient", phase, seq, head, rows_of, batch)


def mlp_forward(rows: Rows, sizes: Sizes, phase: Phase) -> None:
    """Norm, two or three matrices, residual."""
    width = sizes.model.ffn / sizes.layout.tp
    rows.memory("mlp norm", phase, "norm", 2 * sizes.own_bytes)
    gather(rows, sizes, "mlp gather", phase)
    up = (sizes.tokens, sizes.matrices_up * width, sizes.model.hidden)
    rows.product("mlp up", phase, *up, beside=hidden_gather(sizes, "mlp up"))
    rows.memory("activation", phase, "elementwise", activation_bytes(sizes, sizes.tokens, width))
    rows.product("mlp down", phase, sizes.tokens, sizes.model.hidden, width, cast=True)
    scatter(rows, sizes, "mlp scatter", phase, behind=True)
    rows.memory("mlp residual", phase, "elementwise", 3 * sizes.own_bytes)


def mlp_backward(rows: Rows, sizes: Sizes) -> None:
    """The same in reverse."""
    h, t = sizes.model.hidden, sizes.tokens
    width = sizes.model.ffn / sizes.layout.tp
    rows.memory("mlp residual gradient", I, "elementwise", 2 * sizes.own_bytes)
    gather(rows, sizes, "mlp down gradient gather", I)
    rows.product("mlp down dgrad", I, t, width, h, beside=_hides(sizes), cast=True)
    rows.product("mlp down wgrad", W, width, h, t)
    moved = 2 * activation_bytes(sizes, t, width)
    rows.memory("activation gradient", I, "elementwise", moved)
    gradients(rows, sizes, [("mlp up", sizes.matrices_up * width, h)])
    rows.memory("mlp norm gradient", I, "norm", 3 * sizes.own_bytes)


def activation_bytes(sizes: Sizes, tokens: float, width: float) -> float:
    """Read the widened tokens, write what the next matrix takes."""
    steps = EAGER_ACTIVATION if sizes.model.gated and not sizes.layout.fused else 1.0
    return steps * tokens * width * (sizes.matrices_up + 1) * ELEMENT


def gather(rows: Rows, sizes: Sizes, name: str, phase: Phase) -> None:
    """Tokens of all tensor-parallel ranks, where each holds its own part of the sequence."""
    if sizes.layout.tp > 1 and sizes.layout.sequence_parallel:
        rows.communicate(name, phase, "all_gather", "tp", sizes.stream_bytes)


def hidden_gather(sizes: Sizes, name: str) -> bool:
    """Whether the gather before a product hides behind it."""
    first = name in ("query key value", "query down", "mlp up")
    return first and _hides(sizes)


def _hides(sizes: Sizes) -> bool:
    """Whether gathers and scatters are cut up and run beside their products."""
    layout = sizes.layout
    return layout.overlap_tensor and layout.tp > 1 and layout.sequence_parallel


def scatter(rows: Rows, sizes: Sizes, name: str, phase: Phase, behind: bool = False) -> None:
    """Sum of the partial results of the tensor-parallel ranks.

    Args:
        rows: where it is added.
        sizes: of the rank.
        name: what it is.
        phase: its phase.
        behind: it stands right behind the product whose results it sums.
    """
    if sizes.layout.tp > 1:
        kind = "reduce_scatter" if sizes.layout.sequence_parallel else "all_reduce"
        beside = behind and _hides(sizes)
        rows.communicate(name, phase, kind, "tp", sizes.stream_bytes, beside=beside)


def gradients(rows: Rows, sizes: Sizes, products: list[tuple[str, float, float]]) -> None:
    """Gradients of the products that stand first in attention or MLP, last one first."""
    t, parallel = sizes.tokens, sizes.layout.tp > 1
    sequence = sizes.layout.sequence_parallel
    for place, (name, n, k) in enumerate(products):
        last = place == len(products) - 1
        regather = last and parallel and sequence
        if regather:
            rows.communicate(f"{name} inputs gather", I, "all_gather", "tp", sizes.stream_bytes)
        rows.product(f"{name} dgrad", I, t, k, n, beside=regather, cast=True)
        if last and parallel:
            kind = "reduce_scatter" if sequence else "all_reduce"
            rows.communicate(f"{name} gradient sum", I, kind, "tp", sizes.stream_bytes)
        rows.product(f"{name} wgrad", W, k, n, t, beside=last and parallel)
