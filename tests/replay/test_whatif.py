"""What-ifs: hand-made graphs and durations worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.replay.graph import Collectives, JobGraph, Lanes, StepMarks, TaskKind
from foretrace.replay.scenario import KEYS, KINDS, Change, parse
from foretrace.replay.whatif import KIND_TASKS, apply, evaluate, select
from foretrace.traces.errors import ScenarioError
from foretrace.traces.schema import COLLECTIVE_KINDS

NAMES = (
    "aten::mm",
    "void cutlass::Kernel<float, 4>(int)",
    "ampere_sgemm_128x64_tn",
    "ncclDevKernel_AllReduce_Sum_f32",
    "Memcpy DtoH",
    "rendezvous",
    "cudaLaunchKernel",
)
MM, CUTLASS, SGEMM, NCCL, COPY, JOIN_NAME, LAUNCH = range(len(NAMES))

# (rank, lane, kind, dur, name, collective, step)
TASKS = (
    (0, 0, TaskKind.HOST, 100, MM, -1, 0),
    (0, 0, TaskKind.STALL, 1000, MM, -1, 0),
    (0, 0, TaskKind.CALL, 10, LAUNCH, -1, 0),
    (0, 1, TaskKind.KERNEL, 40, CUTLASS, -1, 0),
    (0, 1, TaskKind.KERNEL, 60, SGEMM, -1, 1),
    (0, 2, TaskKind.ARRIVE, 0, NCCL, 0, 1),
    (0, 2, TaskKind.COMM, 500, NCCL, 0, 1),
    (-1, -1, TaskKind.JOIN, 0, JOIN_NAME, 0, -1),
    (1, 3, TaskKind.KERNEL, 40, CUTLASS, -1, 0),
    (1, 3, TaskKind.MEMCPY, 7, COPY, -1, 1),
    (1, 4, TaskKind.COMM, 505, NCCL, 0, 1),
    (1, 4, TaskKind.COMM, 300, NCCL, 1, 1),
    (1, 3, TaskKind.SKEW, 99, MM, -1, -1),
    (1, 3, TaskKind.MARK, 0, MM, -1, 0),
)


def make_graph() -> JobGraph:
    rank, lane, kind, dur, name, collective, step = (np.array(c) for c in zip(*TASKS, strict=True))
    n = len(TASKS)
    zeros = np.zeros(n, np.int64)
    return JobGraph(
        rank=rank.astype(np.int32),
        lane=lane.astype(np.int32),
        kind=kind.astype(np.int8),
        dur_ns=dur.astype(np.int64),
        name=name.astype(np.int32),
        event=zeros - 1,
        collective=collective.astype(np.int32),
        step=step.astype(np.int32),
        measured_start_ns=zeros,
        measured_end_ns=zeros,
        pred_ptr=np.zeros(n + 1, np.int64),
        pred=np.zeros(0, np.int64),
        edge_kind=np.zeros(0, np.int8),
        edge_delay_ns=np.zeros(0, np.int64),
        names=NAMES,
        lanes=Lanes(
            rank=np.array([0, 0, 0, 1, 1], np.int32),
            device=np.array([-1, 0, 0, 1, 1], np.int32),
            number=np.array([4242, 7, 20, 7, 20], np.int64),
        ),
        collectives=Collectives(
            kind=np.array(
                [COLLECTIVE_KINDS.index("all_reduce"), COLLECTIVE_KINDS.index("send_recv")], np.int8
            ),
            group=np.array([0, 1], np.int32),
            bytes=np.array([-1, -1], np.int64),
            confidence=np.ones(2, np.float32),
        ),
        groups=((0, 1), (1, 5)),
        steps=StepMarks(*(np.zeros(0, t) for t in (np.int32, np.int32, np.int64, np.int64))),
    )


GRAPH = make_graph()


def selected(text: str) -> set[int]:
    (rule,) = parse(f"{text}=x0.5").rules
    return set(np.flatnonzero(select(GRAPH, rule)).tolist())


@pytest.mark.parametrize(
    ("selector", "tasks"),
    [
        ("kernel:*gemm*", {4}),
        ("gemm", {4}),
        ("GEMM", {4}),
        ("kernel:*gemm*|*cutlass*", {3, 4, 8}),
        ("kernel:/s?gemm_\\d+|cutlass/", {3, 4, 8}),
        ("void cutlass::Kernel<float, 4>(int)", {3, 8}),
        ("kernel:*cutlass*<float, ?>*,rank:1", {8}),
        ("nccl", {6, 10, 11}),
        ("name:mm", {0, 1, 4}),
        ("name:aten::mm", {0, 1}),
        ("aten::mm", {0, 1}),
        ("op:*", {0, 1, 2}),
        ("kernel:*", {3, 4, 6, 8, 9, 10, 11}),
        ("kind:comm", {6, 10, 11}),
        ("comm", {6, 10, 11}),
        ("compute", {3, 4, 8}),
        ("compute|comm", {3, 4, 6, 8, 10, 11}),
        ("host", {0, 2}),
        ("launch", {2}),
        ("stall", {1}),
        ("copy", {9}),
        ("skew", {12}),
        ("all_reduce", {6, 10}),
        ("collective:all_reduce,rank:0", {6}),
        ("collective:all_reduce & rank:1", {10}),
        ("collective:send_recv|all_reduce", {6, 10, 11}),
        ("group:0-1", {6, 10}),
        ("group:1,5", {11}),
        ("rank:0", {0, 1, 2, 3, 4, 6}),
        ("rank:0-1,comm", {6, 10, 11}),
        ("rank:0,1,comm", {6, 10, 11}),
        ("stream:20", {6, 10, 11}),
        ("stream:7&step:1", {4, 9}),
        ("!comm,rank:1", {8, 9}),
        ("rank:1, !kernel:*nccl*", {8, 9}),
        ("rank:1,cutlass", {8}),
        ("rank:0,1,gemm", {4}),
        ("comm,nccl", {6, 10, 11}),
        ("cutlass,!rank:0", {8}),
        ("all_reduce|send_recv,rank:0", {6}),
    ],
)
def test_selector_means(selector: str, tasks: set[int]) -> None:
    assert selected(selector) == tasks


@pytest.mark.parametrize(
    ("change", "factor", "offset_ns"),
    [
        ("x0.5", 0.5, 0),
        ("*2", 2.0, 0),
        ("0.25x", 0.25, 0),
        ("/4", 0.25, 0),
        ("-20%", 0.8, 0),
        ("+10%", 1.1, 0),
        ("0", 0.0, 0),
        ("0us", 0.0, 0),
        ("+5us", 1.0, 5_000),
        ("-1.5ms", 1.0, -1_500_000),
        ("100us", 0.0, 100_000),
        ("2s", 0.0, 2e9),
        ("x1e-3", 1e-3, 0),
    ],
)
def test_change_means(change: str, factor: float, offset_ns: float) -> None:
    (rule,) = parse(f"comm={change}").rules
    assert rule.change == Change(pytest.approx(factor), pytest.approx(offset_ns))


def test_only_selected_durations_change() -> None:
    dur = apply(GRAPH, parse("all_reduce=x0.5"))
    assert dur.dtype == np.int64
    expected = GRAPH.dur_ns.copy()
    expected[6], expected[10] = 250, 252  # half to even
    assert dur.tolist() == expected.tolist()


def test_setting_adding_and_removing() -> None:
    assert apply(GRAPH, parse("stall=0"))[1] == 0
    assert apply(GRAPH, parse("launch=+5us"))[2] == 5_010
    assert apply(GRAPH, parse("comm=-450ns")).tolist()[6] == 50
    assert apply(GRAPH, parse("copy=-450ns"))[9] == 0, "never negative"
    assert apply(GRAPH, parse("gemm=1us"))[4] == 1_000


def test_rules_apply_in_order() -> None:
    dur = apply(GRAPH, parse("comm=x0.5; rank:1,comm=+1ns; stall=0"))
    assert (dur[6], dur[10], dur[11], dur[1]) == (250, 253, 151, 0)
    assert parse(" comm=0 ").name == "comm=0"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("kernel:*flash*=x0.5", "ampere_sgemm"),
        ("gemm,cutlass=x0.5", "write '|'"),
        ("rank:7=x0.5", "ranks in this trace: 0-1"),
        ("stream:99=0", "streams in this trace: 7,20"),
        ("step:9=0", "steps in this trace: 0-1"),
        ("all_to_all=0", "all_reduce, send_recv"),
        ("group:0-7=0", "groups: 0-1, 1,5"),
        ("memset=0", "kinds in this trace: compute, comm, copy"),
        ("rank:0,copy=0", "no task matches all of them"),
        ("kind:kernle=0", "one of compute, comm"),
        ("collective:allreduce=0", "all_reduce"),
        ("rank:a=0", "expected numbers"),
        ("rank:5-3=0", "expected numbers"),
        ("kernel:/(/=0", "no regular expression"),
        ("kernel:=0", "no value"),
        ("", "empty"),
        ("comm", "expected SELECTOR=CHANGE"),
        ("=x0.5", "expected SELECTOR=CHANGE"),
        ("comm=5", "with a unit"),
        ("comm=x", "no change"),
        ("comm=x-1", "no change"),
        ("comm=/0", "no change"),
        ("comm=fast", "no change"),
    ],
)
def test_errors_say_what_is_possible(text: str, wanted: str) -> None:
    with pytest.raises(ScenarioError, match="what-if") as caught:
        apply(GRAPH, parse(text))
    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)


def test_outcomes_tell_what_was_meant_and_what_it_costs() -> None:
    gone, halved = evaluate(GRAPH, [parse("stall=0; comm,rank:1=0"), parse("comm=x0.5")])
    assert (gone.tasks, gone.before_ns, gone.after_ns) == (3, 1805, 0)
    assert (halved.tasks, halved.before_ns, halved.after_ns) == (3, 1305, 250 + 252 + 150)
    assert halved.timeline.label == "comm=x0.5"
    assert (GRAPH.dur_ns == make_graph().dur_ns).all(), "the graph itself stays as it was"


def test_every_kind_and_key_is_known() -> None:
    assert set(KIND_TASKS) == set(KINDS)
    for key in KEYS:
        assert parse(f"{key}:{ {'kind': 'comm', 'collective': 'send'}.get(key, '1') }=0")


@given(st.text(max_size=30))
def test_any_text_parses_or_says_why(text: str) -> None:
    try:
        scenario = parse(text)
    except ScenarioError:
        return
    assert scenario.rules


@given(st.floats(0, 1e3), st.sampled_from(["comm", "rank:1", "kernel:*", "skew"]))
def test_a_factor_scales_the_sum(factor: float, selector: str) -> None:
    scenario = parse(f"{selector}=x{factor:.6f}")
    mask = select(GRAPH, scenario.rules[0])
    dur = apply(GRAPH, scenario)
    assert (dur[~mask] == GRAPH.dur_ns[~mask]).all()
    before = GRAPH.dur_ns[mask].sum()
    assert abs(dur[mask].sum() - before * float(f"{factor:.6f}")) <= 0.5 * mask.sum() + 1e-6


@pytest.mark.parametrize("change", ["-200%", "x1e30", "+1e30s"])
def test_a_change_beyond_reason_is_refused(change: str) -> None:
    with pytest.raises(ScenarioError, match="what-if"):
        parse(f"comm={change}")
