"""All-to-all, send/recv and fused point-to-point kernels."""

from __future__ import annotations

from itertools import combinations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.replay.cluster import load_cluster
from foretrace.replay.costs.collectives.alltoall import (
    all_to_all_costs,
    all_to_all_v_cost,
    distinct_share,
    hierarchical_cost,
)
from foretrace.replay.costs.collectives.p2p import (
    fused_p2p_cost,
    message_channels,
    send_recv_costs,
    wires,
)
from foretrace.replay.costs.collectives.shared import DEFAULT
from foretrace.traces.errors import LayoutError

H100 = load_cluster("h100-8x400g")


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (8, 1), (16, 2), (10, 10), (64, 8)])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_the_equal_case_is_a_matrix_of_equal_entries(ranks: int, nodes: int, size: float) -> None:
    equal = all_to_all_costs(np.array([size]), ranks, nodes, H100)[0]
    matrix = np.full((ranks, ranks), size / ranks)
    node = np.arange(ranks) // (ranks // nodes)
    assert all_to_all_v_cost(matrix, node, H100) == pytest.approx(equal)


def test_two_nodes_by_hand() -> None:
    # 16 H100: each rank sends 8 of 16 parts over its NIC of 48 GB/s; 7 peers inside, 8 outside.
    size = 1 << 30
    # The first 16 KiB of each message go twice; the first 128 KiB on one channel pass before the
    # rest follows.
    start = 9 + 0.25 * 15 + 5 + 4.5 * 8
    wire = (size / 16 + 16384) * 8 / 48e3
    assert all_to_all_costs(np.array([size]), 16, 2, H100)[0] == pytest.approx(
        start + wire + 131072 / 7.3e3
    )


def test_small_messages_go_twice_over_the_wire() -> None:
    small, large = (all_to_all_costs(np.array([s]), 2, 2, H100)[0] for s in (2e4, 2e6))
    found = wires(H100, 1, True, DEFAULT)
    rate = min(found.nic, found.net_channels * found.net_channel) * 1e3
    each = 1e4
    first = each / found.net_channels / (found.net_channel * 1e3)
    assert small == pytest.approx(9 + 0.25 + 5 + 4.5 + 2 * each / rate + first)
    assert large - small < 1e6 / rate + 131072 / (found.net_channel * 1e3)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(4, 1), (8, 2), (16, 4)]))
def test_the_busiest_port_decides(seed: int, group: tuple[int, int]) -> None:
    """Against loops over ranks and peers."""
    ranks, nodes = group
    rng = np.random.default_rng(seed)
    sends = rng.exponential(1e7, (ranks, ranks)) * (rng.random((ranks, ranks)) < 0.7)
    node = np.arange(ranks) // (ranks // nodes)
    slowest = max(_slow_rank(r, sends, node, ranks, nodes) for r in range(ranks))
    assert all_to_all_v_cost(sends, node, H100) == pytest.approx(slowest)


def _slow_rank(rank: int, sends: np.ndarray, node: np.ndarray, ranks: int, nodes: int) -> float:
    found = wires(H100, ranks // nodes, nodes > 1, DEFAULT)
    byte = {False: [0.0, 0.0], True: [0.0, 0.0]}
    peers, longest = {False: 0, True: 0}, {False: 0.0, True: 0.0}
    for other in range(ranks):
        if other == rank:
            continue
        far = bool(node[other] != node[rank])
        for way, message in enumerate((sends[rank, other], sends[other, rank])):
            byte[far][way] += message + min(message, 16384.0)
            longest[far] = max(longest[far], message)
        peers[far] += bool(sends[rank, other] or sends[other, rank])
    if not sum(peers.values()):
        return 0.0
    near_channels = max(1, min(found.link_channels, found.pool // (ranks - 1)))
    near = min(found.link, max(peers[False], 1) * near_channels * found.link_channel)
    far = min(found.nic, max(peers[True], 1) * found.net_channels * found.net_channel)
    start = 9 + 0.25 * sum(peers.values()) + (5 + 4.5 * peers[True] if peers[True] else 0)
    near_first = min(longest[False] / near_channels, 2.0**19) / (1e3 * found.link_channel)
    far_first = min(longest[True] / found.net_channels, 2.0**17) / (1e3 * found.net_channel)
    inside = max(byte[False]) / (1e3 * near) + near_first
    outside = max(byte[True]) / (1e3 * far) + far_first
    return start + max(inside, outside)


def test_one_hot_expert_is_slower_than_the_mean_says() -> None:
    even = np.full((16, 16), 1e6)
    hot = even.copy()
    hot[:, 3] *= 8
    node = np.arange(16) // 8
    assert all_to_all_v_cost(hot, node, H100) > 3 * all_to_all_v_cost(even, node, H100)


def test_hierarchical_wins_with_many_small_messages_and_loses_with_few_large() -> None:
    node = np.arange(128) // 8
    small, large = np.full((128, 128), 1e3), np.full((128, 128), 1e7)
    assert hierarchical_cost(small, node, H100) < 0.5 * all_to_all_v_cost(small, node, H100)
    assert hierarchical_cost(large, node, H100) > all_to_all_v_cost(large, node, H100)
    shared = hierarchical_cost(large, node, H100, outside_share=distinct_share(128, 16, 8))
    assert shared < hierarchical_cost(large, node, H100)


def test_hierarchical_keeps_every_byte() -> None:
    # The time of each step is its start, its bytes over its wire and the first chunk's way: all
    # messages are far above the 16 KiB that go twice and the chunks of 128 and 512 KiB.
    node = np.arange(4) // 2
    sends = np.arange(16, dtype=float).reshape(4, 4) * 1e8
    np.fill_diagonal(sends, 0)
    made = hierarchical_cost(sends, node, H100)
    # Rank 0 (node 0, rail 0) holds sends[0,2]+sends[0,3] for node 1; rank 1 sends[1,2]+[1,3].
    out = np.array([sends[0, 2:].sum(), sends[1, 2:].sum(), sends[2, :2].sum(), sends[3, :2].sum()])
    into = out[[2, 3, 0, 1]]
    far = wires(H100, 2, True, DEFAULT)
    rate = min(far.nic, far.net_channels * far.net_channel)
    across = 9 + 0.25 + 5 + 4.5 + (np.maximum(out, into).max() + 16384) / (1e3 * rate)
    across += 131072 / (1e3 * far.net_channel)

    # Then rail 0 of a node hands on what it got for rail 1, and the other way round.
    def handed(rail: int, rank: int) -> float:
        return sends[rail, rank] + sends[2 + rail, rank]

    pairs = [max(handed(0, 1), handed(1, 0)), max(handed(0, 3), handed(1, 2))]
    link = min(far.link, max(1, far.pool // 3) * far.link_channel)
    inside = 9 + 0.25 + (max(pairs) + 16384) / (1e3 * link) + 524288 / (1e3 * far.link_channel)
    assert made == pytest.approx(across + inside)


@pytest.mark.parametrize(("groups", "twice"), [(4, 0.55), (8, 0.34), (16, 0.18), (32, 0.09)])
def test_published_duplication_rates(groups: int, twice: float) -> None:
    # HierMoE's measured share of duplicate tokens for top-8 routing: within 2 points.
    assert 1 - distinct_share(128, groups, 8) == pytest.approx(twice, abs=0.02)


def test_distinct_share_by_enumeration() -> None:
    group = [0, 0, 1, 1, 2, 2]
    draws = [len({group[e] for e in chosen}) for chosen in combinations(range(6), 3)]
    assert distinct_share(6, 3, 3) == pytest.approx(np.mean(draws) / 3)


def test_send_recv_follows_the_channel_rule() -> None:
    # 8 H100 on one node: 32 channels for 8 peers, 4 each at 20 GB/s; parts above 16 MB double.
    found = wires(H100, 8, False, DEFAULT)
    sizes = np.array([1e3, 60e6, 100e6, 200e6, 1e9])
    assert message_channels(sizes, 8, False, found).tolist() == [1, 4, 8, 16, 32]
    made = send_recv_costs(np.array([60e6]), 8, 1, H100)[0]
    assert made == pytest.approx(8 + 60e6 / 80e3)


def test_remote_channels_depend_on_the_version() -> None:
    old = msgspec.structs.replace(H100, nccl="2.26")
    assert wires(old, 1, True, DEFAULT).net_channels == 2
    assert wires(H100, 4, True, DEFAULT).net_channels == 4
    assert wires(H100, 8, True, DEFAULT).net_channels == 2  # 8 peers fill the channels


def test_a_fused_kernel_ends_with_its_own_pairs() -> None:
    sends = np.zeros((4, 4))
    sends[0, 1], sends[2, 3] = 1e6, 1e9
    made = fused_p2p_cost(sends, np.zeros(4, np.int64), H100)
    assert made[0] == made[1] < made[2] == made[3]
    sends[2, 3] = 0
    assert fused_p2p_cost(sends, np.zeros(4, np.int64), H100)[2:].tolist() == [0, 0]


def test_wrong_matrices_are_refused() -> None:
    node = np.zeros(2, np.int64)
    with pytest.raises(LayoutError, match="2 x 2 ranks, found 3 x 2"):
        all_to_all_v_cost(np.zeros((3, 2)), node, H100)
    with pytest.raises(LayoutError, match="negative"):
        all_to_all_v_cost(np.array([[0.0, -1], [0, 0]]), node, H100)
    with pytest.raises(LayoutError, match="equally many"):
        hierarchical_cost(np.zeros((3, 3)), np.array([0, 0, 1]), H100)
    with pytest.raises(LayoutError, match="divide the experts"):
        distinct_share(10, 3, 2)
