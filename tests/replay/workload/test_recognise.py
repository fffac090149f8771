"""Workloads read off steps whose make-up is known, and given back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.replay.traces import AUTOGRAD
from tests.replay.workload.recorded_step import FFN, HEADS, HIDDEN, VOCAB, WIDTH, Item, Step

from foretrace.replay.cluster import load_cluster
from foretrace.replay.costs.collectives.cost import Collectives
from foretrace.replay.costs.collectives.price import price
from foretrace.replay.costs.collectives.shapes import ALL_GATHER, ALL_REDUCE
from foretrace.replay.costs.kernel import model_estimate
from foretrace.replay.extrapolate.predict import Prediction, predict
from foretrace.replay.layout import Layout
from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.operations import Operations
from foretrace.replay.workload.recognise.messages import measured_price
from foretrace.replay.workload.recognise.recorded import Recognised, recognise
from foretrace.replay.workload.recognise.rows import GAPS, OTHER
from foretrace.replay.workload.recognise.times import recorded_prices
from foretrace.replay.workload.recognise.transfer import under
from foretrace.traces.errors import GraphError, LayoutError

CLUSTER = load_cluster("a100-8x200g")
JOBS = {
    "one rank": Step(),
    "tensor-parallel": Step(tp=2, late=500),
    "pipeline": Step(pp=2),
    "both": Step(tp=2, pp=2, batches=4, pause=300),
    "attention again": Step(again=True),
    "longer pipeline": Step(pp=4, layers=2, batches=6),
    "interleaved": Step(pp=4, virtual=2, layers=2, batches=4, pause=200),
    "copies": Step(dp=2),
    "copies of a pipeline": Step(tp=2, pp=2, dp=2),
    "sharded state": Step(dp=2, scatter=True),
    "gradients beside": Step(dp=2, overlap=True),
}


def found_in(step: Step, path: Path) -> Recognised:
    return recognise(step.write(path / "job.trace"))


def predicted(found: Recognised, **changes: object) -> Prediction:
    layout = msgspec.structs.replace(found.layout, **changes)
    workload, times = under(found, layout, CLUSTER.gpu)
    prices = recorded_prices(found, same=True)
    return predict(found.model, workload, layout, CLUSTER, measured=(times, prices))


def computed(ops: Operations, forward: bool) -> list[tuple[str, int]]:
    """(name, us) of a block's computations, gaps left out."""
    rows = zip(ops.name, ops.phase, ops.collective, ops.measured_ns, strict=True)
    return [
        (name, int(ns) // 1000)
        for name, phase, collective, ns in rows
        if name != GAPS and collective < 0 and (phase == Phase.FORWARD) == forward
    ]


@pytest.mark.parametrize("name", JOBS)
def test_structure_and_shapes(name: str, tmp_path: Path) -> None:
    step = JOBS[name]
    found = found_in(step, tmp_path)
    model, layout = found.model, found.layout
    assert model.layers == step.layers * step.pp * step.virtual
    assert found.report.layers == (step.layers * step.virtual,) * step.pp
    assert layout.layers == (step.layers,) * step.pp * step.virtual
    assert (model.hidden, model.heads, model.kv, model.width) == (HIDDEN, HEADS, HEADS, WIDTH)
    assert (model.ffn, model.gated, model.vocab) == (FFN, False, VOCAB)
    assert (layout.tp, layout.pp, layout.dp) == (step.tp, step.pp, step.dp)
    assert (layout.micro_batches, layout.micro_batch) == (step.batches, step.sequences)
    assert (layout.seq, layout.precision, layout.virtual) == (step.seq, "bf16", step.virtual)
    assert layout.schedule == ("interleaved" if step.virtual > 1 else "1f1b")
    assert layout.recompute == ("selective" if step.again else "none")
    assert found.report.schedule_fits == 1.0
    assert layout.zero == (1 if step.scatter else 0)
    assert layout.overlap_gradients == step.overlap
    passes = step.batches * step.pp * step.tp * step.dp * step.virtual
    assert found.report.passes == (passes, passes)
    assert found.report.occurrences == (passes * step.layers, passes * step.layers)


@pytest.mark.parametrize("name", JOBS)
def test_own_layout_gives_the_step_back(name: str, tmp_path: Path) -> None:
    found = found_in(JOBS[name], tmp_path)
    made = predicted(found)
    assert made.step_ns == pytest.approx(found.step_ns, rel=0.003)
    assert made.origin["measured"] == pytest.approx(1.0)


def test_operations_are_those_of_the_layer_in_order(tmp_path: Path) -> None:
    found = found_in(JOBS["tensor-parallel"], tmp_path)
    embedding, layer, head = (block.operations for block in found.workload.blocks)
    assert computed(layer, forward=True) == [
        ("aten::layer_norm", 30),
        ("aten::mm", 100),
        ("aten::_flash_attention_forward", 80),
        ("aten::mm", 40),
        ("aten::mm", 130),
        ("aten::gelu", 25),
        ("aten::mm", 140),
    ]
    back = [ns for _, ns in computed(layer, forward=False)]
    assert back == [141, 142, 35, 131, 132, 41, 42, 190, 101, 102, 33]
    weights = layer.measured_ns[layer.phase == Phase.WEIGHT] // 1000
    assert weights.tolist() == [142, 132, 42, 102]
    talks = np.flatnonzero(layer.collective >= 0)
    assert layer.measured_ns[talks].tolist() == [70_000] * 4
    assert not layer.beside.any()
    assert computed(head, forward=True) == [("aten::mm", 300), ("aten::nll_loss", 120)]
    # The slower rank of the pair is waited for, so its time is the block's.
    assert computed(embedding, forward=False) == [("EmbeddingBackward", 560)]


def test_a_pause_of_the_host_is_a_gap_of_its_block(tmp_path: Path) -> None:
    found = found_in(JOBS["both"], tmp_path)
    ops = found.workload.blocks[0].operations
    gap = ops.measured_ns[ops.name.index(GAPS)]
    assert gap == 300_000 + 50_000 / 4  # and once the 50 us between the step's begin and its work


def test_parameters_that_are_gathered_in_every_pass(tmp_path: Path) -> None:
    found = found_in(Step(dp=2, full=True), tmp_path)
    assert (found.layout.dp, found.layout.zero, found.layout.shard) == (2, 3, 0)
    assert (found.layout.tp, found.model.layers) == (1, 4)
    assert found.report.groups == {"shard": 1}
    layer = found.workload.blocks[1].operations
    assert (layer.collective < 0).all()  # they follow from the layout, not from the block


def test_more_micro_batches_take_longer_by_those(tmp_path: Path) -> None:
    step = JOBS["one rank"]
    found = found_in(step, tmp_path)
    more = found_in(replace(step, batches=5), tmp_path / "more")
    made = predicted(found, global_batch=found.layout.global_batch // 3 * 5)
    assert made.step_ns == pytest.approx(more.step_ns, rel=0.002)


def test_another_pipeline_is_what_was_recorded_of_it(tmp_path: Path) -> None:
    one = found_in(Step(layers=8, batches=6), tmp_path / "one")
    four = found_in(Step(pp=4, layers=2, batches=6), tmp_path / "four")
    made = predicted(one, pp=4, layers=(2, 2, 2, 2))
    assert made.step_ns == pytest.approx(four.step_ns, rel=0.02)


def test_other_shapes_scale_as_the_models_do(tmp_path: Path) -> None:
    found = found_in(JOBS["one rank"], tmp_path)
    layout = msgspec.structs.replace(found.layout, micro_batch=4, global_batch=12)
    workload, times = under(found, layout, CLUSTER.gpu)
    at = next(n for n, block in enumerate(workload.blocks) if block.name == "layer")
    ops = workload.blocks[at].operations
    row = ops.name.index("mlp up")
    half = ops.work.only(np.array([row]))
    old = replace(half, sides=half.sides * [1, 0.5, 1, 1])
    ratio = model_estimate(half, CLUSTER.gpu).seconds / model_estimate(old, CLUSTER.gpu).seconds
    assert times.timed.dur_ns[at][row] == pytest.approx(130_000 * ratio[0], rel=1e-6)
    made = predict(
        found.model, workload, layout, CLUSTER, measured=(times, recorded_prices(found, same=True))
    )
    assert made.origin["transferred"] == pytest.approx(1.0)
    assert made.high_ns / made.low_ns > 1.05


def test_fewer_tensor_parallel_ranks_send_less(tmp_path: Path) -> None:
    found = found_in(JOBS["both"], tmp_path)
    assert predicted(found).account.exposed_ns["tp"] > 0
    assert "tp" not in predicted(found, tp=1).account.exposed_ns


def test_messages_cost_what_was_measured_and_others_as_much_more(tmp_path: Path) -> None:
    known = found_in(JOBS["tensor-parallel"], tmp_path).messages
    assert (known.ns.tolist(), known.ranks.tolist(), known.nodes.tolist()) == ([70_000], [2], [1])
    size = 512 * HIDDEN * 2
    assert known.bytes.tolist() == [size]
    asked = Collectives.of(ALL_REDUCE, [size, 1.9 * size, 64 * size], 2, 1)
    times = measured_price(asked, CLUSTER, known)
    model = price(asked, CLUSTER).time_us
    assert times[0] == 70.0
    assert times[1] == pytest.approx(70.0 * model[1] / model[0])
    assert times[2] / model[2] == pytest.approx(min(70.0 / model[0], 5.0))
    other = Collectives.of(ALL_GATHER, size, 2, 1)
    assert measured_price(other, CLUSTER, known) == price(other, CLUSTER).time_us


def test_a_device_that_nobody_knows(tmp_path: Path) -> None:
    found = replace(found_in(JOBS["one rank"], tmp_path), device="abacus")
    with pytest.raises(LayoutError, match="'abacus' is no known GPU"):
        under(found, Layout(seq=256, global_batch=6, micro_batch=2), CLUSTER.gpu)


def test_layers_that_differ_are_no_layers(tmp_path: Path) -> None:
    trace = Step(equal=False, layers=3).write(tmp_path / "x.trace")
    with pytest.raises(LayoutError, match="no layers found: the work of"):
        recognise(trace)


def test_experts_are_not_read_off_yet(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="mixtures of experts cannot be read off a trace yet"):
        recognise(Step(tp=2, within="all_to_all").write(tmp_path / "x.trace"))


def between_layers(step: Step, dur: int, count: int) -> Step:
    """Some layers' backward passes are followed by copies, as full buckets are."""
    layer = step.layer_backward

    def other(rank: int, number: int, key: str) -> list[Item]:
        copy = step.kernel("bucket_copy", dur, "aten::copy_", [8], AUTOGRAD)
        return layer(rank, number, key) + [copy] * (count if number in (1, 4) else 0)

    step.layer_backward = other  # type: ignore[method-assign]
    return step


def test_work_that_only_some_layers_run(tmp_path: Path) -> None:
    found = found_in(between_layers(Step(layers=6), dur=21, count=2), tmp_path)
    assert found.report.occurrences == (18, 18)
    layer = found.workload.blocks[1].operations
    assert layer.measured_ns[layer.name.index(OTHER)] == 2 * 21_000 * 2 / 6
    assert predicted(found).step_ns == pytest.approx(found.step_ns, rel=1e-3)


def test_a_backward_pass_with_other_layers(tmp_path: Path) -> None:
    step = between_layers(Step(layers=6), dur=21, count=30)
    with pytest.raises(LayoutError, match=r"\[6\] layers in the forward .* \[\d\] in the backward"):
        recognise(step.write(tmp_path / "x.trace"))


def test_forward_passes_alone(tmp_path: Path) -> None:
    step = Step(layers=5)
    step.backward = lambda rank, batch, stage: []  # type: ignore[method-assign]
    with pytest.raises(LayoutError, match="nothing was launched by a thread that runs backward"):
        recognise(step.write(tmp_path / "x.trace"))


def test_no_device_work(tmp_path: Path) -> None:
    from tests.replay.traces import RankTrace, write

    rank = RankTrace()
    rank.op("aten::add", 10, 5)
    rank.mark(1, 0, 100)
    with pytest.raises(GraphError, match="no computation on a device inside of steps"):
        recognise(write(tmp_path / "x.trace", rank))
