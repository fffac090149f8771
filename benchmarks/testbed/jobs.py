"""The jobs: each makes a function that runs one training step on one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from testbed.experts import rows_between
from testbed.sizes import Job
from testbed.waits import Layer, kernel

Step = Callable[[], None]
_IN_A_ROW = 3
"""Times that a single operation is repeated: what follows at once finds the links still busy."""


def make_step(job: Job) -> Step:
    """The training step of this rank; the default process group exists."""
    return _MAKERS[job.kind](job)


def _layers(job: Job, numbers: range) -> list[Layer]:
    factor = job.slow_factor if dist.get_rank() == job.slow_rank else 1.0
    times = (factor * job.forward_ms / 1e3, factor * job.backward_ms / 1e3)
    return [Layer(n, job.parameters, *times) for n in numbers]


def _ddp(job: Job) -> Step:
    """DistributedDataParallel as it is."""
    model: Any = nn.parallel.DistributedDataParallel(
        nn.Sequential(*_layers(job, range(job.layers))),
        bucket_cap_mb=job.bucket_bytes / 2**20,
        gradient_as_bucket_view=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(16, requires_grad=True)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step


def _sharded(job: Job) -> Step:
    """Parameters in equal parts on all ranks, gathered a unit of layers at a time.

    The next unit is gathered while one computes, in the backward pass again; gradients are
    scattered while the next unit computes. One unit holds as many bytes as a gradient bucket.
    """
    world = dist.get_world_size()
    unit = max(job.bucket_bytes // (4 * job.parameters), 1)
    layers = _layers(job, range(job.layers))
    units = [layers[i : i + unit] for i in range(0, job.layers, unit)]
    shards = [torch.zeros(len(u) * job.parameters // world) for u in units]
    whole = [torch.zeros(len(u) * job.parameters) for u in units]

    def gather(number: int) -> Any:
        if not 0 <= number < len(units):
            return None
        return dist.all_gather_into_tensor(whole[number], shards[number], async_op=True)

    def computed(order: range, direction: str) -> list[tuple[Any, Tensor]]:
        pending, ready = [], gather(order[0])
        for number in order:
            ready.wait()
            ready = gather(number + order.step)
            for layer in units[number][:: order.step]:
                layer.run(direction)
            if direction == "backward":
                grads, part = whole[number].clone(), torch.empty_like(shards[number])
                work = dist.reduce_scatter_tensor(part, grads, async_op=True)
                pending.append((work, part))
        return pending

    def step() -> None:
        computed(range(len(units)), "forward")
        for number, (work, part) in enumerate(computed(range(len(units) - 1, -1, -1), "backward")):
            work.wait()
            shards[len(units) - 1 - number].add_(part, alpha=-0.1)

    return step


def _pipeline(job: Job) -> Step:
    """1F1B over all ranks, one stage each."""
    stage_index, stages = dist.get_rank(), dist.get_world_size()
    each = job.layers // stages
    module = nn.Sequential(*_layers(job, range(stage_index * each, (stage_index + 1) * each)))
    stage = PipelineStage(module, stage_index, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, job.micro_batches, loss_fn=lambda out, _: out.sum())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    batch = torch.ones(job.micro_batches, job.activation_bytes // 4)

    def step() -> None:
        optimizer.zero_grad()
        if stage_index == 0:
            schedule.step(batch)
        elif stage_index == stages - 1:
            schedule.step(target=batch)
        else:
            schedule.step()
        optimizer.step()

    return step


def _experts(job: Job) -> Step:
    """Attention everywhere, experts one a rank: tokens go there and come back, twice."""
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = rows_between(world, job.tokens, job.hot_expert, job.hot_share)
    sent, taken = rows[rank].tolist(), rows[:, rank].tolist()
    here = torch.ones(sum(sent), job.token_bytes // 4)
    there = torch.ones(sum(taken), job.token_bytes // 4)
    dense = torch.ones(job.parameters)

    def layer(number: int, direction: str, times: float) -> None:
        kernel(f"{direction} attention {number}", times * job.attention_ms / 1e3)
        dist.all_to_all_single(there, here, taken, sent)
        kernel(f"{direction} expert {number}", times * job.token_us * sum(taken) / 1e6)
        dist.all_to_all_single(here, there, sent, taken)

    def step() -> None:
        for number in range(job.layers):
            layer(number, "forward", 1.0)
        for number in reversed(range(job.layers)):
            layer(number, "backward", 2.0)
        dist.all_reduce(dense)

    return step


def _collectives(job: Job) -> Step:
    """Single operations in some sizes, each a few times in a row: what links and hosts can do."""
    rank, world = dist.get_rank(), dist.get_world_size()

    def exchange(whole: Tensor, back: Tensor) -> None:
        near = rank ^ 1
        for sends in (rank < near, rank > near):
            if sends:
                dist.send(whole, near)
            else:
                dist.recv(back, near)

    def step() -> None:
        for size in job.sizes:
            whole, part = torch.ones(size // 4), torch.ones(size // 4 // world)
            back = torch.empty_like(whole)
            for operation in (
                lambda a=whole: dist.all_reduce(a),
                lambda a=back, b=part: dist.all_gather_into_tensor(a, b),
                lambda a=back, b=whole: dist.all_to_all_single(a, b),
                lambda a=whole, b=back: exchange(a, b),
            ):
                for _ in range(_IN_A_ROW):
                    operation()
                dist.barrier()

    return step


_MAKERS: dict[str, Callable[[Job], Step]] = {
    "ddp": _ddp,
    "sharded": _sharded,
    "pipeline": _pipeline,
    "experts": _experts,
    "collectives": _collectives,
}
