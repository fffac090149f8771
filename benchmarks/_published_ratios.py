"""Tables that are reported without a bar: Megatron-Bridge, and ratios of Lumos's figure 7."""

from __future__ import annotations

from pathlib import Path

from _published_megatron import H100_MEGATRON
from _published_options import MEGATRON_CORE
from _published_rows import Row, number, read

from foretrace.replay.cluster import load_cluster
from foretrace.replay.layout import Layout
from foretrace.replay.model import Model, load_model

_BRIDGE = {"LLAMA3_70B": "llama3-70b", "LLAMA3.1_405B": "llama3-405b"}


def bridge(folder: Path) -> list[Row]:
    """Megatron-Bridge's pre-training of dense Llama models on H100, FP8 all of it."""
    rows = []
    for line in read(folder / "megatron_bridge.csv"):
        known = line["model"] in _BRIDGE and "H100" in line["gpu"]
        if not known or "LoRA" in line["table"] or not all(line[k] for k in ("gbs", "tp", "pp")):
            continue
        model = load_model(_BRIDGE[line["model"]])
        tp, pp, cp = number(line, "tp"), number(line, "pp"), number(line, "cp")
        virtual = number(line, "vpp")
        stages = pp * virtual
        uneven = (model.layers + 2) // stages if model.layers % stages else 0
        layout = Layout(
            seq=number(line, "seq"), global_batch=number(line, "gbs"),
            micro_batch=number(line, "mbs"), tp=tp, cp=cp, pp=pp,
            dp=number(line, "n_gpus") // (tp * pp * cp), virtual=virtual, precision="fp8",
            layers=(uneven - 1, *[uneven] * (stages - 2), uneven - 1) if uneven else (),
            **MEGATRON_CORE,
        )  # fmt: skip
        label = f"{line['table'][:8]} {model.name} {line['n_gpus']} GPUs"
        rows.append(
            Row("megatron_bridge", H100_MEGATRON, label, model, layout, load_cluster("h100-8x400g"),
                float(line["step_time_s"]), can_fit=False)
        )  # fmt: skip
    return rows


def lumos(folder: Path) -> list[Row]:
    """Lumos's GPT-3 15B: only ratios to the row of 2 x 2 x 8, as batch and sequence are not given.

    Taken: sequences of 2,048, micro-batch 1, twice as many micro-batches as pipeline ranks. The
    times are scaled so that the first row is right.
    """
    lines = [x for x in read(folder / "lumos_fig7.csv") if x["which"] == "actual"]
    model = Model(
        name="gpt3-15b", layers=48, hidden=6144, heads=48, ffn=12288, vocab=51200, gated=False,
        rotary=False, tied=True, seq=2048,
    )  # fmt: skip
    rows = []
    for line in lines:
        tp, pp, dp = number(line, "tp"), number(line, "pp"), number(line, "dp")
        options = {**MEGATRON_CORE, "overlap_tensor": False}
        layout = Layout(seq=2048, global_batch=2 * pp * dp, tp=tp, pp=pp, dp=dp, **options)
        label = f"{line['figure']} tp{tp} pp{pp} dp{dp}"
        rows.append(
            Row("lumos_fig7", H100_MEGATRON, label, model, layout, load_cluster("h100-8x400g"),
                float(line["step_ms"]) / 1e3, can_fit=False)
        )  # fmt: skip
    return rows
