"""What a kernel has to do, read out of its operator's recorded shapes and types.

Recognised operators give FLOPs and the bytes that must move at least once; anything else
gives its inputs and one output of the largest input's size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.costs.kernel_class import KERNEL_CLASSES, kernel_classes
from foretrace.replay.costs.kernel_table import KernelTable, parse_list
from foretrace.replay.graph import I8
from foretrace.traces.dtypes import element_bytes, scalar_type

F64 = NDArray[np.float64]

_TYPES = {
    "Double": "fp64", "Float": "fp32", "BFloat16": "bf16", "Half": "fp16", "Char": "int8",
    "Float8_e4m3fn": "fp8", "Float8_e5m2": "fp8", "Float8_e4m3fnuz": "fp8",
}  # fmt: skip
GEMM_OPERATORS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
"""Operators that are one matrix product, and the position of its first matrix."""
_HEADS_LAST = ("aten::_flash_attention_", "FlashAttn", "_flash_attn")  # (batch, seq, heads, dim)


@dataclass(frozen=True, slots=True)
class Work:
    """What kernels have to do; arrays of shape ``(n,)``.

    Attributes:
        kind: index into ``KERNEL_CLASSES``.
        dtype: operand type as in ``Gpu.flops`` (``bf16`` ...), "" unknown.
        sides: batch, m, n, k of a product; batch x heads, q, kv, head dimension of attention;
            zeros else. Shape ``(n, 4)``.
        causal: attention with a lower-triangular mask.
        backward: backward pass of attention.
        flops: floating-point operations, 0 where bytes decide.
        bytes: device memory traffic at least needed, 0 unknown.
    """

    kind: I8
    dtype: NDArray[np.str_]
    sides: F64
    causal: NDArray[np.bool_]
    backward: NDArray[np.bool_]
    flops: F64
    bytes: F64

    def __len__(self) -> int:
        return len(self.kind)

    def only(self, mask: Any) -> Work:
        """The rows that ``mask`` selects."""
        return Work(*(getattr(self, f)[mask] for f in Work.__slots__))


@dataclass(frozen=True, slots=True)
class _Item:
    dtype: str = ""
    sides: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    causal: bool = False
    backward: bool = False
    flops: float = 0.0
    bytes: float = 0.0


def work_of(kernels: KernelTable) -> Work:
    """The work of each kernel, from its launching operator. Shape ``(kernels,)``."""
    columns = (kernels.name, kernels.operator, kernels.shapes, kernels.dtypes, kernels.inputs)
    codes = np.stack([c.codes for c in columns], axis=1)
    distinct, back = np.unique(codes, axis=0, return_inverse=True)
    texts = [tuple(c.values[i] for c, i in zip(columns, row, strict=True)) for row in distinct]
    return describe(texts)[0].only(back.reshape(-1))


def describe(texts: list[tuple[str, ...]]) -> tuple[Work, list[str]]:
    """The work of kernels given as (kernel name, operator, shapes, types, inputs) texts.

    Returns:
        The work, and the texts' kernel names in the same order.
    """
    names = [t[0] for t in texts]
    kind = kernel_classes(names)
    items = [_item(KERNEL_CLASSES[k], *t) for k, t in zip(kind, texts, strict=True)]
    return Work(
        kind=kind,
        dtype=np.array([i.dtype for i in items], np.str_),
        sides=np.array([i.sides for i in items], np.float64).reshape(-1, 4),
        causal=np.array([i.causal for i in items], np.bool_),
        backward=np.array([i.backward for i in items], np.bool_),
        flops=np.array([i.flops for i in items], np.float64),
        bytes=np.array([i.bytes for i in items], np.float64),
    ), names


@lru_cache(maxsize=1 << 16)
def _item(kind: str, name: str, operator: str, shapes: str, dtypes: str, inputs: str) -> _Item:
    sizes, types = parse_list(shapes), [scalar_type(str(t)) for t in parse_list(dtypes)]
    dtype = _math_type(name, types)
    if kind == "gemm":
        return _product(operator, sizes, dtype) or _Item(dtype=dtype)
    if kind == "attention":
        return _attention(operator, sizes, dtype, parse_list(inputs)) or _Item(dtype=dtype)
    return _Item(dtype=dtype, bytes=_traffic(kind, operator, sizes, parse_list(dtypes)))


def _math_type(name: str, types: list[str]) -> str:
    """Type of the operands; tensor-core kernels multiply float32 as tf32."""
    known = [_TYPES[t] for t in types if t in _TYPES]
    dtype = known[-1] if known else ""
    if dtype == "fp32" and ("tf32" in name or "s1688gemm" in name or "tensorop_s1688" in name):
        return "tf32"
    return dtype


def _product(operator: str, sizes: list[Any], dtype: str) -> _Item | None:
    first = GEMM_OPERATORS.get(operator)
    if first is None or len(sizes) < first + 2:
        return None
    left, right = sizes[first], sizes[first + 1]
    if len(left) not in (2, 3) or len(left) != len(right):
        return None
    batch = float(left[0]) if len(left) == 3 else 1.0
    m, k, n = float(left[-2]), float(left[-1]), float(right[-1])
    moved = batch * (m * k + k * n + m * n) * _size(dtype)
    return _Item(dtype, (batch, m, n, k), flops=2 * batch * m * n * k, bytes=moved)


def _attention(operator: str, sizes: list[Any], dtype: str, inputs: list[Any]) -> _Item | None:
    if not sizes or not isinstance(sizes[0], list):
        return None
    backward = "backward" in operator.lower()
    first = 1 if backward and operator.startswith("aten::") else 0
    tensors = sizes[first : first + 2]
    if len(tensors) < 2 or any(len(t) not in (3, 4) for t in tensors):
        return None
    sides = _attention_sides(operator, tensors, sizes)
    if sides is None:
        return None
    causal = "true" in [str(v).lower() for v in inputs] if inputs else False
    causal = causal or operator.startswith("FlashAttnVarlen")  # packed training sequences
    b, q, kv, d = sides
    flops = 4 * b * q * kv * d * (0.5 if causal else 1.0) * (2.5 if backward else 1.0)
    moved = b * d * (2 * q + 2 * kv) * _size(dtype)
    return _Item(dtype, sides, causal, backward, flops, moved)


def _attention_sides(
    operator: str, tensors: list[Any], sizes: list[Any]
) -> tuple[float, float, float, float] | None:
    q, k = tensors
    if len(q) == 3:  # packed (tokens, heads, dim) with the sequences' offsets
        offsets = next((s for s in sizes if len(s) == 1 and s[0] > 1), None)
        if offsets is None:
            return None
        count = float(offsets[0] - 1)
        return count * q[1], q[0] / count, k[0] / count, float(q[2])
    seq, heads = (1, 2) if operator.startswith(_HEADS_LAST) else (2, 1)
    return float(q[0] * q[heads]), float(q[seq]), float(k[seq]), float(q[3])


def _traffic(kind: str, operator: str, sizes: list[Any], types: list[Any]) -> float:
    """Bytes that a memory-bound kernel reads and writes at least once."""
    tensors = list(_tensors(sizes, types))
    if not tensors:
        return 0.0
    numbers, widths = zip(*tensors, strict=True)
    each = [n * w for n, w in tensors]
    largest = max(each)
    if kind == "embedding" and len(tensors) > 1:
        table, index = sizes[0], tensors[1][0]  # rows read, rows written
        width = float(table[-1]) if isinstance(table[-1], int) else 0.0
        return float(2 * index * width * widths[0])
    rule = _RULES.get(kind)
    if rule is not None:
        return rule(operator, each)
    written = max(numbers) * max(widths) if kind == "elementwise" else largest
    return float(sum(each) + written)


def _in_place(operator: str, each: list[float]) -> float:
    return 2 * sum(each) if "foreach" in operator or operator.endswith("_") else 1.5 * sum(each)


_RULES: dict[str, Callable[[str, list[float]], float]] = {
    "reduce": lambda _, each: max(each),
    "copy": lambda op, each: sum(each) if op.endswith("copy_") else 2 * sum(each),
    "optimizer": _in_place,
    "embedding": lambda _, each: 2 * max(each[1:] or each),
    "norm": lambda _, each: sum(each) + max(each),
    "softmax": lambda _, each: sum(each) + max(each),
    "cross_entropy": lambda _, each: sum(each) + max(each),
}


def _tensors(sizes: list[Any], types: list[Any]) -> Any:
    """(elements, bytes an element) of every tensor, lists of tensors included."""
    for position, size in enumerate(sizes):
        if not isinstance(size, list) or not size:
            continue
        label = types[position] if position < len(types) else ""
        if isinstance(size[0], list):
            yield from _tensors(size, label if isinstance(label, list) else [label] * len(size))
        else:
            yield float(prod(size)), float(element_bytes(str(label)) or 4)


def _size(dtype: str) -> float:
    return {"fp64": 8, "fp32": 4, "tf32": 4, "fp8": 1, "int8": 1}.get(dtype, 2)
