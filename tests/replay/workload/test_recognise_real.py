"""The recorded Megatron job: what is recognised is held against the trace by other means."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from tests.replay.real import RealSets

from foretrace.replay.cluster import load_cluster
from foretrace.replay.extrapolate.predict import predict
from foretrace.replay.layout import group_of
from foretrace.replay.workload.recognise.recorded import Recognised, recognise
from foretrace.replay.workload.recognise.times import recorded_prices
from foretrace.replay.workload.recognise.transfer import under
from foretrace.traces.store import TraceSet


@pytest.fixture(scope="module")
def opened(real_sets: RealSets) -> Callable[[str], TraceSet]:
    def trace(name: str) -> TraceSet:
        real_sets.get(name)
        return TraceSet.open(real_sets.target / f"{name}.trace")

    return trace


@pytest.fixture(scope="module")
def found(opened: Callable[[str], TraceSet], real_sets: RealSets) -> Recognised:
    return recognise(opened("a800"), real_sets.get("a800").build)


def test_layers_and_micro_batches_are_those_of_the_trace(
    found: Recognised, opened: Callable[[str], TraceSet]
) -> None:
    trace = opened("a800")
    for rank in trace.ranks:
        names = trace.events(rank, columns=["kind", "name"], pandas=True)
        kernels = names[names.kind == "kernel"].name.astype(str)
        ahead = int(kernels.str.contains("flash_fwd_kernel").sum())
        back = int(kernels.str.contains("flash_bwd_dq_dk_dv_loop").sum())
        stage = found.report.layers[rank // 4]
        assert ahead == back == stage * found.layout.micro_batches
    assert found.report.layers == (12, 12)
    assert found.layout.micro_batches == 2
    assert found.report.occurrences == (8 * 12 * 2, 8 * 12 * 2)
    assert found.report.passes == (8 * 2, 8 * 2)


def test_groups_are_those_of_the_layout(
    found: Recognised, opened: Callable[[str], TraceSet]
) -> None:
    layout = found.layout
    assert (layout.tp, layout.pp, layout.dp) == (2, 2, 2)
    # Members as Megatron-LM's rank numbering has them; the recording names some of them.
    expected = {
        tuple(np.flatnonzero(group_of(layout, kind) == g).tolist())
        for kind in ("tp", "dp", "pp")
        for g in range(4)
    }
    recorded = {m for m in opened("a800").groups if len(m) == 2}
    assert recorded <= expected
    assert found.report.groups == {"dp": 4, "pp": 4, "tp": 4, "world": 2}


def test_shapes_are_those_of_the_operators(
    found: Recognised, opened: Callable[[str], TraceSet]
) -> None:
    model, layout = found.model, found.layout
    table = opened("a800").events(4, columns=["name", "shapes"], pandas=True)
    products = set(table[table.name == "aten::mm"].shapes.astype(str))
    tokens = layout.micro_batch * layout.seq
    columns = {
        tuple(map(int, re.findall(r"\d+", text)))[3]
        for text in products
        if text.startswith(f"[[{tokens}, {model.hidden}]")
    }
    assert {3 * model.hidden // 2, model.ffn // 2, model.vocab // 2} <= columns
    assert (model.heads, model.width, layout.seq) == (16, 64, 1024)
    assert layout.sequence_parallel
    assert (layout.zero, layout.overlap_gradients, layout.recompute) == (0, False, "none")
    assert (layout.schedule, found.report.schedule_fits) == ("1f1b", 1.0)


def test_own_layout_gives_the_step_back(found: Recognised) -> None:
    cluster = load_cluster("a800-8x200g")
    workload, times = under(found, found.layout, cluster.gpu)
    measured = (times, recorded_prices(found, same=True))
    made = predict(found.model, workload, found.layout, cluster, measured=measured)
    assert made.step_ns == pytest.approx(found.step_ns, rel=0.02)
    assert made.low_ns < found.step_ns < made.high_ns
    assert made.origin["measured"] == pytest.approx(1.0)


def test_nearly_all_of_the_devices_time_is_in_a_block(found: Recognised) -> None:
    assert sum(found.report.explained.values()) == pytest.approx(1.0)
    assert found.report.share > 0.99
    assert found.report.explained["layers"] > 0.75


def test_blocks_add_up_to_the_kernels_of_the_trace(
    found: Recognised, opened: Callable[[str], TraceSet]
) -> None:
    table = opened("a800").events(0, columns=["kind", "name", "dur_ns", "stream"], pandas=True)
    kernels = table[(table.kind == "kernel") & (table.stream == 7)]
    layer = found.workload.blocks[1].operations
    computes = (layer.collective < 0) & np.array([n != "launch gaps" for n in layer.name])
    twice = 12 * 2 * layer.measured_ns[computes].sum()
    ends = kernels.name.astype(str).str.contains("index|embedding|Adam|L2Norm|ScaleF|Fill|div")
    assert twice == pytest.approx(float(kernels[~ends].dur_ns.sum()), rel=0.02)


@pytest.mark.parametrize("name", ["tp8", "dlrm"])
def test_jobs_without_a_stack_of_layers_say_so(
    name: str, opened: Callable[[str], TraceSet], real_sets: RealSets
) -> None:
    from foretrace.traces.errors import LayoutError

    with pytest.raises(LayoutError, match="no layers found: ") as error:
        recognise(opened(name), real_sets.get(name).build)
    assert "\n" not in str(error.value)
