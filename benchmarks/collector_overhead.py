"""What recording costs: a real gloo DDP job with and without the collector, in turns.

Four processes train a small transformer. In each round the same loop runs under no profiler,
under plain torch.profiler with the collector's settings, under the collector in full and in
light detail, in an order that changes from round to round. A step's time is that of the
slowest rank. Run it with::

    python benchmarks/collector_overhead.py [--rounds 8] [--ranks 4] [--json]

Bars: full detail adds at most 10 % of the step to plain torch.profiler; light detail at most
1 % of the step to no profiler.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import socket
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from foretrace.collector import profile
from foretrace.collector.kineto import _experimental

WAIT, WARMUP, ACTIVE = 1, 2, 10
VARIANTS = ("bare", "torch.profiler", "full", "light")


def model() -> nn.Module:
    """A transformer that gives DDP a handful of buckets."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return nn.parallel.DistributedDataParallel(body, bucket_cap_mb=2)


@contextlib.contextmanager
def plain_profiler() -> Any:
    """torch.profiler as a user who wants the same rows would run it."""
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
        record_shapes=True,
        experimental_config=_experimental(with_stack=False),
    ) as prof:
        yield prof.step


@contextlib.contextmanager
def ours(detail: str, out: Path) -> Any:
    """The collector."""
    settings: dict[str, Any] = {"wait": WAIT, "warmup": WARMUP, "active": ACTIVE}
    with profile(out, detail=detail, **settings) as prof:
        yield prof.step


@contextlib.contextmanager
def bare() -> Any:
    """No profiler."""
    yield lambda: None


def step_times(train_step: Callable[[], None], context: Any) -> list[int]:
    """Times of the recorded steps, ns; what starts and stops a recording is left out."""
    ends = []
    with context as step_over:
        for _ in range(WAIT + WARMUP + ACTIVE):
            train_step()
            ends.append(time.perf_counter_ns())
            step_over()
    return np.diff(ends)[-ACTIVE + 1 :].tolist()


def worker(rank: int, world: int, port: int, rounds: int, folder: str) -> None:
    """All rounds of one rank; rank 0 writes the slowest rank's step times."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
    )
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.randn(8, 32, 256)

    def train_step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    contexts: dict[str, Callable[[], Any]] = {
        "bare": bare,
        "torch.profiler": plain_profiler,
        "full": lambda: ours("full", Path(folder) / "full.trace"),
        "light": lambda: ours("light", Path(folder) / "light.trace"),
    }
    for _ in range(5):
        train_step()
    found: dict[str, list[list[int]]] = {name: [] for name in VARIANTS}
    for turn in range(rounds):
        for i in range(len(VARIANTS)):
            name = VARIANTS[(i + turn) % len(VARIANTS)]
            dist.barrier()
            times = torch.tensor(step_times(train_step, contexts[name]()))
            dist.all_reduce(times, dist.ReduceOp.MAX)
            found[name].append(times.tolist())
    if rank == 0:
        (Path(folder) / "times.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def compare(times: dict[str, np.ndarray[Any, Any]], name: str, base: str) -> dict[str, float]:
    """Added cost of ``name`` over ``base`` as a share of the bare step.

    The median of the rounds' differences, and the middle 90 % of what resampling the rounds
    gives for it.
    """
    bare_ns = float(np.median(times["bare"]))
    per_round = np.median(times[name], axis=1) - np.median(times[base], axis=1)
    draws = np.random.default_rng(0).choice(per_round, (2000, len(per_round)))
    low, high = np.quantile(np.median(draws, axis=1), (0.05, 0.95))
    share = [float(ns) / bare_ns for ns in (np.median(per_round), low, high)]
    return dict(zip(("added", "low", "high"), share, strict=True))


def main() -> None:
    """Run the job and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tempfile.mkdtemp()
    try:
        torch.multiprocessing.spawn(worker, (given.ranks, port, given.rounds, folder), given.ranks)
        read = json.loads((Path(folder) / "times.json").read_text())
    finally:
        shutil.rmtree(folder)
    times = {name: np.array(read[name], float) for name in VARIANTS}
    bars = {
        "full": ("torch.profiler", 0.10),
        "light": ("bare", 0.01),
        "torch.profiler": ("bare", None),
    }
    costs = {name: compare(times, name, base) for name, (base, _) in bars.items()}
    if given.json:
        medians = {name: float(np.median(t)) / 1e6 for name, t in times.items()}
        print(json.dumps({"step_ms": medians, "added": costs}))
        return
    print(f"{given.ranks} ranks, {given.rounds} rounds of {ACTIVE - 1} steps; slowest rank")
    for name in VARIANTS:
        line = f"{name:15} {np.median(times[name]) / 1e6:8.2f} ms"
        if name in bars:
            base, bar = bars[name]
            cost = costs[name]
            line += f"  {cost['added']:+7.2%} of the step over {base}"
            line += f"  (90 % of resamples: {cost['low']:+.2%} to {cost['high']:+.2%})"
            line += f"  bar {bar:.0%}" if bar is not None else ""
        print(line)


if __name__ == "__main__":
    main()
