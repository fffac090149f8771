"""What recording costs: a real gloo DDP job with and without the collector, in turns.

Four processes train a small transformer. In each round the same loop runs under no profiler,
under plain torch.profiler with the collector's settings, under the collector in full and in
light detail, in an order that changes from round to round. A step's wall time is that of
the slowest rank; its processor time, of all threads of all ranks, tells the same where other
programs disturb the clock. Run it with::

    python benchmarks/collector_overhead.py [--rounds 12] [--ranks 4] [--json]

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
from foretrace.collector.kineto import experimental_config

WAIT, WARMUP, ACTIVE = 1, 2, 7
VARIANTS = ("bare", "torch.profiler", "full", "light")
BARS = {"torch.profiler": ("bare", 0.0), "full": ("torch.profiler", 0.10), "light": ("bare", 0.01)}
Array = np.ndarray[Any, Any]


def model() -> nn.Module:
    """A transformer that gives DDP a handful of buckets."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.parallel.DistributedDataParallel(body, bucket_cap_mb=2)


@contextlib.contextmanager
def plain_profiler() -> Any:
    """torch.profiler as a user who wants the same rows would run it."""
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
        record_shapes=True,
        experimental_config=experimental_config(with_stack=False),
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


def step_times(train_step: Callable[[], None], context: Any) -> list[list[int]]:
    """Wall and processor times of the recorded steps, ns.

    What starts and stops a recording is left out: a step counts from the end of the one
    before, and the first recorded one does not count.
    """
    ends = []
    with context as step_over:
        for _ in range(WAIT + WARMUP + ACTIVE):
            train_step()
            ends.append((time.perf_counter_ns(), time.process_time_ns()))
            step_over()
    return np.diff(ends, axis=0)[-ACTIVE + 1 :].T.tolist()


def worker(rank: int, world: int, port: int, rounds: int, folder: str) -> None:
    """All rounds of one rank; rank 0 writes all step times."""
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
    found: dict[str, list[list[list[int]]]] = {name: [] for name in VARIANTS}
    for turn in range(rounds):
        for i in range(len(VARIANTS)):
            name = VARIANTS[(i + turn) % len(VARIANTS)]
            dist.barrier()
            wall, processor = torch.tensor(step_times(train_step, contexts[name]()))
            dist.all_reduce(wall, dist.ReduceOp.MAX)
            dist.all_reduce(processor, dist.ReduceOp.SUM)
            found[name].append([wall.tolist(), processor.tolist()])
    if rank == 0:
        (Path(folder) / "times.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def compare(times: dict[str, Array], name: str, base: str) -> dict[str, float]:
    """Added cost of ``name`` over ``base`` as a share of the bare step.

    Args:
        times: step times of each variant, shape ``(rounds, steps)``.
        name: variant.
        base: variant to compare with, in the same round.

    Returns:
        The median of the rounds' differences, and the middle 90 % of what resampling the
        rounds gives for it.
    """
    bare_ns = float(np.median(times["bare"]))
    per_round = np.median(times[name], axis=1) - np.median(times[base], axis=1)
    draws = np.random.default_rng(0).choice(per_round, (2000, len(per_round)))
    low, high = np.quantile(np.median(draws, axis=1), (0.05, 0.95))
    share = [float(ns) / bare_ns for ns in (np.median(per_round), low, high)]
    return dict(zip(("added", "low", "high"), share, strict=True))


def run(rounds: int, ranks: int) -> dict[str, dict[str, Array]]:
    """Wall and processor times of each variant, ns, shape ``(rounds, steps)``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tempfile.mkdtemp()
    try:
        torch.multiprocessing.spawn(worker, (ranks, port, rounds, folder), ranks)
        read = json.loads((Path(folder) / "times.json").read_text())
    finally:
        shutil.rmtree(folder)
    both = {name: np.array(times, float) for name, times in read.items()}
    return {
        clock: {name: times[:, i] for name, times in both.items()}
        for i, clock in enumerate(("wall", "processor"))
    }


def table(times: dict[str, Array], clock: str) -> list[str]:
    """The lines of one clock's table."""
    lines = [f"{clock} time of a step"]
    for name in VARIANTS:
        line = f"  {name:15} {np.median(times[name]) / 1e6:9.2f} ms"
        if name in BARS:
            base, bar = BARS[name]
            cost = compare(times, name, base)
            line += f"  {cost['added']:+7.2%} of the bare step over {base}"
            line += f"  ({cost['low']:+.2%} to {cost['high']:+.2%})"
            line += f"  bar {bar:.0%}" if bar else ""
        lines.append(line)
    return lines


def main() -> None:
    """Run the job and print the tables."""
    parser = argparse.ArgumentParser(description="cost of recording")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    clocks = run(given.rounds, given.ranks)
    if given.json:
        figures = {
            clock: {
                "step_ms": {name: float(np.median(t)) / 1e6 for name, t in times.items()},
                "added": {n: compare(times, n, base) for n, (base, _) in BARS.items()},
            }
            for clock, times in clocks.items()
        }
        print(json.dumps(figures))
        return
    print(f"{given.ranks} ranks, {given.rounds} rounds of {ACTIVE - 1} steps of each kind")
    for clock, times in clocks.items():
        print("\n".join(table(times, clock)))


if __name__ == "__main__":
    main()
