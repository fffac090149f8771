"""Tables of nanotron, llm-foundry and torchtitan."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from _published_options import FSDP, NANOTRON
from _published_rows import Row, number, read

from foretrace.replay.cluster import Cluster, load_cluster, load_gpu
from foretrace.replay.costs.collectives.cost import Collectives
from foretrace.replay.costs.collectives.fit import fit_machine
from foretrace.replay.costs.collectives.fit_file import MachineFit
from foretrace.replay.costs.collectives.shapes import KINDS
from foretrace.replay.layout import Layout
from foretrace.replay.model import Model, load_model

_MEASURED_BYTES = 256 << 20
_NANOTRON = {
    "1B": (16, 2048, 32, 8192, True),
    "3B": (28, 3072, 32, 8192, True),
    "8B": (32, 4096, 32, 14336, False),
    "80B": (80, 8192, 64, 28672, False),
}
"""Layers, width, heads, MLP width, tied: scripts/scaling_benchmarks.py of nanotron; its vocabulary
is 131,072, and there are as many key and value heads as query heads."""


def ultrascale(folder: Path) -> list[Row]:
    """Hugging Face's scaling study: rows that ran and reach an MFU of 5%.

    The study measured its cluster's collectives beside it: bus bandwidth at 256 MB falls from 436
    to 33 GB/s between one node and 64. They calibrate the cost of collectives.
    """
    cluster = load_cluster("h100-8x400g")
    calibration = _bandwidths(folder, cluster)
    rows = []
    for line in read(folder / "ultrascale_playbook.csv"):
        if line["status"] != "ok" or float(line["mfu_pct"] or 0) < 5:
            continue
        layers, hidden, heads, ffn, tied = _NANOTRON[line["model"]]
        model = Model(
            name=line["model"], layers=layers, hidden=hidden, heads=heads, ffn=ffn, vocab=131072,
            tied=tied, seq=number(line, "seq"),
        )  # fmt: skip
        layout = Layout(
            seq=number(line, "seq"), global_batch=number(line, "gbs"),
            micro_batch=number(line, "mbs"), tp=number(line, "tp"), pp=number(line, "pp"),
            dp=number(line, "dp"), zero=1 if line["zero"] == "1" else 0, **NANOTRON,
        )  # fmt: skip
        label = " ".join(f"{k}{line[k]}" for k in ("dp", "tp", "pp", "mbs", "ga", "zero"))
        rows.append(
            Row("ultrascale_playbook", "H100, nanotron", f"{line['model']} {label}", model, layout,
                cluster, float(line["step_time_s"]), calibration)
        )  # fmt: skip
    return rows


def _bandwidths(folder: Path, cluster: Cluster) -> MachineFit:
    """Calibration from mean bus bandwidths at 256 MB, 8 GPUs a node."""
    kinds = {
        "AllReduce": "all_reduce",
        "AllGather": "all_gather",
        "ReduceScatter": "reduce_scatter",
    }
    found = []
    for line in read(folder / "ultrascale_playbook_figs.csv"):
        if line["busbw_GBps"]:
            kind = kinds[line["note"].partition(" ")[0]]
            ranks = number(line, "n_gpus")
            passes = (ranks - 1) / ranks * (2 if kind == "all_reduce" else 1)
            rate = float(line["busbw_GBps"]) * 1e3  # bytes per microsecond
            found.append((KINDS.index(kind), _MEASURED_BYTES, ranks, ranks // 8,
                          _MEASURED_BYTES * passes / rate))  # fmt: skip
    *what, times = (np.array(column) for column in zip(*found, strict=True))
    return fit_machine(Collectives.of(*what), times, cluster)


_MPT = {
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16),
    "3b": (32, 2560, 20), "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}  # fmt: skip
"""Layers, width, heads: scripts/train/yamls/pretrain of llm-foundry."""
_FOUNDRY_CLUSTERS = {
    "a100_40gb": ("a100-8x200g", "a100-40g"),
    "a100_80gb": ("a100-8x200g", "a100"),
    "h100_80gb": ("h100-8x400g", "h100"),
}


def foundry(folder: Path) -> list[Row]:
    """MosaicML's MPT models under FSDP; nodes of 8 with 1,600 Gbit/s (A100), 3,200 (H100)."""
    rows = []
    for line in read(folder / "llmfoundry_mpt.csv"):
        layers, hidden, heads = _MPT[line["model"].removeprefix("MPT-")]
        model = Model(
            name=line["model"], layers=layers, hidden=hidden, heads=heads, ffn=4 * hidden,
            vocab=50368, gated=False, rotary=False, tied=True, seq=number(line, "seq"),
        )  # fmt: skip
        name, gpu = _FOUNDRY_CLUSTERS[line["gpu"]]
        cluster = msgspec.structs.replace(load_cluster(name), gpu=load_gpu(gpu))
        options = dict(FSDP)
        if line["fsdp"] == "SHARD_GRAD_OP":
            options["zero"] = 2
        layout = Layout(
            seq=number(line, "seq"), global_batch=number(line, "gbs"),
            micro_batch=number(line, "mbs"), dp=number(line, "dp"),
            recompute="full" if line["recompute"] == "True" else "none",
            precision="fp8" if "fp8" in line["precision"] else "bf16", **options,
        )  # fmt: skip
        kind = line["gpu"].replace("_", " ").upper()
        label = f"{line['model']} {kind} {line['n_gpus']} GPUs seq {line['seq']} mbs {line['mbs']}"
        label += " fp8" if layout.precision == "fp8" else ""
        rows.append(
            Row("llmfoundry_mpt", f"{kind}, llm-foundry", label, model, layout, cluster,
                float(line["step_time_s"]))
        )  # fmt: skip
    return rows


def torchtitan(folder: Path) -> list[Row]:
    """Rows of torchtitan on H100 with 2.4 TB/s of memory and 500 W, and on H200.

    Its documented defaults of the time: under a pipeline the local batch is cut into as many
    micro-batches as there are stages, and parameters stay gathered (ZeRO 2). Rows that do not
    name the compiler ran PyTorch's own steps; the asynchronous ones of 2025 need it.
    """
    return [_titan_row(line) for line in read(folder / "torchtitan.csv")]


def _titan_row(line: dict[str, str]) -> Row:
    h200 = "H200" in line["gpu"]
    cluster = load_cluster("h200-8x400g" if h200 else "h100-8x400g")
    if not h200:  # HBM2e, "2.4 TB/sec peak memory bandwidth" (the table's own page)
        gpu = msgspec.structs.replace(cluster.gpu, hbm_bytes_per_s=2.4e12, hbm_bytes=96e9)
        cluster = msgspec.structs.replace(cluster, gpu=gpu)
    model = load_model("llama3-" + line["model"].rpartition("-")[2].lower())
    tp, pp, cp, fsdp = (number(line, key) for key in ("tp", "pp", "cp", "fsdp"))
    local = number(line, "mbs")
    seq = number(line, "seq")
    note = line["note"]
    virtual = 2 if "Interleaved" in note else 1
    options = {**FSDP, "accumulate_bytes": 4, "zero": 2 if pp > 1 else 3}
    layout = Layout(
        seq=seq, global_batch=local * fsdp, tp=tp, cp=cp, pp=pp, dp=fsdp, virtual=virtual,
        micro_batch=local // (pp * virtual) if pp > 1 else local,
        recompute="full" if line["recompute"] == "full" else "operations",
        precision="fp8" if "fp8" in line["precision"] else "bf16", fused=note != "FSDP",
        overlap_tensor="async" in note.lower(), **options,
    )  # fmt: skip
    label = (
        f"{line['table']}: {model.name} {line['n_gpus']} GPUs seq {seq} {line['precision']} {note}"
    )
    seconds = local * seq * fsdp / (float(line["tokens_s_gpu"]) * number(line, "n_gpus"))
    fit = "H200, torchtitan" if h200 else "H100, torchtitan"
    return Row("torchtitan", fit, label[:90], model, layout, cluster, seconds)
