"""The jobs that are recorded, how each is changed, and how foretrace predicts the change.

Nothing here may be chosen by looking at how a changed job ran: a prediction sees the recorded
job, the recorded run of single operations, and what is to be changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from foretrace.replay.graph import JobGraph
from foretrace.replay.schedule.simple import one_forward_one_backward
from foretrace.replay.transforms.buckets import Buckets
from foretrace.replay.transforms.hot_expert import HotExpert
from foretrace.replay.transforms.network import Network
from foretrace.replay.transforms.repipeline import repipelined
from foretrace.replay.transforms.scale import Scale
from foretrace.replay.transforms.shard import sharded
from testbed.prices import Prices
from testbed.sizes import Job

Predict = Callable[[JobGraph, Prices], JobGraph]

RANKS = 8
RECORDED = {
    "ddp": Job(
        "ddp", RANKS, layers=16, parameters=15 * 1024, forward_ms=5.0, backward_ms=10.0,
        bucket_bytes=4 * 4 * 15 * 1024,
    ),
    "pipeline": Job(
        "pipeline", 2, layers=16, forward_ms=3.5, backward_ms=7.5, micro_batches=4,
        activation_bytes=96 * 1024,
    ),
    "experts": Job(
        "experts", RANKS, layers=4, tokens=240, token_bytes=1024, token_us=50.0,
        attention_ms=6.0,
    ),
}  # fmt: skip
"""The jobs as they are recorded. Models and transforms were developed on other sizes."""

SINGLE = Job("collectives", RANKS, sizes=tuple(2**n for n in range(15, 20)))
"""One operation after another, on the links that the jobs are recorded on."""


@dataclass(frozen=True, slots=True)
class Intervention:
    """A change of a recorded job.

    Attributes:
        name: what is changed.
        recorded: key of ``RECORDED``.
        changed: the job that is run.
        predict: recorded graph and prices -> graph of the changed job.
    """

    name: str
    recorded: str
    changed: Job
    predict: Predict


def _links(times: float, kind: str, ranks: int) -> Predict:
    """Links of so many times the rate, for a job whose operations are of one kind."""

    def predict(graph: JobGraph, prices: Prices) -> JobGraph:
        fixed = f"{prices.latency_ns(kind, ranks)}ns"
        return Network(bandwidth=times, per_operation=fixed)(graph)

    return predict


def _slow_rank(graph: JobGraph, _: Prices) -> JobGraph:
    job = _SLOW
    return Scale(select=f"rank:{job.slow_rank},name:*ward layer*", factor=job.slow_factor)(graph)


def _buckets(times: float) -> Predict:
    """Gradient buckets of so many times the size."""

    def predict(graph: JobGraph, prices: Prices) -> JobGraph:
        fixed = f"{prices.latency_ns('all_reduce', RANKS)}ns"
        return Buckets(factor=times, per_operation=fixed)(graph)

    return predict


def _sharded(graph: JobGraph, prices: Prices) -> JobGraph:
    unit = _DDP.bucket_bytes // (4 * _DDP.parameters)
    return sharded(graph, unit, prices.cost_ns)


def _pipeline(stages: int, micro_batches: int) -> Predict:
    """So many stages and micro-batches."""

    def predict(graph: JobGraph, _: Prices) -> JobGraph:
        return repipelined(graph, one_forward_one_backward(stages, micro_batches))

    return predict


def _hot_expert(graph: JobGraph, prices: Prices) -> JobGraph:
    return HotExpert(
        rank=_HOT.hot_expert,
        share=_HOT.hot_share,
        bytes_per_s=prices.link_bytes_per_s(),
        experts="name:*expert*",
    )(graph)


_DDP, _PIPELINE, _EXPERTS = (RECORDED[key] for key in ("ddp", "pipeline", "experts"))
_SLOW = replace(_DDP, slow_rank=3, slow_factor=2.0)
_HOT = replace(_EXPERTS, hot_expert=2, hot_share=0.35)

INTERVENTIONS = (
    Intervention(
        "DDP, links half as fast", "ddp", replace(_DDP, mbit=_DDP.mbit / 2),
        _links(0.5, "all_reduce", RANKS),
    ),
    Intervention(
        "DDP, links twice as fast", "ddp", replace(_DDP, mbit=_DDP.mbit * 2),
        _links(2.0, "all_reduce", RANKS),
    ),
    Intervention("DDP, one rank computes twice as long", "ddp", _SLOW, _slow_rank),
    Intervention(
        "DDP, buckets four times as large", "ddp",
        replace(_DDP, bucket_bytes=_DDP.bucket_bytes * 4), _buckets(4.0),
    ),
    Intervention(
        "DDP, buckets a quarter as large", "ddp",
        replace(_DDP, bucket_bytes=_DDP.bucket_bytes // 4), _buckets(0.25),
    ),
    Intervention("DDP to sharded parameters", "ddp", replace(_DDP, kind="sharded"), _sharded),
    Intervention(
        "pipeline, micro-batches 4 to 8", "pipeline",
        replace(_PIPELINE, micro_batches=8), _pipeline(2, 8),
    ),
    Intervention(
        "pipeline, stages 2 to 4", "pipeline",
        replace(_PIPELINE, ranks=4), _pipeline(4, _PIPELINE.micro_batches),
    ),
    Intervention(
        "pipeline, links half as fast", "pipeline",
        replace(_PIPELINE, mbit=_PIPELINE.mbit / 2), _links(0.5, "send_recv", 2),
    ),
    Intervention("experts, one gets 35% of all tokens", "experts", _HOT, _hot_expert),
)  # fmt: skip
