"""What a computation kernel is, read out of its name: GEMM, attention, elementwise ...

Names are matched once per distinct name. The first rule that fits wins, so narrow rules
stand before wide ones (``softmax`` inside a flash-attention name is attention).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from foretrace.replay.graph import I8

KERNEL_CLASSES = (
    "gemm",
    "grouped_gemm",
    "convolution",
    "attention",
    "optimizer",
    "cross_entropy",
    "softmax",
    "norm",
    "embedding",
    "reduce",
    "copy",
    "elementwise",
    "other",
)
"""Values of a class code, by position."""

MATRIX_CLASSES = ("gemm", "grouped_gemm", "convolution", "attention")
"""Classes limited by the matrix units; the others are limited by memory."""

_RULES = (
    ("other", r"computeb?offsets"),
    ("reduce", r"reduce_wgrad|epilogue::impl|gemv|splitkreduce"),
    ("attention", r"flash|fmha|attn_fwd|attn_bwd|attention|compute_attn|mha_"),
    ("grouped_gemm", r"grouped_gemm|group_gemm|grouped|moe_gemm|dsd_|sdd_|dds_|blocksparse"),
    ("optimizer", r"adam|lamb(?!da)|multi_tensor_apply|adagrad|sgd_|fused_opt"),
    ("embedding", r"embedding|index_?select|indexing_backward|gather_kernel|embs_kernel"),
    ("cross_entropy", r"cross_entropy|nll_loss|logsoftmax|log_softmax"),
    ("softmax", r"softmax"),
    ("norm", r"norm|bn_fw|bn_bw|gammabeta|cuapply|cucompute.*grad|welford"),
    (
        "copy",
        r"winograd(?:forward|wgrad|dgrad)|nchwtonhwc|nhwctonchw|catarray|copy_kernel|direct_copy|transpose|permute|fillfunctor",
    ),
    (
        "convolution",
        r"conv|fprop|dgrad|wgrad|winograd|scudnn|cudnn_(?:infer_|train_)?(?:volta|ampere|turing)",
    ),
    ("gemm", r"gemm|cijk|nvjet|matmul|\bbmm_|cublas|xmma|s884|s1688|s16816"),
    ("reduce", r"reduce|scan_|cumsum|sort"),
    ("elementwise", r"elementwise|triton|pointwise|dropout|masked_|where_kernel|cudacodegen"),
)
_COMPILED = tuple((KERNEL_CLASSES.index(name), re.compile(rule)) for name, rule in _RULES)
_TILES = (
    re.compile(r"tilesize(\d+)x(\d+)"),
    re.compile(r"_MT(\d+)x(\d+)x\d+"),
    re.compile(r"nvjet_\w*?_(\d+)x(\d+)_"),
    re.compile(r"(?:gemm|scudnn|xmma)\w*?_(\d+)x(\d+)(?:_|$)"),
)


def kernel_classes(names: Sequence[str]) -> I8:
    """Class code of each name (index into ``KERNEL_CLASSES``). Shape ``(names,)``."""
    return np.array([_class_of(name) for name in names], np.int8)


def is_matrix(names: Sequence[str]) -> np.ndarray:
    """Whether each name is limited by the matrix units. Shape ``(names,)``."""
    codes = [KERNEL_CLASSES.index(name) for name in MATRIX_CLASSES]
    return np.isin(kernel_classes(names), codes)


@lru_cache(maxsize=1 << 16)
def tile_of(name: str) -> tuple[int, int]:
    """Output tile (rows, columns) that a GEMM's name tells; (0, 0) where it tells none."""
    for pattern in _TILES:
        found = pattern.search(name)
        if found:
            return int(found[1]), int(found[2])
    return 0, 0


@lru_cache(maxsize=1 << 16)
def _class_of(name: str) -> int:
    folded = name.lower()
    for code, pattern in _COMPILED:
        if pattern.search(folded):
            return code
    return KERNEL_CLASSES.index("other")
