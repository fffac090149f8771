"""Transforms that only change durations, worked out by hand; laws that all of them obey."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.machine import Op
from tests.replay.transforms.jobs import MB, alike, ran, step_us, transform

from foretrace.replay.engine import replay
from foretrace.replay.graph import JobGraph, TaskKind
from foretrace.replay.scenario import Scenario, parse
from foretrace.replay.scenariofile import parse_transform
from foretrace.replay.whatif import changed, evaluate, same_dependencies
from foretrace.traces.errors import ScenarioError


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> JobGraph:
    """Two ranks, rank 1 slower; three all-reduces of 10, 20 and 40 MB: 30 us + 5 us/MB."""

    def program(slow: int) -> list[Op]:
        ops = [Op("work", 40)]
        for i, size in enumerate((10, 20, 40)):
            ops += [Op("kernel", 50 + 10 * i + slow), Op("collective", 30 + 5 * size)]
        return [*ops, Op("await"), Op("kernel", 25), Op("sync")]

    folder = tmp_path_factory.mktemp("job")
    return alike(ran(folder, [program(0), program(30)], [10 * MB, 20 * MB, 40 * MB]).graph)


def durations(graph: JobGraph, kind: TaskKind, rank: int) -> list[int]:
    return (graph.dur_ns[(graph.kind == kind) & (graph.rank == rank)] // 1_000).tolist()


IDENTITIES = [
    ("scale", {"select": "compute", "factor": 1.0}),
    ("delay", {"select": "compute"}),
    ("network", {}),
    ("network", {"bandwidth": 1.0, "latency": 1.0}),
    ("dtype", {"ratio": 1.0}),
    ("dtype", {"now": "float16", "to": "bfloat16"}),
    ("buckets", {"split": 1}),
    ("dependency", {"edge": "event", "action": "duplicate"}),
    ("fuse", {"select": "kernel:*", "most": 2, "keep": 1.0}),
]


@pytest.mark.parametrize(("name", "fields"), IDENTITIES[:-1])
def test_identity_changes_nothing(graph: JobGraph, name: str, fields: dict[str, object]) -> None:
    new = transform(name, **fields)(graph)
    assert (new.dur_ns == graph.dur_ns).all()
    assert (replay(new).start_ns == replay(graph).start_ns).all()


def test_duration_transforms_share_the_edges(graph: JobGraph) -> None:
    for name, fields in IDENTITIES[:7]:
        assert same_dependencies(transform(name, **fields)(graph), graph), name
    assert same_dependencies(transform("equalise")(graph), graph)


def test_scale_set_and_delay(graph: JobGraph) -> None:
    half = transform("scale", select="compute,rank:1", factor=0.5)(graph)
    assert durations(half, TaskKind.KERNEL, 1) == [40, 45, 50, 12]
    assert durations(half, TaskKind.KERNEL, 0) == durations(graph, TaskKind.KERNEL, 0)
    assert durations(transform("set", select="comm", to="7us")(graph), TaskKind.COMM, 0) == [7] * 3
    later = transform("delay", select="compute,rank:0", add="-52us")(graph)
    assert durations(later, TaskKind.KERNEL, 0) == [0, 8, 18, 0]
    first = transform("delay", select="compute,rank:0", add="100us", each="step")(graph)
    assert durations(first, TaskKind.KERNEL, 0) == [150, 60, 70, 25]


@given(st.integers(0, 2**32), st.sampled_from(["exponential", "uniform", "normal"]))
def test_jitter_is_seeded_and_never_negative(graph: JobGraph, seed: int, noise: str) -> None:
    fields = {"select": "compute", "jitter": "10us", "noise": noise, "seed": seed}
    one, two = (transform("delay", **fields)(graph) for _ in range(2))
    assert (one.dur_ns == two.dur_ns).all()
    assert (one.dur_ns >= graph.dur_ns).all()
    assert step_us(one) >= step_us(graph)


@pytest.mark.parametrize("noise", ["exponential", "uniform", "normal"])
def test_jitter_has_the_mean_that_was_asked_for(graph: JobGraph, noise: str) -> None:
    fields = {"select": "compute", "jitter": "10us", "noise": noise}
    drawn = [
        int((transform("delay", seed=s, **fields)(graph).dur_ns - graph.dur_ns).sum())
        for s in range(200)
    ]
    assert np.mean(drawn) / 8 == pytest.approx(10_000, rel=0.08)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("scale: select='comm', factor=inf", "<= 1000000.0"),
        ("scale: select='comm', factor=1e30", "<= 1000000.0"),
        ("network: latency=inf", "<= 1000000.0"),
        ("network: bandwidth=1e-30", ">= 1e-06"),
        ("dtype: ratio=1e30", "<= 1000000.0"),
        ("set: select='comm', to='1e30s'", "beyond eleven days"),
        ("delay: select='comm', add='1e12s'", "beyond eleven days"),
        ("delay: select='comm', jitter='1e12s'", "beyond eleven days"),
        ("delay: select='comm', jitter='-1us'", "never negative"),
        ("network: bandwidth=2.0, per_operation='-5us'", "never negative"),
        ("dtype: ratio=0.5, per_operation='-5us'", "never negative"),
        ("dtype: ratio=0.5, per_operation='soon'", "expected a time"),
        ("buckets: split=2, per_operation='-5us'", "never negative"),
        ("cuda_graphs: gap='-1us'", "never negative"),
        ("cuda_graphs: launch='-1us'", "never negative"),
    ],
)
def test_fields_beyond_reason_are_refused(text: str, error: str) -> None:
    with pytest.raises(ScenarioError, match=error):
        parse_transform(text)


@pytest.mark.parametrize(
    "text",
    [
        "scale: select='comm', factor=1e6; " * 3,
        "network: latency=1e6; " * 3,
    ],
)
def test_durations_never_leave_their_range(graph: JobGraph, text: str) -> None:
    with pytest.raises(ScenarioError, match=r"scenario .* more than a hundred years"):
        changed(graph, parse_transform(text))
    with pytest.raises(ScenarioError, match="more than a hundred years"):
        changed(graph, parse("; ".join(["comm=x1e6"] * 3)))


def test_errors_name_their_scenario(graph: JobGraph) -> None:
    good = parse("comm=x0.5")
    bad = Scenario("other buckets", (), (transform("buckets", select="barrier", split=2),))
    with pytest.raises(ScenarioError, match=r"scenario 'other buckets': .*barrier"):
        evaluate(graph, [good, bad])
    with pytest.raises(ScenarioError, match=r"^what-if 'rank:9=0': nothing"):
        evaluate(graph, [good, parse("rank:9=0")])


def test_equalise(graph: JobGraph) -> None:
    best = transform("equalise", to="best")(graph)
    for rank in (0, 1):
        assert durations(best, TaskKind.KERNEL, rank) == [50, 60, 70, 25]
    median = transform("equalise")(graph)
    for rank in (0, 1):
        assert durations(median, TaskKind.KERNEL, rank) == [65, 75, 85, 25]
    assert step_us(best) < step_us(median) < step_us(graph)


@given(st.lists(st.integers(0, 1000), min_size=8, max_size=8))
def test_equal_ranks_stay_equal(graph: JobGraph, values: list[int]) -> None:
    kernels = np.flatnonzero(graph.kind == TaskKind.KERNEL)
    dur = graph.dur_ns.copy()
    dur[kernels] = values
    changed = graph.with_durations(dur)
    for to in ("median", "best"):
        once = transform("equalise", to=to)(changed)
        assert durations(once, TaskKind.KERNEL, 0) == durations(once, TaskKind.KERNEL, 1)
        assert (transform("equalise", to=to)(once).dur_ns == once.dur_ns).all()


def test_equalise_needs_two_ranks(graph: JobGraph) -> None:
    with pytest.raises(ScenarioError, match="no task has a match"):
        transform("equalise", select="compute,rank:0")(graph)


def test_the_network_splits_latency_from_bytes(graph: JobGraph) -> None:
    fast = transform("network", bandwidth=5.0)(graph)
    slow = transform("network", latency=3.0)(graph)
    ideal = transform("network", ideal=True)(graph)
    for rank in (0, 1):
        assert durations(fast, TaskKind.COMM, rank) == [40, 50, 70]
        assert durations(slow, TaskKind.COMM, rank) == [140, 190, 290]
        assert durations(ideal, TaskKind.COMM, rank) == [0, 0, 0]


def test_link_classes(graph: JobGraph) -> None:
    across = transform("network", ideal=True, link="inter", ranks_per_node=1)(graph)
    assert durations(across, TaskKind.COMM, 0) == [0, 0, 0]
    inside = transform("network", bandwidth=5.0, link="intra", ranks_per_node=2)(graph)
    assert durations(inside, TaskKind.COMM, 0) == [40, 50, 70]
    with pytest.raises(ScenarioError, match="no operation of 'comm' is inter-node"):
        transform("network", bandwidth=2.0, link="inter", ranks_per_node=2)(graph)
    with pytest.raises(ScenarioError, match="inter-node with ranks_per_node = 0"):
        transform("network", bandwidth=2.0, link="inter")(graph)


def test_another_dtype_changes_bytes_and_time(graph: JobGraph) -> None:
    new = transform("dtype", now="float32", to="bfloat16")(graph)
    assert new.collectives.bytes.tolist() == [5 * MB, 10 * MB, 20 * MB]
    assert durations(new, TaskKind.COMM, 1) == [55, 80, 130]
    for fields in ({}, {"now": "float32"}, {"now": "float32", "to": "f8"},
                   {"ratio": 0.5, "to": "int8"}):  # fmt: skip
        with pytest.raises(ScenarioError, match="expected ratio, or now and to"):
            transform("dtype", **fields)


def test_what_the_trace_lacks_is_said(graph: JobGraph) -> None:
    unknown = replace(graph.collectives, bytes=np.full(3, -1, np.int64))
    one_size = replace(graph.collectives, bytes=np.full(3, MB, np.int64))
    for name, fields in (("network", {"bandwidth": 2.0}), ("dtype", {"ratio": 0.5})):
        with pytest.raises(ScenarioError, match="does not say how large 6 of 6"):
            transform(name, **fields)(replace(graph, collectives=unknown))
        with pytest.raises(ScenarioError, match="all communication has one size"):
            transform(name, **fields)(replace(graph, collectives=one_size))
    given_ = transform("network", bandwidth=2.0, per_operation="30us")
    new = given_(replace(graph, collectives=one_size))
    assert durations(new, TaskKind.COMM, 0) == [55, 80, 130]
    with pytest.raises(ScenarioError, match="selects no communication"):
        transform("network", select="compute", ideal=True)(graph)


@given(st.floats(0, 4), st.floats(0.1, 8))
def test_less_network_never_helps(graph: JobGraph, latency: float, bandwidth: float) -> None:
    some = transform("network", latency=latency, bandwidth=bandwidth)(graph)
    worse = transform("network", latency=latency + 0.5, bandwidth=bandwidth / 2)(graph)
    assert (replay(worse).start_ns >= replay(some).start_ns).all()
    assert step_us(transform("network", ideal=True)(graph)) <= step_us(some)
