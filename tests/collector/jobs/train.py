"""Training scripts as users write them. Run as ``train.py JOB[,JOB...] [BACKEND]``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from foretrace.collector.dryrun import exchange_counts

WIDE, BATCH = 32, 8
COUNTS = [5, 1, 0, 2, 3, 3, 9, 1]
"""Tokens for each expert of the job "moe", on every rank and in every step."""


class Block(nn.Module):
    """The feed-forward half of a transformer layer."""

    def __init__(self, wide: int = WIDE) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(wide)
        self.up = nn.Linear(wide, 4 * wide)
        self.down = nn.Linear(4 * wide, wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def train(model: nn.Module, shape: tuple[int, ...], steps: int = 2) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(*shape)).float().square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def ddp() -> None:
    """Several buckets, which are put in order after the first step."""
    model = nn.Sequential(*[Block() for _ in range(3)])
    train(nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02), (BATCH, WIDE), 3)


def fsdp2() -> None:
    """Mixed precision, and the norm of all gradients."""
    model = nn.Sequential(*[Block() for _ in range(3)])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*model, model):
        fully_shard(part, mp_policy=policy)
    train(model, (BATCH, WIDE))


def tp_dp() -> None:
    """Tensor and sequence parallel in pairs, FSDP2 across them."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(*[Block() for _ in range(2)])
    plan: dict[str, Any] = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in model:
        parallelize_module(block, mesh["tp"], plan)
    for part in (*model, model):
        fully_shard(part, mesh=mesh["dp"])
    train(model, (BATCH, 8, WIDE))


def pipeline() -> None:
    """1F1B over all ranks; the stages tell each other shapes before the first step."""
    rank, world = dist.get_rank(), dist.get_world_size()
    module = Block()
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(
        stage, 2 * world, loss_fn=lambda out, want: (out - want).square().mean()
    )
    optimizer = torch.optim.AdamW(module.parameters())
    x = torch.randn(2 * world * BATCH, WIDE)
    for _ in range(2):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(**({"target": x} if rank == world - 1 else {}))
        optimizer.step()


def moe() -> None:
    """Tokens go to experts on other ranks and come back; how many is decided by a table."""
    world = dist.get_world_size()
    counts = torch.tensor(COUNTS)
    expert = nn.Linear(WIDE, WIDE)
    tokens = torch.randn(sum(COUNTS), WIDE)
    for layer in range(2):
        counts, received = exchange_counts(counts, sum(COUNTS), layer=layer)
        sent, taken = (c.view(world, -1).sum(1).tolist() for c in (counts, received))
        there = torch.empty(sum(taken), WIDE)
        dist.all_to_all_single(there, tokens, taken, sent)
        back = torch.empty(sum(sent), WIDE)
        dist.all_to_all_single(back, expert(there).detach(), sent, taken)
        tokens = back


def uneven() -> None:
    """The last rank has a smaller part of everything, and says so to nobody."""
    last = dist.get_rank() == dist.get_world_size() - 1
    dist.all_reduce(torch.ones(3 if last else 4))


def fails() -> None:
    raise ValueError("this job is meant to fail")


def leaves() -> None:
    sys.exit(7)


JOBS: dict[str, Callable[[], None]] = {
    f.__name__: f for f in (ddp, fsdp2, tp_dp, pipeline, moe, uneven, fails, leaves)
}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    for job in sys.argv[1].split(","):
        dist.barrier()
        JOBS[job]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
