"""Tables of Megatron-LM, Megatron-DeepSpeed, Megatron-Core and NeMo."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
from _published_options import MEGATRON_2021, MEGATRON_CORE
from _published_rows import Row, number, read

from foretrace.replay.cluster import load_cluster
from foretrace.replay.layout import Layout
from foretrace.replay.model import Model, load_model
from foretrace.replay.workload.describe import step_flops

A100_MEGATRON = "A100, Megatron-LM"
H100_MEGATRON = "H100, Megatron-Core"


def gpt(line: dict[str, str], vocab: int) -> Model:
    """A GPT of a table that gives layers, width and heads."""
    hidden = number(line, "hidden")
    heads = number(line, "heads", hidden // 128)
    return Model(
        name=line["model"], layers=number(line, "layers"), hidden=hidden, heads=heads,
        ffn=4 * hidden, vocab=vocab, gated=False, rotary=False, tied=True, seq=number(line, "seq"),
    )  # fmt: skip


def vtrain(folder: Path) -> list[Row]:
    """Measurements published with vTrain, each row one step of Megatron-DeepSpeed on A100.

    Its configuration files say 800 Gbit/s between nodes of 8: four NICs of 200.
    """
    cluster = msgspec.structs.replace(load_cluster("a100-8x200g"), nics_per_node=4)
    rows = []
    for line in read(folder / "vtrain_megatron_deepspeed.csv"):
        kind = "multi-node" if "multi" in line["table"] else "single-node"
        layout = Layout(
            seq=number(line, "seq"), global_batch=number(line, "gbs"),
            micro_batch=number(line, "mbs"), tp=number(line, "tp"), pp=number(line, "pp"),
            dp=number(line, "dp"), **MEGATRON_2021,
        )  # fmt: skip
        label = f"{line['model']} {line['layers']}x{line['hidden']} " + _split(layout)
        rows.append(
            Row(f"vtrain {kind}", A100_MEGATRON, label, gpt(line, 51200), layout, cluster,
                float(line["step_time_s"]))
        )  # fmt: skip
    return rows


def sc21(folder: Path) -> list[Row]:
    """Megatron-LM's tables of 2021 (arXiv 2104.04473): no fit of their own.

    The tables give tensor times pipeline ranks together. The paper's rule: tensor parallelism
    up to the 8 GPUs of a node, pipeline stages beyond. Micro-batch 1. The April rows ran the
    interleaved schedule with transfers split over the tensor-parallel ranks; two stages a rank.
    """
    rows = []
    for line in read(folder / "megatron_sc21_a100.csv"):
        ways = number(line, "model_parallel")
        rows.append(sc21_row(line, min(8, ways), ways // min(8, ways)))
    return rows


def sc21_row(line: dict[str, str], tp: int, pp: int) -> Row:
    """A row under one split; its step time from the paper's count of FLOPs with recomputation."""
    model = gpt(line, number(line, "vocab"))
    april = "Apr" in line["table"]
    layout = Layout(
        seq=number(line, "seq"), global_batch=number(line, "gbs"), tp=tp, pp=pp,
        dp=number(line, "dp"), **MEGATRON_2021,
    )  # fmt: skip
    if april and pp > 1 and model.layers // pp % 2 == 0 and layout.micro_batches % pp == 0:
        layout = msgspec.structs.replace(layout, virtual=2)
    seconds = sc21_flops(model, layout) / (
        float(line["tflops_gpu"]) * 1e12 * number(line, "n_gpus")
    )
    label = f"{line['model']} {'April' if april else 'January'} {_split(layout)}"
    return Row(
        "megatron_sc21_a100", A100_MEGATRON, label, model, layout,
        load_cluster("a100-8x200g"), seconds, can_fit=False,
    )  # fmt: skip


def sc21_flops(model: Model, layout: Layout) -> float:
    """FLOPs of a step as that paper counts them: 96 B s l h^2 (1 + s / 6h + V / 16lh)."""
    s, h, n = layout.seq, model.hidden, model.layers
    return 96.0 * layout.global_batch * s * n * h**2 * (1 + s / 6 / h + model.vocab / 16 / n / h)


def core_h100(folder: Path) -> list[Row]:
    """Megatron-Core r0.8 on H100, weak and strong scaling.

    TFLOP/s count FLOPs as above without recomputation (72 instead of 96), end to end. Strong
    scaling runs the layout of the weak table's row of the same model (8 x 6): the README gives one
    for all. Virtual stages of one layer each: the README says interleaved, not how many.
    """
    rows = []
    lines = read(folder / "megatron_core_h100.csv")
    shapes = {line["model"]: line for line in lines if line["tp"]}
    for line in lines:
        own = shapes[line["model"]]
        tp, pp = number(own, "tp"), number(own, "pp")
        gpus = number(line, "n_gpus")
        model = gpt(line, number(line, "vocab"))
        layout = Layout(
            seq=number(line, "seq"), global_batch=number(line, "gbs"), tp=tp, pp=pp,
            dp=gpus // (tp * pp), virtual=one_layer_stages(model, pp), **MEGATRON_CORE,
        )  # fmt: skip
        layout = msgspec.structs.replace(layout, accumulate_bytes=4)
        flops = sc21_flops(model, layout) * 0.75
        kind = "strong" if "strong" in line["table"] else "weak"
        label = f"{line['model']} {kind} {gpus} GPUs {_split(layout)}"
        rows.append(
            Row("megatron_core_h100", H100_MEGATRON, label, model, layout,
                load_cluster("h100-8x400g"), flops / (float(line["tflops_gpu"]) * 1e12 * gpus))
        )  # fmt: skip
    return rows


def one_layer_stages(model: Model, pp: int) -> int:
    """Virtual stages where a table does not say: one layer each, as NeMo's recipes have it."""
    return model.layers // pp if pp > 1 and model.layers % pp == 0 else 1


NEMOTRON = {
    "15b": Model(name="nemotron-15b", layers=32, hidden=6144, heads=48, kv_heads=8, ffn=24576,
                 vocab=256000, gated=False, seq=4096, source="arXiv 2402.16819, table 1"),
    "340b": Model(name="nemotron-340b", layers=96, hidden=18432, heads=96, kv_heads=8, ffn=73728,
                  vocab=256000, gated=False, seq=4096, source="arXiv 2406.11704, table 1"),
}  # fmt: skip


def dgxc(folder: Path) -> list[Row]:
    """NVIDIA's expected performance of NeMo recipes: rows that give the whole layout.

    Rows of MaxText and Paxml are left out: they are JAX programs, whose layouts have no tensor
    and pipeline columns. FP8 rows are reported in a table of their own, without a bar.
    """
    rows = []
    for line in read(folder / "dgxc_benchmarking.csv"):
        whole = all(line[k] for k in ("gbs", "mbs", "tp", "pp"))
        model = _dgxc_model(line) if whole else None
        if model is None:
            continue
        fp8 = line["precision"] == "fp8"
        seq = _seq(line)
        tp, pp, cp = number(line, "tp"), number(line, "pp"), number(line, "cp")
        layout = Layout(
            seq=seq, global_batch=number(line, "gbs"), micro_batch=number(line, "mbs"), tp=tp,
            cp=cp, pp=pp, dp=number(line, "n_gpus") // (tp * pp * cp),
            virtual=number(line, "vpp") if pp > 1 else 1,
            precision="fp8" if fp8 else "bf16", **MEGATRON_CORE,
        )  # fmt: skip
        label = f"{line['table'].partition(':')[0]} {model.name} {line['n_gpus']} GPUs"
        rows.append(
            Row("dgxc FP8" if fp8 else "dgxc BF16", H100_MEGATRON, label, model, layout,
                load_cluster("h100-8x400g"), float(line["step_time_s"]))
        )  # fmt: skip
    return rows


def _dgxc_model(line: dict[str, str]) -> Model | None:
    name = line["table"].rpartition("README_")[2].removesuffix(".md")
    if "finetuning" in line["table"]:
        return None
    if "nemotron/" in line["table"]:
        return NEMOTRON[name]
    if "llama3.1/" in line["table"]:
        model = load_model(f"llama3-{name}")
        return msgspec.structs.replace(model, layers=number(line, "layers", model.layers))
    return load_model("gpt3-175b") if "nemo_megatron" in line["table"] else None


def _seq(line: dict[str, str]) -> int:
    """Stated, or what batch, tokens and time imply, rounded to a whole kilobyte of tokens."""
    found = re.search(r"implied seq (\d+)", line["note"])
    stated = number(line, "seq", int(found.group(1)) if found else 0)
    return round(stated / 1024) * 1024


FOLDING = {
    "Mixtral-8x22B": load_model("mixtral-8x22b"),
    "Qwen2-57B-A14B": Model(
        name="qwen2-57b-a14b", layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, experts=64,
        topk=8, expert_ffn=2560, shared_experts=8, vocab=151936, seq=4096,
        source="arXiv 2407.10671, table 1; shared expert 20480 wide",
    ),
    "Mixtral-8x22B-G8T8": Model(
        name="mixtral-8x22b-g8t8", layers=56, hidden=6144, heads=48, kv_heads=8, head_dim=128,
        ffn=16384, experts=64, topk=8, expert_ffn=2048, vocab=32768, seq=4096,
        source="arXiv 2504.14960: each expert cut into eight, eight active",
    ),
    "Llama3-8x70B": Model(
        name="llama3-8x70b", layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, experts=8,
        topk=2, vocab=128256, seq=4096, source="arXiv 2504.14960: Llama 3 70B, eight experts",
    ),
}  # fmt: skip


def folding(folder: Path) -> list[Row]:
    """MoE parallel folding on H100: five strategies.

    Without folding, experts are split over the tensor-parallel ranks too and expert groups lie in
    the data-parallel ones. Tokens over the even share are dropped. Micro-batch 1 and virtual
    stages of one layer, which the paper leaves open. FSDP rows: ZeRO-3, tensor parallelism kept.
    """
    rows = []
    for line in read(folder / "moe_parallel_folding.csv"):
        if line["mfu_pct"] in ("", "OOM") and not line["tflops_per_gpu"]:
            continue
        model = FOLDING[line["model"]]
        gpus = number(line, "n_gpus")
        layout = _folding_layout(line, model, gpus)
        if layout.global_batch % layout.dp or gpus != layout.gpus:
            continue
        share = float(line["mfu_pct"] or 0) / 100 or float(line["tflops_per_gpu"]) / 989.5
        flops = step_flops(model, layout.seq, layout.global_batch)
        label = f"{line['table']} {line['model']} {line['strategy']} {gpus} GPUs"
        fit = H100_MEGATRON
        rows.append(
            Row("moe_parallel_folding", fit, label, model, layout, load_cluster("h100-8x400g"),
                flops / (share * 989.5e12 * gpus))
        )  # fmt: skip
    return rows


def _folding_layout(line: dict[str, str], model: Model, gpus: int) -> Layout:
    tp, cp, pp, ep = (number(line, key) for key in ("tp", "cp", "pp", "ep"))
    folded = "Folding" in line["strategy"]
    options: dict[str, Any] = dict(MEGATRON_CORE)
    if line["strategy"].startswith("FSDP"):
        options["zero"] = 3
    return Layout(
        seq=number(line, "seq"), global_batch=number(line, "global_batch"), tp=tp, cp=cp, pp=pp,
        dp=gpus // (tp * cp * pp), ep=ep, etp=number(line, "etp") if folded else tp,
        virtual=one_layer_stages(model, pp), capacity=1.0, **options,
    )  # fmt: skip


def mlperf(folder: Path) -> list[Row]:
    """NVIDIA's submission of Llama 3.1 405B to MLPerf Training 5.0, 512 to 8,192 H100.

    FP8. 128 stages' places: embedding and head count as a layer each (NeMo's
    ``account_for_embedding_in_pipeline_split`` and its counterpart for the loss).
    """
    model = load_model("llama3-405b")
    rows = []
    for line in read(folder / "mlperf_llm.csv"):
        ours = line["submitter"] == "NVIDIA" and line["benchmark"] == "llama31_405b"
        if not (ours and line["step_time_s"] and "H100" in line["gpu"]):
            continue
        tp, pp, cp = number(line, "tp"), number(line, "pp"), number(line, "cp")
        virtual, gpus = number(line, "vpp"), number(line, "n_gpus")
        stages = pp * virtual
        each = (model.layers + 2) // stages
        layout = Layout(
            seq=number(line, "seq"), global_batch=number(line, "gbs"), tp=tp, cp=cp, pp=pp,
            dp=gpus // (tp * pp * cp), virtual=virtual, precision="fp8",
            layers=(each - 1, *[each] * (stages - 2), each - 1), **MEGATRON_CORE,
        )  # fmt: skip
        rows.append(
            Row("mlperf_llm", H100_MEGATRON, f"405B {gpus} GPUs {_split(layout)}", model, layout,
                load_cluster("h100-8x400g"), float(line["step_time_s"]), can_fit=False)
        )  # fmt: skip
    return rows


def _split(layout: Layout) -> str:
    text = " ".join(
        f"{key}{getattr(layout, key)}"
        for key in ("tp", "cp", "pp", "dp")
        if getattr(layout, key) > 1
    )
    return f"{text} mbs{layout.micro_batch} gbs{layout.global_batch}"
