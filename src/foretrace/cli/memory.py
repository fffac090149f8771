"""``foretrace memory``: does a job fit its GPUs; what did a recorded rank hold at its peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from foretrace.replay.costs.memory import StageMemory, Verdict
    from foretrace.replay.costs.memory_events import MemorySummary
    from foretrace.replay.costs.memory_layout import Precision, Split, Transformer

_MODEL_FIELDS = ("layers", "hidden", "heads", "ffn", "vocab")
_TERMS = (
    "parameters", "gradients", "optimizer", "activations", "logits", "buffers", "overhead",
)  # fmt: skip
GIB = 2.0**30

_Count = Annotated[int, typer.Option(min=1)]
_Size = Annotated[int | None, typer.Option(min=1)]


def memory_command(
    trace: Annotated[
        str | None,
        typer.Argument(metavar="[RUN.trace]", help="A trace set: report what it recorded."),
    ] = None,
    *,
    rank: Annotated[int, typer.Option(help="Rank of the trace set.")] = 0,
    layers: _Size = None,
    hidden: _Size = None,
    heads: _Size = None,
    kv_heads: Annotated[
        int | None, typer.Option(min=1, help="As many as heads if left out.")
    ] = None,
    ffn: Annotated[
        int | None, typer.Option(min=1, help="Width of the MLP, or of an expert.")
    ] = None,
    vocab: _Size = None,
    ungated: Annotated[bool, typer.Option("--ungated", help="MLP of two matrices.")] = False,
    tied: Annotated[bool, typer.Option("--tied", help="Embedding and head are one.")] = False,
    experts: Annotated[int, typer.Option(min=0)] = 0,
    topk: _Count = 1,
    seq: _Count = 4096,
    micro_batch: _Count = 1,
    accumulation: Annotated[int, typer.Option(min=1, help="Micro-batches of a step.")] = 1,
    tp: _Count = 1,
    pp: _Count = 1,
    dp: _Count = 1,
    cp: _Count = 1,
    ep: _Count = 1,
    zero: Annotated[int, typer.Option(min=0, max=3, help="3 is FSDP.")] = 0,
    virtual: Annotated[int, typer.Option(min=1, help="Chunks of an interleaved pipeline.")] = 1,
    recompute: Annotated[str, typer.Option(help="none, selective or full.")] = "none",
    gpu: Annotated[str, typer.Option(help="GPU type, as 'foretrace clusters' lists.")] = "h100",
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Say what a training step holds per pipeline stage, or what a recording held."""
    from foretrace.traces.errors import LayoutError

    if trace is not None:
        _recorded(trace, rank, as_json)
        return
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "vocab": vocab}
    missing = [f"--{name}" for name in _MODEL_FIELDS if sizes[name] is None]
    if missing:
        raise LayoutError(f"a model needs {', '.join(missing)}; or give a trace set")
    if recompute not in ("none", "selective", "full"):
        raise LayoutError(f"--recompute {recompute!r}: expected none, selective or full")
    from foretrace.replay.costs.memory_layout import Precision, Split, Transformer

    model = Transformer(
        **{k: int(v) for k, v in sizes.items() if v is not None},
        kv_heads=kv_heads or int(heads or 1), gated=not ungated, tied=tied, experts=experts,
        topk=topk,
    )  # fmt: skip
    split = Split(
        seq=seq, micro_batch=micro_batch, accumulation=accumulation, tp=tp, pp=pp, dp=dp, cp=cp,
        ep=ep, zero=zero, virtual=virtual,
    )  # fmt: skip
    kept: Any = recompute
    _planned(model, split, Precision(recompute=kept), gpu, as_json)


def plan_json(memory: StageMemory, answer: Verdict, gpu: str) -> dict[str, Any]:
    """What ``foretrace memory --json`` writes for a plan; scripts rely on these keys."""
    stages = [
        {"stage": s, "peak_bytes": float(memory.peak[s])}
        | {f"{term}_bytes": float(getattr(memory, term)[s]) for term in _TERMS}
        for s in range(len(memory.peak))
    ]
    return {
        "fits": answer.fits,
        "gpu": gpu,
        "peak_bytes": answer.peak_bytes,
        "stage": answer.stage,
        "limit_bytes": answer.limit_bytes,
        "stages": stages,
    }


def recorded_json(found: MemorySummary) -> dict[str, Any]:
    """What ``foretrace memory --json`` writes for a recording."""
    return {
        "peak_bytes": found.peak_bytes,
        "peak_ns": found.peak_ns,
        "start_bytes": found.start_bytes,
        "reserved_peak_bytes": found.reserved_peak_bytes,
        "unused_share": found.unused_share if found.reserved_peak_bytes > 0 else None,
        "growth_bytes": found.growth_bytes,
        "holders": [{"operator": name, "bytes": size} for name, size in found.holders],
    }


def _planned(
    model: Transformer, split: Split, precision: Precision, gpu: str, as_json: bool
) -> None:
    from foretrace.cli.terminal import print_json, print_line, print_table
    from foretrace.replay.cluster import load_gpu
    from foretrace.replay.costs.memory import (
        MARGIN,
        RESERVE_BYTES,
        stage_memory,
        verdict,
        visible_bytes,
    )

    kind = load_gpu(gpu)
    memory = stage_memory(model, split, precision)
    answer = verdict(memory, visible_bytes(kind))
    if as_json:
        print_json(plan_json(memory, answer, gpu))
        return
    word = "fits" if answer.fits else "does not fit"
    print_line(
        f"{word}: stage {answer.stage} peaks at {answer.peak_bytes / GIB:.1f} GiB of "
        f"{answer.limit_bytes / GIB:.1f} GiB ({gpu} less {RESERVE_BYTES / GIB:.0f} GiB for CUDA "
        f"and NCCL; {MARGIN:.1%} margin asked for)"
    )
    rows = [
        [str(stage), f"{memory.peak[stage] / GIB:.2f}"]
        + [f"{getattr(memory, term)[stage] / GIB:.2f}" for term in _TERMS]
        for stage in range(split.pp)
    ]
    print_table(["stage", "peak GiB", *_TERMS], rows)


def _recorded(trace: str, rank: int, as_json: bool) -> None:
    from foretrace.cli.terminal import print_json, print_line, print_table
    from foretrace.replay.costs.memory_events import summarise
    from foretrace.traces.store import TraceSet

    found = summarise(TraceSet.open(trace), rank)
    if as_json:
        print_json(recorded_json(found))
        return
    print_line(
        f"rank {rank}: peak {found.peak_bytes / GIB:.2f} GiB allocated, "
        f"{found.start_bytes / GIB:.2f} GiB of it before the recording's first event"
    )
    if found.reserved_peak_bytes > 0:
        print_line(
            f"reserved {found.reserved_peak_bytes / GIB:.2f} GiB; at the peak "
            f"{100 * found.unused_share:.1f}% of the reserved was not allocated"
        )
    print_line(f"change over the recording: {found.growth_bytes / GIB:+.2f} GiB")
    rows = [[name, f"{size / GIB:.2f}"] for name, size in found.holders]
    print_table(["held at the peak by", "GiB"], rows)
