"""Cluster descriptions: bundled ones are whole, wrong ones are refused in one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.replay.cluster import (
    cluster_names,
    fabric_names,
    gpu_names,
    load_cluster,
    load_fabric,
    load_gpu,
)
from foretrace.traces.errors import LayoutError

GOOD = """
description = "pod"
gpu = "h100"
gpus_per_node = 8
nics_per_node = 4
nic_gbit_per_s = 400
fabric = "rdma"
[[tiers]]
name = "leaf"
nodes = 16
oversubscription = 2.0
[[tiers]]
name = "pod"
nodes = 64
"""


@pytest.mark.parametrize("name", cluster_names())
def test_bundled_clusters_name_their_sources(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.description
    for figure in ("gpus_per_node", "nics_per_node", "nic_gbit_per_s"):
        assert cluster.sources[figure]
    if cluster.tiers:
        assert cluster.sources["tiers"]


@pytest.mark.parametrize("name", [n for n in gpu_names() if n != "none"])
def test_gpu_figures_name_their_sources_and_are_plausible(name: str) -> None:
    gpu = load_gpu(name)
    figures = ("sms", "hbm_bytes", "hbm_bytes_per_s", "l2_bytes", "flops")
    figures += ("link_raw_bytes_per_s", "link_usable_bytes_per_s")
    for figure in figures:
        assert gpu.sources[figure], figure
    assert 0.5 < gpu.link_usable_bytes_per_s / gpu.link_raw_bytes_per_s < 1
    assert 16e9 <= gpu.hbm_bytes <= 300e9
    assert gpu.flops["fp16"] > gpu.flops["fp32"]


def test_the_listed_gpu_types_are_there() -> None:
    wanted = [
        "v100",
        "a100",
        "a800",
        "h100",
        "h800",
        "h200",
        "gh200",
        "b200",
        "gb200",
        "mi300x",
        "mi325x",
        "mi355x",
    ]
    assert set(wanted) <= set(gpu_names())


def test_datasheet_figures_that_are_easy_to_look_up() -> None:
    assert load_gpu("h100").flops["bf16"] == pytest.approx(989.4e12)
    assert load_gpu("a100").hbm_bytes_per_s == pytest.approx(2039e9)
    assert load_gpu("a800").link_raw_bytes_per_s == pytest.approx(200e9)  # 400 GB/s both ways
    assert load_gpu("h200").flops == load_gpu("h100").flops  # only the memory differs
    assert load_gpu("mi300x").sms == 304


def test_fabrics_load() -> None:
    assert {load_fabric(name).name for name in fabric_names()} == set(fabric_names())


def test_own_file(tmp_path: Path) -> None:
    path = tmp_path / "pod.toml"
    path.write_text(GOOD)
    cluster = load_cluster(path)
    assert (cluster.name, cluster.gpu.name, cluster.tiers[1].oversubscription) == ("pod", "h100", 1)
    assert cluster.nic_bytes_per_s == pytest.approx(48e9)  # 400 Gbit/s at 96 %


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("gpus_per_node = 8", "gpus_per_node = 0"), "gpus_per_node must be positive"),
        (('gpu = "h100"', 'gpu = "h1000"'), "did you mean 'h100'"),
        (('gpu = "h100"', "gpu = 3"), "expected gpu ="),
        (('fabric = "rdma"', 'fabric = "carrier pigeon"'), "no fabric"),
        (("nics_per_node = 4", "nics_per_nod = 4"), "nics_per_nod"),
        (("oversubscription = 2.0", "oversubscription = 0.5"), "below 1"),
        (("nodes = 64", "nodes = 8"), "multiple of the 16"),
        (("nodes = 64", "nodes = 24"), "multiple of the 16"),
        (("nic_gbit_per_s = 400", 'nic_gbit_per_s = "fast"'), "nic_gbit_per_s"),
        (('description = "pod"', 'nccl = "latest"'), "expected nccl"),
        (('description = "pod"', "description = "), "not a TOML file"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(LayoutError, match=r"bad\.toml|h1000|carrier") as error:
        load_cluster(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value).strip()


def test_unknown_name_and_missing_file() -> None:
    with pytest.raises(LayoutError, match="did you mean 'h100-8x400g'"):
        load_cluster("h100-8x40g")
    with pytest.raises(LayoutError, match="cannot be read"):
        load_cluster("no/such/file.toml")
    with pytest.raises(LayoutError, match="no GPU type"):
        load_gpu("voodoo2")
