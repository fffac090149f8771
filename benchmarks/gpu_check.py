"""Recording and replay on a GPU, in one go of at most five minutes.

Needs one GPU. Three small jobs train the same GPT: one process over NCCL in full detail (with
the profiler's rows of stream synchronisation), the same in light detail (timed by CUDA
events), and two processes that share the GPU over gloo. Each recording is checked for what
only a GPU can show, then replayed and compared with the measured steps. Run it with::

    python benchmarks/gpu_check.py [--out DIR]

The trace sets stay in DIR (by default ``out/gpu``). Without a GPU it says so and succeeds;
``--device cpu`` then runs the same jobs over gloo, to check the script itself.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from foretrace import TraceSet
from foretrace.collector import profile

STEPS = 12


@dataclass(frozen=True)
class Size:
    """Size of the model and its input."""

    width: int
    layers: int
    length: int
    batch: int
    vocabulary: int = 1024


SIZES = {"cuda": Size(1024, 12, 1024, 8), "cpu": Size(64, 2, 32, 4)}


@dataclass(frozen=True)
class Job:
    """One recording."""

    name: str
    backend: str
    ranks: int
    detail: str


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states, shape ``(batch, length, width)``."""
        parts = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, 64)).transpose(1, 2) for part in parts)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norms[1](x))


def gpt(size: Size) -> nn.Module:
    """Embedding, blocks and head."""
    blocks = [Block(size.width) for _ in range(size.layers)]
    head = nn.Linear(size.width, size.vocabulary, bias=False)
    return nn.Sequential(nn.Embedding(size.vocabulary, size.width), *blocks, head)


def worker(rank: int, job: Job, device: str, port: int, out: str) -> None:
    """Train on one rank and record three steps."""
    warnings.simplefilter("ignore")
    if device == "cpu":
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(0)
    dist.init_process_group(
        job.backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=job.ranks
    )
    size = SIZES[device]
    net = nn.parallel.DistributedDataParallel(gpt(size).to(device), bucket_cap_mb=8)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    tokens = torch.randint(size.vocabulary, (size.batch, size.length + 1), device=device)
    gathered = torch.empty(job.ranks * 1024, device=device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            logits = net(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        work = dist.all_gather_into_tensor(
            gathered, loss.detach().float().expand(1024).contiguous(), async_op=True
        )
        optimizer.step()
        work.wait()

    for _ in range(3):
        step()
    with profile(out, wait=2, warmup=2, active=3, detail=job.detail) as prof:
        for _ in range(STEPS):
            step()
            prof.step()
    dist.destroy_process_group()


def record(job: Job, device: str, out: Path) -> float:
    """Run a job; seconds taken."""
    began = time.monotonic()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shutil.rmtree(out, ignore_errors=True)
    torch.multiprocessing.spawn(worker, (job, device, port, str(out)), job.ranks)
    return time.monotonic() - began


def facts(job: Job, device: str, out: Path) -> dict[str, Any]:
    """What the recording holds, and the checks that follow from it."""
    trace = TraceSet.open(out)
    info = trace.info(0)
    calls = trace.collectives(0).to_pylist()
    kinds = [row["kind"] for row in calls]
    gathers = [row for row in calls if row["kind"] == "all_gather"]
    checks = {
        "every rank is there": trace.ranks == list(range(job.ranks)),
        "three steps": len(trace.steps) == 3,
        "the hook saw all calls": {row["source"] for row in calls} == {"hook"},
        "one all-gather a step": len(gathers) == 3,
        "with exact bytes": {(r["bytes_in"], r["bytes_out"]) for r in gathers}
        == {(4096, 4096 * job.ranks)},
        "buckets are all-reduced": kinds.count("all_reduce") >= 3,
        "the wait is linked": all(row["wait_event"] >= 0 for row in gathers),
    }
    if device == "cuda":
        checks["the GPU has a name"] = bool(info.device_name)
    if device == "cuda" and job.detail == "full":
        checks["kernels were recorded"] = info.counts.get("kernel", 0) > 100
        checks["stream synchronisation was recorded"] = info.counts.get("sync", 0) > 0
    if device == "cuda" and job.detail == "light":
        works = [row["work_event"] for row in gathers]
        checks["the device timed the all-gather"] = all(row >= 0 for row in works)
    return {"counts": info.counts, "versions": info.versions, "checks": checks}


def replayed(out: Path) -> list[dict[str, Any]]:
    """Steps as ``foretrace replay --json`` gives them."""
    command = [sys.executable, "-m", "foretrace.cli.app", "replay", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return [{"problem": (done.stderr.strip().splitlines() or ["no message"])[-1]}]
    steps: list[dict[str, Any]] = json.loads(done.stdout)["steps"]
    return steps


def report(job: Job, device: str, out: Path, seconds: float) -> bool:
    """Print what came out; whether all checks hold."""
    print(f"\n{job.name}: {job.ranks} over {job.backend}, {job.detail} detail, {seconds:.0f} s")
    found = facts(job, device, out)
    print(f"  rows {found['counts']}")
    print(f"  versions {found['versions']}")
    for what, holds in found["checks"].items():
        print(f"  {'ok ' if holds else 'NO '} {what}")
    for step in replayed(out) if job.detail == "full" else []:
        if "problem" in step:
            print(f"  NO  replay: {step['problem']}")
            return False
        print(
            f"  step {step['step']}: measured {step['measured_ns'] / 1e6:.2f} ms, replayed "
            f"{step['replayed_ns'] / 1e6:.2f} ms, error {step['error']:+.2%}, "
            f"unexplained {step['unexplained']:.2%}"
        )
        if not math.isfinite(step["error"]):
            return False
    return all(found["checks"].values())


def main() -> int:
    """Record, check, replay."""
    parser = argparse.ArgumentParser(description="recording and replay on a GPU")
    parser.add_argument("--out", type=Path, default=Path("out") / "gpu")
    parser.add_argument("--device", choices=sorted(SIZES), default="cuda")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print(f"no GPU here: torch {torch.__version__} sees none; nothing was checked")
        return 0
    fast = "nccl" if given.device == "cuda" else "gloo"
    jobs = [
        Job("gpt-nccl", fast, 1, "full"),
        Job("gpt-nccl-light", fast, 1, "light"),
        Job("gpt-gloo", "gloo", 2, "full"),
    ]
    given.out.mkdir(parents=True, exist_ok=True)
    good = True
    tell: Callable[[Job, str, Path, float], bool] = report
    for job in jobs:
        out = given.out / f"{job.name}.trace"
        good &= tell(job, given.device, out, record(job, given.device, out))
    print("\nall checks hold" if good else "\nsome checks do not hold")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
