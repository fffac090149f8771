"""How long predictions take, and whether the short ways give what the long ones do.

Usage: ``python benchmarks/extrapolate_speed.py [--skip-sweep]``

Prints the whole command on GPT-175B from 96 to 131,072 GPUs (beside it what Echo publishes for
its simulation of as many GPUs, arXiv 2412.12487), a sweep of 1,000 layouts at 1,024 GPUs, a job of
256 GPUs with and without folding, and the jitter term beside a simulation of 1,024 ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from foretrace.replay.cluster import Tier, load_cluster
from foretrace.replay.engine import replay
from foretrace.replay.extrapolate.candidates import candidates, choices
from foretrace.replay.extrapolate.jitter import Jitter, jitter_ns, variances
from foretrace.replay.extrapolate.job import extrapolate
from foretrace.replay.extrapolate.sweep import Target, sweep
from foretrace.replay.extrapolate.times import time_workload
from foretrace.replay.graph import TaskKind
from foretrace.replay.layout import Layout, stage_layers
from foretrace.replay.model import load_model
from foretrace.replay.workload.describe import describe
from foretrace.replay.workload.loads import rank_loads, zipf_counts

PROGRAM = str(Path(sys.executable).with_name("foretrace"))
CLUSTER = "h100-8x400g"
SIZES = (  # GPUs, pipeline ranks, sequences of a step, seconds allowed, what Echo takes
    (96, 12, 1536, 2, ""),
    (128, 8, 1536, 3, "83.4 s"),
    (1024, 8, 1536, 3, "718.7 s"),
    (8192, 16, 3072, 5, "4,976.9 s"),
    (131072, 16, 16384, 30, ""),
)
LAYOUTS = 1000
STEPS = 30


def command(gpus: int, pp: int, batch: int) -> tuple[float, float, float, int]:
    """Wall and processor seconds of the whole command, its GiB, and the step it says, ns."""
    argv = [
        PROGRAM, "extrapolate", "gpt3-175b", "--cluster", CLUSTER, "--gpus", str(gpus),
        "--tp", "8", "--pp", str(pp), "--global-batch", str(batch), "--json",
    ]  # fmt: skip
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(argv, stdout=out)
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0  # it is gone already
        wall = time.perf_counter() - began
        out.seek(0)
        step = msgspec.json.decode(out.read())["step_ns"]
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20, step


def commands() -> None:
    """The table of whole commands."""
    print(f"{'GPUs':>8} {'wall s':>7} {'bar s':>6} {'cpu s':>6} {'GiB':>5} {'step s':>8}  Echo")
    for gpus, pp, batch, allowed, echo in SIZES:
        command(gpus, pp, batch)  # warm
        wall, cpu, memory, step = min(command(gpus, pp, batch) for _ in range(3))
        print(
            f"{gpus:>8,} {wall:>7.2f} {allowed:>6} {cpu:>6.2f} {memory:>5.2f} {step / 1e9:>8.3f}"
            f"  {echo}"
        )


def many_layouts() -> None:
    """A sweep of 1,000 layouts of GPT-175B on 1,024 GPUs."""
    model, cluster = load_model("gpt3-175b"), load_cluster(CLUSTER)
    base = {"seq": 2048, "global_batch": 1536}
    tried = {
        **choices(model, cluster, 1024, base),
        "zero": (0, 1, 2, 3),
        "micro_batch": (1, 2, 3, 4, 6, 8),
    }
    found = candidates(model, cluster, 1024, base, tried)
    picked = np.linspace(0, len(found.layouts) - 1, LAYOUTS).astype(int)
    layouts = [found.layouts[k] for k in picked.tolist()]
    began = time.perf_counter()
    best = sweep(Target(model, cluster), layouts, jobs=2)[0]
    wall = time.perf_counter() - began
    print(
        f"sweep: {len(layouts)} of {len(found.layouts)} layouts that fit in {wall:.1f} s on 2 "
        f"processes (bar 60 s); best step {best.step_ns / 1e9:.3f} s"
    )


def exact() -> None:
    """256 GPUs with everything that splits roles: folded and whole steps, ns."""
    model = load_model("mixtral-8x7b")
    layout = Layout(seq=4096, global_batch=128, tp=2, pp=4, dp=32, ep=8)
    cluster = msgspec.structs.replace(
        load_cluster(CLUSTER), tiers=(Tier(name="leaf", nodes=3, oversubscription=3.0),)
    )
    rng = np.random.default_rng(5)
    slow = np.ones(256)
    slow[rng.choice(256, 3, replace=False)] = rng.uniform(1.05, 1.5, 3)
    loads = rank_loads(zipf_counts(model.experts, 1.0), layout.ep)
    made = time_workload(describe(model, layout), cluster.gpu).timed
    steps = []
    for whole in (False, True):
        found = extrapolate(
            made, layout, cluster, stage_layers(model, layout), slow=slow, loads=loads, whole=whole
        )
        steps.append(int(replay(found.graph).end_ns.max()))
        print(
            f"256 GPUs, 3 stragglers, uneven experts, groups across switches: "
            f"{len(found.roles):>3} roles, {len(found.graph):>9,} tasks, step {steps[-1]:,} ns"
        )
    print(f"folded less whole: {steps[0] - steps[1]} ns (bar 0)")


def jitter() -> None:
    """The jitter term and a simulation of all 1,024 ranks."""
    model, cluster = load_model("llama2-7b"), load_cluster(CLUSTER)
    noise = Jitter(matrix=0.03, attention=0.03, memory=0.03)
    for layout in (
        Layout(seq=4096, global_batch=256, tp=8, pp=4, dp=32),
        Layout(seq=4096, global_batch=2048, dp=1024),
    ):
        layers = stage_layers(model, layout)
        made = time_workload(describe(model, layout), cluster.gpu).timed
        term = jitter_ns(made, noise, layout, cluster, layers)
        graph = extrapolate(made, layout, cluster, layers, whole=True).graph
        square = extrapolate(
            variances(made, noise), layout, cluster, layers, whole=True,
            prices=lambda ops, where: np.zeros(len(ops.kind)),
        ).graph  # fmt: skip
        rows = np.flatnonzero((square.dur_ns > 0) & (square.kind == TaskKind.KERNEL))
        spread = np.sqrt(square.dur_ns[rows])
        rng, ends = np.random.default_rng(3), []
        for _ in range(STEPS):
            dur = graph.dur_ns.copy()
            dur[rows] += np.rint(spread * rng.standard_normal(len(rows))).astype(np.int64)
            ends.append(float(replay(graph, np.maximum(dur, 0)).end_ns.max()))
        plain = float(replay(graph).end_ns.max())
        wanted, error = np.mean(ends) - plain, np.std(ends) / np.sqrt(STEPS)
        print(
            f"jitter, tp {layout.tp} pp {layout.pp} dp {layout.dp}: term {term / 1e6:.3f} ms, "
            f"{STEPS} steps of all ranks {wanted / 1e6:.3f} +- {error / 1e6:.3f} ms, "
            f"off by {term / wanted - 1:+.2%} (bar 2%)"
        )


if __name__ == "__main__":
    commands()
    exact()
    jitter()
    if "--skip-sweep" not in sys.argv:
        many_layouts()
