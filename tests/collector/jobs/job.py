"""One rank of a real gloo job. Run as ``job.py SCENARIO RANK WORLD PORT OUT``."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from foretrace.collector import profile

Log = list[dict[str, Any]]


def start(rank: int, world: int, port: int) -> None:
    """Join the default group."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
    )


def every_call(rank: int, world: int, pair: Any) -> Log:
    """Make calls of every kind; returns what each is known to move, by its maker."""
    log: Log = []
    everyone = list(range(world))

    def note(kind: str, put: int, got: int, **more: Any) -> None:
        given = {"kind": kind, "in": put, "out": got, "peer": -1, "splits": None}
        log.append(given | {"ranks": everyone} | more)

    def floats(n: int) -> torch.Tensor:
        return torch.ones(n)

    dist.all_reduce(floats(1000))
    note("all_reduce", 4000, 4000)
    work = dist.all_reduce(torch.ones(10, dtype=torch.bfloat16), async_op=True)
    note("all_reduce", 20, 20, dtype="BFloat16")
    work.wait()
    dist.broadcast(floats(7), src=1)
    note("broadcast", 28 if rank == 1 else 0, 28, peer=1)
    dist.reduce(floats(7), dst=2)
    note("reduce", 28, 28 if rank == 2 else 0, peer=2)
    dist.all_gather_into_tensor(floats(4 * world), floats(4))
    note("all_gather", 16, 16 * world)
    dist.all_gather([floats(5) for _ in range(world)], floats(5))
    note("all_gather", 20, 20 * world)
    sent = [rank + 1 + member for member in range(world)]  # rows for each member
    taken = [member + 1 + rank for member in range(world)]
    dist.all_to_all_single(torch.empty(sum(taken), 2), torch.ones(sum(sent), 2), taken, sent)
    splits = ([2 * n for n in sent], [2 * n for n in taken])
    note("all_to_all", 8 * sum(sent), 8 * sum(taken), splits=splits)
    parts = [floats(3) for _ in range(world)]
    dist.gather(floats(3), parts if rank == 0 else None, dst=0)
    note("gather", 12, 12 * world if rank == 0 else 0, peer=0)
    dist.scatter(floats(3), parts if rank == 0 else None, src=0)
    note("scatter", 12 * world if rank == 0 else 0, 12, peer=0)
    dist.barrier()
    note("barrier", 0, 0, dtype="")
    right, left = (rank + 1) % world, (rank - 1) % world
    batch = [dist.P2POp(dist.isend, floats(6), right), dist.P2POp(dist.irecv, floats(6), left)]
    for item in dist.batch_isend_irecv(batch):
        item.wait()
    note("send", 24, 0, peer=right)
    note("recv", 0, 24, peer=left)
    reduced = functional.all_reduce(floats(11), "sum", dist.group.WORLD)
    note("all_reduce", 44, 44)
    float(reduced.sum())
    gathered = functional.all_gather_tensor(floats(8), 0, dist.group.WORLD)
    note("all_gather", 32, 32 * world)
    float(gathered.sum())
    members = dist.get_process_group_ranks(pair)
    dist.all_reduce(floats(9), group=pair)
    note("all_reduce", 36, 36, ranks=members)
    other = members[0] if members[1] == rank else members[1]
    if rank == members[0]:
        dist.send(floats(2), other, group=pair)
        note("send", 8, 0, peer=other, ranks=members)
    else:
        dist.recv(floats(2), other, group=pair)
        note("recv", 0, 8, peer=other, ranks=members)
    return log


def ddp_step(model: torch.nn.Module) -> None:
    """One step of data-parallel training."""
    model.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()


def ddp_model() -> torch.nn.Module:
    """Four layers in several buckets."""
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    return torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), bucket_cap_mb=0.02
    )


def calls(rank: int, world: int, out: Path) -> None:
    """Every kind of call, then DDP, all ranks in full."""
    pairs = [dist.new_group([0, 2], group_desc="mesh_tp"), dist.new_group([1, 3])]
    before = {**vars(dist.ProcessGroup)}, dist.Work.wait
    model = ddp_model()
    ddp_step(model)  # DDP rearranges its buckets after the first step
    ddp_step(model)
    logs = []
    with profile(out / "run.trace", wait=1, warmup=1, active=2, labels={"who": "test"}) as prof:
        for _ in range(6):
            log = every_call(rank, world, pairs[rank % 2])
            ddp_step(model)
            logs.append(log)
            prof.step()
    assert ({**vars(dist.ProcessGroup)}, dist.Work.wait) == before
    Path(out / f"truth-{rank}.json").write_text(json.dumps(logs[0]))


def mixed(rank: int, _world: int, out: Path) -> None:
    """Rank 0 in full, rank 1 light, rank 2 not at all."""
    model = ddp_model()
    ddp_step(model)
    ddp_step(model)
    detail = "full" if rank == 0 else "light"
    with profile(
        out / "run.trace", warmup=0, active=2, detail=detail, ranks=[0, 1], layout={"dp": 3}
    ) as prof:
        for _ in range(5):
            ddp_step(model)
            dist.all_reduce(torch.ones(3))
            prof.step()


def _killed(rank: int, victim: int, out: Path) -> None:
    with profile(out / "run.trace", wait=0, warmup=1, active=2, timeout_s=15) as prof:
        for step in range(4):
            torch.ones(8).sum()
            if step == 2:
                (out / f"step-2-{rank}").touch()
                while not (out / f"step-2-{1 - rank}").exists():
                    time.sleep(0.01)
                if rank == victim:
                    os.kill(os.getpid(), signal.SIGKILL)
            prof.step()


def killed(rank: int, _world: int, out: Path) -> None:
    """Rank 1 dies in the middle of its recording; no collective ties the ranks together."""
    _killed(rank, 1, out)


def killed_reference(rank: int, _world: int, out: Path) -> None:
    """Rank 0 dies, and the store that all ranks share with it."""
    _killed(rank, 0, out)


def triggered(rank: int, _world: int, out: Path) -> None:
    """Rank 1 sees a file appear; both record the same steps."""
    seen = out / f"go-{rank}"
    steps = 0
    with profile(
        out / "run.trace", wait=0, warmup=1, active=2, detail="light", trigger=seen
    ) as prof:
        deadline = time.monotonic() + 20
        more = torch.ones(1)
        while more.item() > 0:
            if rank == 1 and steps == 3:
                seen.touch()
            time.sleep(0.05)
            steps += 1
            done = prof._session is None or prof._session._finisher.handed_over
            more.fill_(0.0 if done or time.monotonic() > deadline else 1.0)
            dist.all_reduce(more)
            prof.step()


SCENARIOS: dict[str, Callable[[int, int, Path], None]] = {
    "calls": calls,
    "mixed": mixed,
    "killed": killed,
    "killed_reference": killed_reference,
    "triggered": triggered,
}


def main() -> None:
    """Run this rank."""
    warnings.simplefilter("ignore")
    scenario, rank, world, port, out = sys.argv[1:]
    start(int(rank), int(world), int(port))
    SCENARIOS[scenario](int(rank), int(world), Path(out))
    if not scenario.startswith("killed"):  # the others would wait for the dead rank
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
