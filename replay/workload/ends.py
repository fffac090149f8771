"""Both ends of a language model: embedding, and head with loss."""

from __future__ import annotations

from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.layer import gather, scatter
from foretrace.replay.workload.operations import Rows
from foretrace.replay.workload.sizes import Sizes

F, I, W = Phase.FORWARD, Phase.INPUT, Phase.WEIGHT  # noqa: E741


def embedding(rows: Rows, sizes: Sizes) -> None:
    """Look up each token's vector; the table is split over the vocabulary."""
    rows.memory("embedding", F, "embedding", 2 * sizes.stream_bytes)
    scatter(rows, sizes, "embedding scatter", F)
    gather(rows, sizes, "embedding gradient gather", W)
    rows.memory("embedding gradient", W, "embedding", 3 * sizes.stream_bytes)


def head(rows: Rows, sizes: Sizes) -> None:
    """Last norm, logits over a part of the vocabulary, cross-entropy.

    The loss takes the logits to fp32, and reads them for the largest, the sum of exponentials
    and the result; tensor-parallel ranks swap one number a token for each. Its gradient reads
    and writes them in fp32, and reads them once more to round them. The head's products keep
    16-bit operands where the layers have 8 bits.
    """
    model, tp = sizes.model, sizes.layout.tp
    vocab = model.vocab / tp
    logits = sizes.tokens * vocab
    rows.memory("last norm", F, "norm", 2 * sizes.own_bytes)
    gather(rows, sizes, "head gather", F)
    rows.product("logits", F, sizes.tokens, vocab, model.hidden, wide=True)
    rows.memory("cross entropy", F, "cross_entropy", logits * (2 + 4 * 4))
    if tp > 1:
        for name in ("largest", "target", "sum"):
            rows.communicate(f"loss {name}", F, "all_reduce", "tp", sizes.tokens * 4)
    rows.memory("cross entropy gradient", I, "cross_entropy", logits * (3 * 4 + 2))
    rows.product("logits dgrad", I, sizes.tokens, model.hidden, vocab, wide=True)
    if tp > 1:
        scatter(rows, sizes, "head gradient sum", I)
    rows.product("logits wgrad", W, model.hidden, vocab, sizes.tokens, beside=tp > 1, wide=True)
    rows.memory("last norm gradient", I, "norm", 3 * sizes.own_bytes)
