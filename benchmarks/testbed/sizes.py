"""What a job is and on what it runs; an intervention changes some of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """A job. Fields that its kind does not use are ignored.

    Attributes:
        kind: ``ddp``, ``sharded``, ``pipeline``, ``experts`` or ``collectives``.
        ranks: processes.
        mbit: rate of every link each way, 10^6 bit/s.
        layers: layers of the model.
        parameters: float32 parameters of a layer.
        forward_ms: kernel time of a layer's forward pass on a micro-batch.
        backward_ms: the same of its backward pass.
        bucket_bytes: gradient buckets of ``ddp``, units of ``sharded``.
        slow_rank: a rank whose kernels take ``slow_factor`` times as long, -1 for none.
        slow_factor: how much longer.
        micro_batches: of a ``pipeline``.
        activation_bytes: between two stages, for one micro-batch.
        tokens: tokens of a rank, for ``experts``.
        token_bytes: of one token.
        token_us: kernel time of an expert for one token, forward.
        attention_ms: kernel time between two exchanges of tokens, forward.
        hot_expert: rank whose expert gets more tokens than others, -1 for none.
        hot_share: its share of all tokens.
        sizes: bytes of the operations of ``collectives``.
    """

    kind: str
    ranks: int
    mbit: float = 80.0
    layers: int = 16
    parameters: int = 16 * 1024
    forward_ms: float = 4.0
    backward_ms: float = 8.0
    bucket_bytes: int = 256 * 1024
    slow_rank: int = -1
    slow_factor: float = 1.0
    micro_batches: int = 4
    activation_bytes: int = 128 * 1024
    tokens: int = 256
    token_bytes: int = 1024
    token_us: float = 40.0
    attention_ms: float = 5.0
    hot_expert: int = -1
    hot_share: float = 0.0
    sizes: tuple[int, ...] = ()
