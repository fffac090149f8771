"""Options of each framework, as its documentation or the source of a table states them.

Nothing here depends on a row but what the row itself says. What a table leaves open (virtual
stages, micro-batch) is decided here once, before any error was looked at, and the reason stands
beside it.
"""

from __future__ import annotations

from typing import Any

MEGATRON_2021: dict[str, Any] = {
    # Megatron-LM of 2021 and Megatron-DeepSpeed: every layer is checkpointed; attention writes its
    # scores (fused masked softmax); tensor-parallel all-reduces; plain DDP reduces 16-bit
    # gradients behind the backward pass (its local DDP overlaps nothing); transfers between
    # stages are waited for.
    "recompute": "full",
    "zero": 0,
    "sequence_parallel": False,
    "flash": False,
    "precision": "fp16",
    "accumulate_bytes": 2,
    "overlap_gradients": False,
    "overlap_parameters": False,
    "overlap_pipeline": False,
}

MEGATRON_CORE: dict[str, Any] = {
    # Megatron-Core as NeMo's performance recipes and its README set it: sequence parallelism,
    # distributed optimizer, gradient reduction (bf16 in NeMo, fp32 by Megatron's default) and
    # parameter gathers overlapped, tensor-parallel communication overlapped ("Communication
    # Overlap" in NeMo's user guide), fused attention, nothing recomputed.
    "zero": 1,
    "sequence_parallel": True,
    "flash": True,
    "overlap_gradients": True,
    "overlap_parameters": True,
    "overlap_tensor": True,
    "overlap_pipeline": True,
    "accumulate_bytes": 2,
}

NANOTRON: dict[str, Any] = {
    # scripts/scaling_benchmarks.py of nanotron: fp32 accumulation, REDUCE_SCATTER mode with
    # asynchronous tensor-parallel linears, 1F1B, no recomputation, flash attention. Parameters
    # are gathered after the optimizer step, and the step waits for it.
    "sequence_parallel": True,
    "flash": True,
    "recompute": "none",
    "accumulate_bytes": 4,
    "overlap_gradients": True,
    "overlap_parameters": False,
    "overlap_tensor": False,
    "overlap_pipeline": False,
    "bucket_bytes": 25 << 20,
}

FSDP: dict[str, Any] = {
    # PyTorch's FSDP: parameters of the next block are gathered while one computes, in the
    # forward and the backward pass; gradients are reduced in bf16 beside the backward pass
    # (mixed_precision PURE of llm-foundry's recipes).
    "zero": 3,
    "sequence_parallel": True,
    "flash": True,
    "accumulate_bytes": 2,
    "overlap_gradients": True,
    "overlap_parameters": True,
}
