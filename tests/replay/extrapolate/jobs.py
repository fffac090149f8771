"""Small jobs with made-up durations, so that tests need no cost model of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretrace.replay.cluster import Cluster, load_cluster
from foretrace.replay.extrapolate.job import Extrapolated, extrapolate
from foretrace.replay.extrapolate.stages import Timed
from foretrace.replay.layout import Layout, stage_layers
from foretrace.replay.model import Model
from foretrace.replay.workload.describe import describe

H100 = load_cluster("h100-8x400g")
DENSE = Model(name="small", layers=8, hidden=512, heads=8, ffn=2048, vocab=1024)
MIXTURE = Model(
    name="mix", layers=8, hidden=512, heads=8, ffn=2048, vocab=1024, experts=8, topk=2,
    expert_ffn=512, dense_layers=1,
)  # fmt: skip


def timed(model: Model, layout: Layout, launch_ns: float = 0.0) -> Timed:
    """Durations of 1 us and up, by the bytes and FLOPs of an imaginary device."""
    work = describe(model, layout)
    dur = []
    for block in work.blocks:
        ops = block.operations
        ns = 1000 + ops.work.flops / 1e4 + ops.work.bytes / 1e3
        dur.append(np.where(ops.collective < 0, ns, 0).astype(np.int64))
    return Timed(work, tuple(dur), lambda moved: 1000 + int(moved / 1e3), launch_ns)


def job(
    model: Model, *, cluster: Cluster | None = None, slow: Any = None, whole: bool = False,
    brief: bool = False, loads: Any = None, launch_ns: float = 0.0, **layout: Any,
) -> Extrapolated:  # fmt: skip
    """A job graph."""
    where = cluster or H100
    split = Layout(**{"seq": 512, "global_batch": 32, **layout})
    layers = stage_layers(model, split)
    return extrapolate(
        timed(model, split, launch_ns), split, where, layers, slow=slow, whole=whole, brief=brief,
        loads=loads,
    )  # fmt: skip
