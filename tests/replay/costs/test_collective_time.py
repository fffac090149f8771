"""Times of collectives: by hand, by a second implementation, and as properties."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from foretrace.replay.cluster import Cluster, load_cluster
from foretrace.replay.costs.collectives.choice import predict
from foretrace.replay.costs.collectives.cost import Collectives, collective_costs
from foretrace.replay.costs.collectives.nccl_constants import (
    CANDIDATES,
    LL,
    LL128,
    NVLS,
    RING,
    SIMPLE,
    TREE,
)
from foretrace.replay.costs.collectives.price import switches
from foretrace.replay.costs.collectives.shapes import Shapes
from foretrace.replay.costs.collectives.shared import DATASHEET

CLUSTERS = [
    "a100-8x200g", "h100-8x400g", "b200-8x400g", "cscs-alps", "alcf-polaris", "aws-p5",
    "aws-p3dn", "mi300x-8x400g", "h800-8x400g", "gcp-a3-high",
]  # fmt: skip


def only(number: int) -> np.ndarray:
    return np.arange(len(CANDIDATES)) == number


def test_ring_simple_on_one_node_by_hand() -> None:
    # 8 H100: 24 channels of 15 GB/s; S = 64 MiB. Latency 8.4 + 14 steps of 3.4 us; 14/8 of the
    # bytes at 360 GB/s; the first piece of S / (8 x 24) bytes on one channel.
    size = 64 << 20
    ops = Collectives.of(0, size, 8, 1)
    ring = only(CANDIDATES.index((RING, SIMPLE)))
    made = collective_costs(ops, load_cluster("h100-8x400g"), allowed=ring)
    latency, wire = 8.4 + 14 * 3.4, size * 14 / 8 / 360e3
    first = size / (8 * 24) / 15e3
    assert made.parts.latency[0] == pytest.approx(latency)
    assert made.parts.wire[0] == pytest.approx(wire)
    assert made.parts.pipeline[0] == pytest.approx(first)
    assert made.time_us[0] == pytest.approx(latency + wire + first)


def test_ring_ll_over_nodes_by_hand() -> None:
    # 2 nodes of 8 A100 (AMD hosts): all-gather has 15 steps, one of them over the network.
    # A step inside takes max(0.6, 2.0 us of proxy); LL carries 22.5 GB/s; the hop adds 4.6 us.
    size = 65536
    made = collective_costs(Collectives.of(1, size, 16, 2), load_cluster("a100-8x200g"))
    assert (made.algorithm, made.protocol) == (["Ring"], ["LL"])
    by_hand = 6.6 + 14 * 2.0 + 2.7 + 4.6 + size * 15 / 16 / 22.5e3
    assert made.time_us[0] == pytest.approx(by_hand)


def test_tree_ll128_over_nodes_by_hand() -> None:
    # 2 nodes of 8 A100, 1 MiB: 16 channels of 64 KiB. Latency 14 + 2 (7 x 1.25 + 8.5); NCCL's cap
    # of 0.92 x 240 x 120/128 GB/s, halved, times its correction of 0.6. The first chunk has 18000
    # bytes: two network hops at 16/15 of its bytes on 12 GB/s and once more on the channel's 20,
    # and fourteen hops inside nodes at 20.
    tree = only(CANDIDATES.index((TREE, LL128)))
    ops = Collectives.of(0, 1 << 20, 16, 2)
    made = collective_costs(ops, load_cluster("a100-8x200g"), DATASHEET, allowed=tree)
    assert made.parts.latency[0] == pytest.approx(48.5)
    assert made.parts.wire[0] == pytest.approx((1 << 20) / (0.92 * 240 * 120 / 128 / 2 * 0.6e3))
    chunk = 18000 * (2 * (16 / 15 / 12 + 1 / 20) + 14 / 20) / 1e3
    assert made.parts.pipeline[0] == pytest.approx(chunk)


def test_tree_simple_over_nodes_by_hand() -> None:
    # 4 nodes of 4 GH200, 4 MiB: 8 channels of 12 GB/s; the tree is 3 + 2 deep, so the chunk has
    # 64 KiB. Four network hops and six hops inside nodes at 23.2 GB/s; half of 96 GB/s, times
    # NCCL's correction between 0.6 and 0.7 on the way from 2 to 4 MiB.
    tree = only(CANDIDATES.index((TREE, SIMPLE)))
    ops = Collectives.of(0, 4 << 20, 16, 4)
    made = collective_costs(ops, load_cluster("cscs-alps"), DATASHEET, allowed=tree)
    assert made.parts.wire[0] == pytest.approx((4 << 20) / (48e3 * np.sqrt(0.6 * 0.7)))
    assert made.parts.pipeline[0] == pytest.approx(65536 * (4 / 12 + 6 / 23.2) / 1e3)


def test_datasheet_constants_have_no_fitted_part() -> None:
    made = collective_costs(
        Collectives.of(0, [1024, 1 << 20], 64, 8), load_cluster("h100-8x400g"), DATASHEET
    )
    assert not made.parts.hops.any()
    assert not made.parts.protocol.any()


def test_one_rank_costs_nothing() -> None:
    made = collective_costs(Collectives.of([0, 1, 5], 1 << 20, 1, 1), load_cluster("h100-8x400g"))
    assert not made.time_us.any()


def test_rows_do_not_depend_on_each_other() -> None:
    rng = np.random.default_rng(1)
    nodes = 2 ** rng.integers(0, 6, 40_000)
    kind, size = rng.integers(0, 7, 40_000), 2.0 ** rng.uniform(3, 33, 40_000)
    ops, cluster = Collectives.of(kind, size, 8 * nodes, nodes), load_cluster("h100-8x400g")
    whole = collective_costs(ops, cluster)
    for row in rng.integers(0, 40_000, 25):
        single = Collectives.of(kind[row], size[row], 8 * nodes[row], nodes[row])
        alone = collective_costs(single, cluster)
        assert alone.time_us[0] == whole.time_us[row]
        assert alone.pick[0] == whole.pick[row]


def test_the_pick_is_the_least_prediction() -> None:
    """Against a loop over candidates without any of the array tricks."""
    cluster = load_cluster("h100-8x400g")
    sizes = 2.0 ** np.arange(3, 35, 0.25)
    one = np.ones(1, np.int64)
    for ranks, nodes in ((8, 1), (16, 2), (128, 16)):
        said = predict(Shapes(0 * one, ranks * one, nodes * one, np.ones(1)), cluster)
        picks = collective_costs(Collectives.of(0, sizes, ranks, nodes), cluster).pick
        for size, pick in zip(sizes, picks, strict=True):
            assert pick == _slow_choice(said.latency_us[0], said.gb_s[0], size, ranks, nodes)


def _slow_choice(latency: np.ndarray, rate: np.ndarray, size: float, ranks: int, nodes: int) -> int:
    from foretrace.replay.costs.collectives.nccl_constants import TREE_CORRECTION

    best, found = float("inf"), -1
    channels = 24 if nodes == 1 else 16
    for number, (algorithm, protocol) in enumerate(CANDIDATES):
        start, factor = latency[number], 1.0
        if algorithm == RING and protocol == SIMPLE and nodes > 1:
            start *= 1.4 if size >= 64 * channels * ranks else 1.0
        if algorithm == TREE:
            factor = TREE_CORRECTION[protocol][min(int(np.log2(max(size, 64) / 64)), 23)]
        time = start + size / (1e3 * rate[number]) / factor
        if time < best:
            best, found = time, number
    return found


shape = st.tuples(
    st.sampled_from(CLUSTERS),
    st.integers(0, 4),  # kind
    st.integers(0, 5),  # log2 nodes
    st.integers(0, 3),  # log2 ranks a node
    st.integers(0, len(CANDIDATES) - 1),
)


def _group(drawn: tuple[str, int, int, int, int]) -> tuple[Cluster, int, int, int, int]:
    name, kind, several, each, number = drawn
    cluster, nodes = load_cluster(name), 2**several
    ranks = nodes * min(2**each, cluster.gpus_per_node)
    assume(ranks > 1)
    one = np.ones(1, np.int64)
    said = predict(Shapes(kind * one, ranks * one, nodes * one, np.ones(1)), cluster)
    assume(np.isfinite(said.latency_us[0, number]))
    return cluster, kind, ranks, nodes, number


def _time(cluster: Cluster, kind: int, size: object, where: tuple[int, int], number: int) -> object:
    ops = Collectives.of(kind, size, *where)  # type: ignore[arg-type]
    return collective_costs(ops, cluster, allowed=only(number)).time_us


@settings(max_examples=150, deadline=None)
@given(shape, st.floats(0, 1))
def test_more_bytes_never_cost_less(drawn: tuple[str, int, int, int, int], shift: float) -> None:
    cluster, kind, ranks, nodes, number = _group(drawn)
    sizes = 2.0 ** (np.arange(3, 35, 0.03) + 0.03 * shift)
    times = np.asarray(_time(cluster, kind, sizes, (ranks, nodes), number))
    assert (np.diff(times) >= -1e-9 * times[1:]).all()


@settings(max_examples=150, deadline=None)
@given(shape, st.floats(3, 34), st.sampled_from([0.5, 0.25]))
def test_fewer_links_never_cost_less(
    drawn: tuple[str, int, int, int, int], log_size: float, part: float
) -> None:
    cluster, kind, ranks, nodes, number = _group(drawn)
    full = np.asarray(_time(cluster, kind, 2.0**log_size, (ranks, nodes), number))
    links = msgspec.structs.replace(
        cluster.gpu, link_usable_bytes_per_s=cluster.gpu.link_usable_bytes_per_s * part
    )
    slower = [msgspec.structs.replace(cluster, gpu=links)]
    if cluster.nics_per_node * part >= 1 and nodes > 1:
        fewer = int(cluster.nics_per_node * part)
        slower.append(msgspec.structs.replace(cluster, nics_per_node=fewer))
    for machine in slower:
        less = np.asarray(_time(machine, kind, 2.0**log_size, (ranks, nodes), number))
        assert less[0] >= full[0] * (1 - 1e-9), machine


@settings(max_examples=60, deadline=None)
@given(shape, st.floats(3, 34), st.floats(0.05, 1))
def test_sharing_nics_never_costs_less(
    drawn: tuple[str, int, int, int, int], log_size: float, share: float
) -> None:
    cluster, kind, ranks, nodes, _ = _group(drawn)
    alone = collective_costs(Collectives.of(kind, 2.0**log_size, ranks, nodes), cluster)
    shared = collective_costs(Collectives.of(kind, 2.0**log_size, ranks, nodes, share), cluster)
    assert shared.pick[0] == alone.pick[0]
    assert shared.time_us[0] >= alone.time_us[0] * (1 - 1e-12)


def test_drops_happen_only_where_the_choice_switches() -> None:
    cluster = load_cluster("h100-8x400g")
    sizes = np.unique(np.round(2.0 ** np.arange(3, 36, 1 / 64)))
    times = collective_costs(Collectives.of(0, sizes, 64, 8), cluster).time_us
    listed = {first for first, _, _, _ in switches(0, 64, 8, cluster)}
    drops = sizes[1:][np.diff(times) < -1e-9]
    assert set(drops) <= listed
    assert len(listed) >= 3
    assert CANDIDATES[switches(0, 64, 8, cluster)[0][1]][1] == LL


def test_a_send_drops_where_its_channels_double() -> None:
    # 8 H100 on one node: 4 channels a peer, parts of at most 16 MB: 8 channels above 64 MiB.
    cluster = load_cluster("h100-8x400g")
    listed = {first: factor for first, _, _, factor in switches(6, 8, 1, cluster)}
    sizes = np.unique(np.round(2.0 ** np.arange(3, 36, 1 / 64)))
    times = collective_costs(Collectives.of(6, sizes, 8, 1), cluster).time_us
    assert set(sizes[1:][np.diff(times) < -1e-9 * times[1:]]) == set(listed)
    doubled = min(first for first in listed if first > 64 << 20)
    assert doubled < 1.02 * (64 << 20)
    assert listed[doubled] == pytest.approx(0.5, abs=0.02)


def test_in_switch_reduction_over_a_rack_keeps_the_bus_bandwidth_of_eight() -> None:
    cluster = load_cluster("gb200-nvl72")
    nvls = only(CANDIDATES.index((NVLS, SIMPLE)))
    size = 64 << 30
    made = collective_costs(Collectives.of(0, size, [8, 72], 1), cluster, allowed=nvls)
    bus = size / made.parts.wire * 2 * np.array([7 / 8, 71 / 72])
    assert bus[1] == pytest.approx(bus[0])
    assert bus[0] / 1e3 == pytest.approx(721.8 * 0.74 * 8 / 9 * 14 / 8, rel=0.03)  # 831 GB/s
