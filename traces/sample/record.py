"""Records the sample trace set: a small GPT, data parallel 2 x pipeline parallel 2, on CPUs.

Four processes talk over gloo. Each pipeline has two stages with a one-forward-one-backward
schedule over four micro-batches; gradients are averaged over the data-parallel ranks in
buckets that are sent while the next one is still being packed. The text it learns is this
package's own source. Run it with::

    python traces/sample/record.py [OUT]

OUT is ``gpt-dp2pp2.trace`` beside this file by default. Needs torch; takes about ten seconds.
"""

from __future__ import annotations

import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from foretrace.collector import profile

DP, PP = 2, 2
MICRO_BATCHES = 4
BATCH, LENGTH = 16, 64
WIDTH, HEADS, LAYERS, VOCABULARY = 128, 4, 4, 256
BUCKET_BYTES = 512 << 10
WARMUP_STEPS, STEPS = 1, 8


class Block(nn.Module):
    """A transformer block: causal attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states, shape ``(batch, length, width)``."""
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.norm_attention(x)).chunk(3, dim=-1)
        )
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm_mlp(x))


class Embed(nn.Module):
    """Token and position embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens, shape ``(batch, length)``, to hidden states."""
        return self.token(tokens) + self.position.weight


def stage_module(stage: int) -> nn.Module:
    """The layers of one pipeline stage."""
    blocks: list[nn.Module] = [Block() for _ in range(LAYERS // PP)]
    if stage == 0:
        blocks.insert(0, Embed())
    if stage == PP - 1:
        blocks += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)]
    return nn.Sequential(*blocks)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the next byte."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def corpus() -> Tensor:
    """The package's source as bytes."""
    folder = Path(__file__).resolve().parents[1]
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def average_gradients(parameters: list[Tensor], group: dist.ProcessGroup) -> None:
    """All-reduce gradients in buckets, each sent while the next is packed."""
    pending: list[tuple[Any, Tensor, list[Tensor]]] = []
    bucket: list[Tensor] = []
    grads = [p.grad for p in reversed(parameters) if p.grad is not None]
    for i, grad in enumerate(grads):
        bucket.append(grad)
        if sum(g.nbytes for g in bucket) >= BUCKET_BYTES or i == len(grads) - 1:
            flat = torch.cat([g.flatten() for g in bucket])
            pending.append((dist.all_reduce(flat, group=group, async_op=True), flat, bucket))
            bucket = []
    for work, flat, members in pending:
        work.wait()
        for grad, mean in zip(
            members, flat.div_(DP).split([g.numel() for g in members]), strict=True
        ):
            grad.copy_(mean.view_as(grad))


def train(rank: int, port: int, out: str) -> None:
    """Train on one rank and record three steps."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(rank % PP)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=DP * PP
    )
    mesh = init_device_mesh("cpu", (DP, PP), mesh_dim_names=("dp", "pp"))
    dp, pp = mesh.get_group("dp"), mesh.get_group("pp")
    index = dist.get_rank(pp)
    module = stage_module(index)
    parameters = list(module.parameters())
    stage = PipelineStage(module, index, PP, torch.device("cpu"), group=pp)
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    text = corpus()
    draw = torch.Generator().manual_seed(dist.get_rank(dp))

    def step() -> None:
        starts = torch.randint(len(text) - LENGTH - 1, (BATCH,), generator=draw)
        window = text[starts[:, None] + torch.arange(LENGTH + 1)]
        optimizer.zero_grad()
        if index == 0:
            schedule.step(window[:, :-1])
        else:
            schedule.step(target=window[:, 1:], losses=[])
        average_gradients(parameters, dp)
        optimizer.step()

    for _ in range(WARMUP_STEPS):
        step()
    with profile(out, wait=1, warmup=1, active=3, labels={"model": "gpt-byte"}) as prof:
        for _ in range(STEPS):
            step()
            prof.step()
    dist.destroy_process_group()


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Start one process for each rank."""
    default = Path(__file__).with_name("gpt-dp2pp2.trace")
    out = sys.argv[1] if len(sys.argv) > 1 else str(default)
    torch.multiprocessing.spawn(train, (free_port(), out), DP * PP)


if __name__ == "__main__":
    main()
