"""Host maps, tiers and shared NICs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from foretrace.replay.cluster import Cluster, Tier, load_cluster
from foretrace.replay.placement import group_share, host_names, read_host_map, shared_nics
from foretrace.traces.errors import LayoutError

SLURM = """
# two pods
SwitchName=leaf1 Nodes=node[01-04]
SwitchName=leaf2 Nodes=node[05-08]
SwitchName=leaf[3-4] Nodes=gpu1,gpu2
SwitchName=pod1 Switches=leaf[1-2]
SwitchName=pod2 Switches=leaf3,leaf4
"""


def tapered(leaf: float, pod: float) -> Cluster:
    tiers = (
        Tier(name="leaf", nodes=4, oversubscription=leaf),
        Tier(name="pod", nodes=8, oversubscription=pod),
    )
    return msgspec.structs.replace(load_cluster("h100-8x400g"), tiers=tiers)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_slurm_topology(tmp_path: Path) -> None:
    found = read_host_map(write(tmp_path / "topology.conf", SLURM))
    assert found.tiers == ("leaf", "pod")
    assert found.switches["node03"] == ("leaf1", "pod1")
    assert found.switches["node08"] == ("leaf2", "pod1")
    assert len(found.switches) == 10


def test_csv_map(tmp_path: Path) -> None:
    path = write(tmp_path / "map.csv", "host,leaf,pod\na,l1,p1\nb,l2,p1\n")
    found = read_host_map(path)
    assert found.switches == {"a": ("l1", "p1"), "b": ("l2", "p1")}
    assert found.above(["b", "a"]) == [("l2", "p1"), ("l1", "p1")]


@pytest.mark.parametrize(
    ("hosts", "share"),
    [
        ("node[01-04]", 1.0),  # below one leaf nothing crosses
        ("node[01-08]", 1.0),  # four hosts a leaf share one crossing flow of the ring
        ("node[01-02,05-06]", 1.0),
        ("node[01,05]", 0.5),  # one host a leaf: all of its traffic crosses, 2:1
        ("node01,gpu1", 0.5 / 3),  # crosses the leaf 2:1 and the pod 3:1
    ],
)
def test_share_of_a_placed_group(tmp_path: Path, hosts: str, share: float) -> None:
    found = read_host_map(write(tmp_path / "topology.conf", SLURM))
    assert group_share(host_names(hosts), found, tapered(2, 3)) == pytest.approx(share)


def test_groups_on_one_nic() -> None:
    v100 = load_cluster("v100-8x100g")  # 4 NICs for 8 GPUs: pairs share one
    pairs = [[("a", g), ("b", g)] for g in range(8)]
    assert shared_nics(pairs, v100) == [0.5] * 8
    assert shared_nics(pairs[::2], v100) == [1.0] * 4
    inside = [[("a", 0), ("a", 1)], *pairs[:2]]
    assert shared_nics(inside, v100) == [1.0, 0.5, 0.5]  # the first never leaves its node
    h100 = load_cluster("h100-8x400g")
    assert shared_nics(pairs, h100) == [1.0] * 8


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[1,3],m2", ["n1", "n3", "m2"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert host_names(text) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("leaf,pod\n1,2\n", "expected a CSV head"),
        ("host,leaf\na\n", "row 2: expected 2 filled cells"),
        ("SwitchName=l1 Nodes=n[1-\n", "cannot read"),
        ("SwitchName=l1 Nodes=a\nSwitchName=l2 Nodes=b\nSwitchName=p Switches=l1\n", "equally"),
        ("SwitchName=l1 Nodes=a\nSwitchName=p Switches=l1,q\nSwitchName=q Switches=p\n", "itself"),
    ],
)
def test_wrong_maps(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        read_host_map(write(tmp_path / "map", text))


def test_unknown_host_and_tier(tmp_path: Path) -> None:
    found = read_host_map(write(tmp_path / "topology.conf", SLURM))
    with pytest.raises(LayoutError, match="'node99' is not on the map"):
        group_share(["node99"], found, tapered(1, 1))
    plain = load_cluster("aws-p5")
    with pytest.raises(LayoutError, match="name its tiers alike"):
        group_share(["node01"], found, plain)
    with pytest.raises(LayoutError, match="cannot be read"):
        read_host_map(tmp_path / "absent")
