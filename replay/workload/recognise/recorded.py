"""From a trace set to a workload, the layout that it was recorded under, and a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from foretrace.replay.build import Build, build
from foretrace.replay.costs.kernel_class import KERNEL_CLASSES
from foretrace.replay.graph import F64
from foretrace.replay.layout import Layout, stage_layers
from foretrace.replay.model import Model, check_model
from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.describe import describe, step_flops
from foretrace.replay.workload.operations import Block, Workload
from foretrace.replay.workload.recognise.chain import read_chains
from foretrace.replay.workload.recognise.dimensions import Dimensions, find_dimensions
from foretrace.replay.workload.recognise.ends import Finish, edge, finish
from foretrace.replay.workload.recognise.layers import Job, Layer, counted, read_layer
from foretrace.replay.workload.recognise.messages import Messages, read_messages
from foretrace.replay.workload.recognise.passes import Pass, find_passes
from foretrace.replay.workload.recognise.report import Report, make_report
from foretrace.replay.workload.recognise.rows import Row, operations
from foretrace.replay.workload.recognise.split import Split, find_split, tensor_numbers
from foretrace.replay.workload.recognise.talks import Talks, find_talks, transfers
from foretrace.traces.errors import GraphError, LayoutError
from foretrace.traces.schema import COLLECTIVE_KINDS
from foretrace.traces.store import TraceSet

_GEMM = KERNEL_CLASSES.index("gemm")
_ATTENTION = KERNEL_CLASSES.index("attention")
_MANY = 1 << 40  # bytes of a bucket that holds whatever comes


@dataclass(frozen=True, slots=True)
class Recognised:
    """A recorded job as a workload.

    Attributes:
        workload: its blocks, with measured durations.
        model: shape of the model.
        layout: how it was split.
        device: name of the device as recorded.
        finish: end of the step behind the last pass.
        messages: measured times of communication.
        resume_ns: from the end of a transfer between stages to the next operation.
        spread: standard deviation of the log time of a layer over its occurrences, by phase.
        step_ns: measured step, median over steps and ranks.
        report: what was recognised and what not.
    """

    workload: Workload
    model: Model
    layout: Layout
    device: str
    finish: Finish
    messages: Messages
    resume_ns: float
    spread: dict[bool, float]
    step_ns: float
    report: Report


def recognise(trace: TraceSet, built: Build | None = None) -> Recognised:
    """Read a workload off a trace set.

    Args:
        trace: recorded ranks; at least one of each pipeline stage.
        built: its job graph, if it is at hand.

    Raises:
        LayoutError: no layers recur, or shapes and groups do not fit together.
        GraphError: nothing ran on a device.
    """
    made = build(trace) if built is None else built
    graph = made.graph
    chains, tokens = read_chains(trace, made)
    if not any(chain.main.any() for chain in chains):
        raise GraphError(
            f"{trace.path}: no computation on a device inside of steps; a workload is read off the "
            "kernels of a training step"
        )
    passes = find_passes(chains, [transfers(graph, chain) for chain in chains])
    world = max(max((trace.info(r).world_size for r in trace.ranks), default=0), len(trace.ranks))
    talks = find_talks(graph, chains, passes, world)
    if "ep" in talks.size:
        raise LayoutError(
            "layers swap tokens (all-to-all): mixtures of experts cannot be read off a trace yet; "
            "give the model's description instead"
        )
    split = find_split(graph, chains, passes)
    numbers = tensor_numbers(talks, sorted(split.stage))
    counts = counted(graph, chains, talks)
    job = Job(graph, chains, tokens.labels(), talks, passes, numbers, split.stage, counts)
    ahead = [read_layer(job, stage) for stage in range(len(split.layers))]
    layers = [(one, read_layer(job, stage, one.tokens)) for stage, one in enumerate(ahead)]
    ends = _ends(job, split)
    shape = find_dimensions(
        layers[0][0].rows, [r for r in ends["head"] if r.phase == Phase.FORWARD]
    )
    model = _model(shape, talks, split, job)
    layout = _layout(shape, talks, split, world, job, layers[0])
    last = finish(job)
    messages = read_messages(trace, job)
    device = next((trace.info(r).device_name for r in trace.ranks), "")
    resume = np.concatenate([layer.resume_ns for both in layers for layer in both])
    return Recognised(
        workload=_workload(model, layout, layers, ends),
        model=model,
        layout=layout,
        device=device,
        finish=last,
        messages=messages,
        resume_ns=float(np.median(resume)) if len(resume) else 0.0,
        spread={b: max(_spread(both[b].total_ns) for both in layers) for b in (False, True)},
        step_ns=float(np.median([c.end_ns - c.begin_ns for c in chains])),
        report=make_report(job, split, layers),
    )


def _ends(job: Job, split: Split) -> dict[str, list[Row]]:
    """Rows of embedding and head, forward before backward."""
    last_stage = max(split.stage.values(), default=0)
    by_rank: dict[tuple[bool, bool, bool], list[Pass]] = {}
    for p in job.passes.passes:
        stage = split.stage[job.chains[p.chain].rank]
        by_rank.setdefault((p.backward, stage == 0, stage == last_stage), []).append(p)
    rows: dict[str, list[Row]] = {"embedding": [], "head": []}
    for backward in (False, True):
        for (phase, first, last), passes in by_rank.items():
            if phase != backward or not (first or last):
                continue
            for behind in (False, True):
                # Forward, the head stands behind the layers; backward, before them.
                outer = "head" if behind != backward else "embedding"
                name = outer if first and last else ("embedding" if first else "head")
                rows[name] += edge(job, passes, behind, split.virtual)
    return rows


def _model(shape: Dimensions, talks: Talks, split: Split, job: Job) -> Model:
    tp = talks.size.get("tp", 1)
    tied = any(talk.group == "pp" for talk, _ in finish(job).talks)
    return check_model(
        Model(
            name="recorded model",
            layers=sum(split.layers),
            hidden=shape.hidden,
            heads=shape.heads * tp,
            kv_heads=shape.kv_heads * tp,
            head_dim=shape.head_dim,
            ffn=shape.ffn * tp,
            gated=shape.gated,
            vocab=max(shape.vocab * tp, 1),
            tied=tied,
            seq=shape.seq,
            source="shapes of a recorded step",
        ),
        "recorded model",
    )


def _layout(
    shape: Dimensions, talks: Talks, split: Split, world: int, job: Job,
    layers: tuple[Layer, Layer],
) -> Layout:  # fmt: skip
    tp, pp = talks.size.get("tp", 1), len(split.layers)
    dp = max(world // (tp * pp), 1)
    inside = _inside(job, gathers=False)
    return Layout(
        seq=shape.seq,
        global_batch=shape.micro_batch * split.micro_batches * dp,
        micro_batch=shape.micro_batch,
        tp=tp,
        pp=pp,
        dp=dp,
        virtual=split.virtual,
        schedule=split.schedule,
        layers=_stage_layers(split),
        zero=3 if talks.sharded else (1 if talks.scattered else 0),
        shard=talks.size["shard"] if talks.sharded and talks.size["shard"] < dp else 0,
        sequence_parallel=talks.sequence_parallel or tp == 1,
        flash=shape.flash,
        recompute=_recompute(layers),
        precision=shape.dtype or "bf16",
        overlap_gradients=inside,
        overlap_parameters=_inside(job, gathers=True),
        overlap_pipeline=False,
        bucket_bytes=0 if inside or talks.sharded else _MANY,
    )


def _stage_layers(split: Split) -> tuple[int, ...]:
    """Layers of each stage; those of one pipeline rank share its layers evenly."""
    return tuple(n // split.virtual for _ in range(split.virtual) for n in split.layers)


def _inside(job: Job, gathers: bool) -> bool:
    """Whether gradients are reduced (or parameters gathered) beside passes for the most part."""
    kind = job.graph.collectives.kind
    mine = np.array(
        [job.talks.is_state(job.graph, c) for c in range(len(kind))] + [False], np.bool_
    )
    mine[:-1] &= (kind == COLLECTIVE_KINDS.index("all_gather")) == gathers
    inside, behind = 0, 0
    for chain, tail in zip(job.chains, job.passes.tail, strict=True):
        inside += int(mine[chain.collective[:tail]].sum())
        behind += int(mine[chain.collective[tail:]].sum())
    return inside > behind


def _recompute(layers: tuple[Layer, Layer]) -> Literal["none", "selective", "full"]:
    """What the backward pass runs of the forward pass."""
    forward, backward = layers
    attention = {r.name for r in forward.rows if r.work[0] == _ATTENTION}
    again = {r.name for r in backward.rows} & attention
    ahead, back = (sum(r.work[0] == _GEMM for r in one.rows) for one in layers)
    if back >= 3 * ahead > 0:
        return "full"
    return "selective" if again else "none"


def _workload(
    model: Model, layout: Layout, layers: Sequence[tuple[Layer, Layer]],
    ends: dict[str, list[Row]],
) -> Workload:  # fmt: skip
    """Embedding, one block for the layers of each pipeline rank, head."""
    described = {block.name: block for block in describe(model, layout).blocks}
    rows = [
        ("embedding", ends["embedding"]),
        *(("layer", [*ahead.rows, *back.rows]) for ahead, back in layers),
        ("head", ends["head"]),
    ]
    stages = stage_layers(model, layout)
    numbers = [1 + s % layout.pp for s, count in enumerate(stages) for _ in range(count)]
    return Workload(
        name=model.name,
        blocks=tuple(
            Block(name, described[name].parameters, 0, operations(own)) for name, own in rows
        ),
        sequence=(0, *numbers, len(rows) - 1),
        places=(1, 1),
        boundary_bytes=describe(model, layout).boundary_bytes,
        flops=step_flops(model, layout.seq, layout.global_batch),
        tokens=layout.seq * layout.global_batch,
    )


def _spread(total: F64) -> float:
    logs = np.log(np.maximum(total, 1.0))
    return float(1.4826 * np.median(np.abs(logs - np.median(logs)))) if len(logs) else 0.0
