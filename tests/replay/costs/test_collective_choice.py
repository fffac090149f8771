"""NCCL's choice, against numbers that NCCL itself printed and its documented channel counts."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from foretrace.replay.cluster import load_cluster
from foretrace.replay.costs.collectives.channels import between_nodes, inside_node
from foretrace.replay.costs.collectives.choice import predict
from foretrace.replay.costs.collectives.cost import Collectives, collective_costs
from foretrace.replay.costs.collectives.nccl_constants import (
    CANDIDATES,
    LL,
    LL128,
    RING,
    SIMPLE,
    TREE,
    TREE_CORRECTION,
)
from foretrace.replay.costs.collectives.shapes import Shapes, check_shapes, kind_code, steps
from foretrace.traces.errors import LayoutError


def shapes(ranks: int, nodes: int, kind: str = "all_reduce") -> Shapes:
    one = np.ones(1, np.int64)
    return Shapes(kind_code(kind) * one, ranks * one, nodes * one, np.ones(1))


@pytest.mark.parametrize(("size", "printed_us"), [(128, 25.2148), (131072, 51.604)])
def test_times_that_nccl_printed(size: int, printed_us: float) -> None:
    # NVIDIA/nccl issue 1453: 3 nodes of 8 H100 with 8 x 200 Gbit/s of graph bandwidth.
    cluster = msgspec.structs.replace(
        load_cluster("h100-8x400g"), nccl="2.21", nic_gbit_per_s=200.0
    )
    said = predict(shapes(24, 3), cluster)
    place = int(np.log2(size / 64))
    times = []
    for number, (algorithm, protocol) in enumerate(CANDIDATES):
        factor = TREE_CORRECTION[protocol][place] if algorithm == TREE else 1.0
        times.append(said.latency_us[0, number] + size / (1e3 * said.gb_s[0, number] * factor))
    assert min(times) == pytest.approx(printed_us, rel=2e-4)


@pytest.mark.parametrize(
    ("cluster", "one", "several"),
    [
        ("a100-8x200g", (24, 240), (16, 192)),
        ("h100-8x400g", (24, 360), (16, 384)),
        ("b200-8x400g", (32, 720), (16, 384)),
        ("alcf-polaris", (24, 240), (4, 48)),
        ("cscs-alps", (24, 360), (8, 96)),
        ("aws-p4d", (24, 240), (8, 48)),
    ],
)
def test_channels(cluster: str, one: tuple[int, int], several: tuple[int, int]) -> None:
    machine = load_cluster(cluster)
    inside, outside = inside_node(machine), between_nodes(machine, machine.nics_per_node)
    assert (inside.count, inside.graph_gb_s) == one
    assert (outside.count, outside.graph_gb_s) == several


def test_steps_by_hand() -> None:
    for kind, total, inter in (
        ("all_reduce", 30, 2),
        ("all_gather", 15, 1),
        ("reduce_scatter", 15, 1),
        ("broadcast", 16, 1),
    ):
        made = steps(shapes(16, 2, kind))
        assert (made[0][0], made[1][0]) == (total, inter)


def test_what_is_chosen_on_one_node_of_h200() -> None:
    # Published with the measurements: ring for 4 GPUs, in-switch reduction from 5 to 8.
    cluster = msgspec.structs.replace(load_cluster("h200-8x400g"), nccl="2.27")
    costs = collective_costs(Collectives.of(0, 8 << 30, [4, 5, 6, 7, 8], 1), cluster)
    assert costs.algorithm == ["Ring", "NVLS", "NVLS", "NVLS", "NVLS"]
    small = collective_costs(Collectives.of(0, 1024, 8, 1), cluster)
    assert small.protocol == ["LL"]


def test_what_cannot_run_is_not_chosen() -> None:
    polaris = load_cluster("alcf-polaris")  # the NIC is behind the host bridge: no LL128
    sizes = 2.0 ** np.arange(3, 34)
    costs = collective_costs(Collectives.of(0, sizes, 32, 8), polaris)
    assert "LL128" not in costs.protocol
    assert not {"NVLS", "NVLSTree"} & set(costs.algorithm)
    gather = collective_costs(Collectives.of(1, sizes, 64, 8), load_cluster("h100-8x400g"))
    assert set(gather.algorithm) == {"Ring"}
    ring = np.array([a == RING and p == SIMPLE for a, p in CANDIDATES])
    forced = collective_costs(Collectives.of(0, sizes, 32, 8), polaris, allowed=ring)
    assert set(zip(forced.algorithm, forced.protocol, strict=True)) == {("Ring", "Simple")}


def test_old_versions_have_their_own_constants() -> None:
    new = load_cluster("a100-8x200g")
    old = msgspec.structs.replace(new, nccl="2.10")
    at = CANDIDATES.index((RING, LL))
    by_hand_old = 3.6 + 14 * 0.47
    by_hand_new = 6.6 + 14 * 0.6
    assert predict(shapes(8, 1), old).latency_us[0, at] == pytest.approx(by_hand_old)
    assert predict(shapes(8, 1), new).latency_us[0, at] == pytest.approx(by_hand_new)
    assert CANDIDATES.index((RING, LL128)) != at


@pytest.mark.parametrize(
    ("ranks", "nodes", "message"),
    [(0, 1, "at least one rank"), (2, 4, "cannot be on 4 nodes"), (32, 2, "a node has 8 GPUs")],
)
def test_impossible_groups(ranks: int, nodes: int, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        check_shapes(shapes(ranks, nodes), load_cluster("h100-8x400g"))


def test_unknown_collective() -> None:
    with pytest.raises(LayoutError, match="no collective 'allscatter'"):
        kind_code("allscatter")
    assert kind_code("ReduceScatter") == kind_code("reduce_scatter") == 2
