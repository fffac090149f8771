"""Rows of the public collective measurements, and the machine each was made on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from foretrace.replay.cluster import Cluster, load_cluster
from foretrace.replay.costs.collectives.cost import Collectives
from foretrace.replay.costs.collectives.nccl_constants import CANDIDATES, RING
from foretrace.replay.costs.collectives.shapes import KINDS, kind_code

CLUSTERS = {
    "alcf-polaris": "alcf-polaris",
    "amd-aac-mi300x": "mi300x-8x400g",
    "amd-aac-mi325x": "mi325x-8x400g",
    "amd-aac-mi355x": "mi355x-8x400g",
    "aws-p3dn": "aws-p3dn",
    "aws-p5": "aws-p5",
    "aws-p6-b200": "aws-p6-b200",
    "azure-nd-a100-v4": "azure-nd-a100-v4",
    "coreweave-h100": "h100-8x400g",
    "cscs-alps-gh200": "cscs-alps",
    "dgxc-h100": "h100-8x400g",
    "gcp-a3high": "gcp-a3-high",
    "gcp-a3ultra": "gcp-a3-ultra",
    "gcp-a4": "gcp-a4",
    "issue-h100x2n": "h100-8x400g",
    "liplus-a100x8": "a100-8x200g",
    "moc-h100-roce": "h100-8x400g",
    "nig-v100": "nig-v100",
    "oci-a100-bm.gpu4.8": "oci-bm-gpu4-8",
    "stas-a100x8": "a100-8x200g",
    "stas-h200x8": "h200-8x400g",
    "xxrjun-h100": "h100-8x400g",
}
"""Bundled cluster of each machine; it says nothing but what the vendor's page says."""

ONE_GPU_ONE_NIC = ("moc-h100-roce",)
LEFT_OUT = ("xxrjun-h100-c0",)
"""Its NICs are not described; the network rate of a p2p channel is fitted on it alone."""

HARNESS_US = 2.4
"""nccl-tests with one process for all GPUs: µs for each further GPU, not the library's time."""

RING_ONLY = np.array([algorithm == RING for algorithm, _ in CANDIDATES])


@dataclass(frozen=True, slots=True)
class Rows:
    """Measurements of one machine under one library version and setting.

    Attributes:
        machine: name in the file.
        cluster: what it is.
        allowed: candidates that could run; None for all.
        ops: the operations.
        time_us: measured.
        extra_us: the harness's own time.
        index: row numbers in the file.
    """

    machine: str
    cluster: Cluster
    allowed: np.ndarray | None
    ops: Collectives
    time_us: np.ndarray
    extra_us: np.ndarray
    index: np.ndarray


def read(path: Path) -> pd.DataFrame:
    """All usable rows, with the code of their kind."""
    table = pd.read_csv(path, comment="#")
    table = table[~table["machine"].isin(LEFT_OUT)].reset_index(drop=True)
    table["note"] = table["note"].fillna("")
    table["nccl_version"] = table["nccl_version"].fillna("").astype(str)
    table["kind"] = [kind_code(name) for name in table["collective"]]
    table["one_process"] = table["note"].str.contains("1proc")
    table["p2p"] = table["kind"] >= KINDS.index("all_to_all")
    return table


def machines(table: pd.DataFrame) -> Iterator[Rows]:
    """The rows machine by machine."""
    ring = table["note"].str.contains("ALGO=RING", case=False)
    for (machine, version, forced), own in table.groupby(["machine", "nccl_version", ring]):
        yield Rows(
            machine=str(machine),
            cluster=cluster_of(str(machine), str(version)),
            allowed=RING_ONLY if forced else None,
            ops=Collectives.of(own["kind"], own["size_bytes"], own["gpus"], own["nodes"]),
            time_us=own["time_us"].to_numpy(dtype=float),
            extra_us=np.where(own["one_process"], HARNESS_US * (own["gpus"] - 1), 0.0),
            index=own.index.to_numpy(),
        )


def cluster_of(machine: str, version: str) -> Cluster:
    """The machine's cluster with the library version its row names."""
    cluster = load_cluster(CLUSTERS[machine])
    if machine in ONE_GPU_ONE_NIC:
        cluster = msgspec.structs.replace(cluster, gpus_per_node=1, nics_per_node=1)
    found = re.match(r"\d+\.\d+", version)
    return msgspec.structs.replace(cluster, nccl=found[0]) if found else cluster


def torch_estimates(rows: Rows) -> np.ndarray:
    """PyTorch's own estimator on the same rows, µs; NaN where it knows no answer.

    It gets the same datasheet rates and the true number of GPUs a node.
    """
    import torch
    from torch._inductor import comm_analysis as theirs

    kinds = {0: "ALL_REDUCE", 1: "ALL_GATHER", 2: "REDUCE_SCATTER", 5: "ALL_TO_ALL", 6: "P2P"}
    gpu, out = rows.cluster.gpu, np.full(len(rows.time_us), np.nan)
    generation = {"volta": 0, "ampere": 1, "hopper": 2, "blackwell": 3}.get(gpu.generation, 1)
    known = theirs.NVIDIA_GPU_TYPE(generation)
    nic = rows.cluster.nic_gbit_per_s / 8 * rows.cluster.nics_per_node / rows.cluster.gpus_per_node
    saved = (
        theirs.get_gpu_type,
        theirs._has_nvlink,
        torch.cuda.is_available,
        torch.cuda.device_count,
    )
    settings = {
        "intra_node_bw": gpu.link_usable_bytes_per_s / 1e9,
        "inter_node_bw": nic,
    }
    try:
        theirs.get_gpu_type, theirs._has_nvlink = (lambda: known), (lambda: True)
        torch.cuda.is_available = lambda: True
        with torch._inductor.config.patch(settings):
            for row, (kind, size, ranks, nodes) in enumerate(
                zip(rows.ops.kind, rows.ops.size_bytes, rows.ops.ranks, rows.ops.nodes, strict=True)
            ):
                if int(kind) not in kinds:
                    continue
                torch.cuda.device_count = lambda each=int(ranks // nodes): each
                what = getattr(theirs.NCCL_COLL, kinds[int(kind)])
                took = theirs.estimate_nccl_collective_runtime_impl(int(size), int(ranks), what)
                out[row] = 1e3 * took
    finally:
        theirs.get_gpu_type, theirs._has_nvlink = saved[:2]
        torch.cuda.is_available, torch.cuda.device_count = saved[2:]
    return out
