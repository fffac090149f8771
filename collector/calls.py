"""What each ``c10d::`` operator communicates: one row of a table per operator.

A row names the collective, how its tensors are read from the operator's arguments, and what
root, peer or splits it has. Adding an operator is one line in ``OPERATORS``. Nothing here
imports torch: tensors are only asked for ``nbytes``, ``numel()``, ``dtype``, ``size(0)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Tensors = Sequence[Any]
Args = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Operator:
    """How one ``c10d::`` operator is read.

    Attributes:
        kind: one of ``traces.schema.COLLECTIVE_KINDS``.
        gloo: the part after ``gloo:`` in the annotation of the same work, "" where unknown.
        inputs: arguments -> tensors that the rank puts in.
        outputs: arguments -> tensors that the rank gets out.
        group: position of the process group.
        root: position of the root, source or destination (a rank of the group); -1 for none.
        rooted: which side exists on the root alone: "in", "out" or "" for neither.
        p2p: point-to-point.
        splits: arguments -> (elements sent to each member, elements received from each).
    """

    kind: str
    gloo: str
    inputs: Callable[[Args], Tensors]
    outputs: Callable[[Args], Tensors]
    group: int
    root: int = -1
    rooted: str = ""
    p2p: bool = False
    splits: Callable[[Args], tuple[list[int], list[int]] | None] | None = None


def _list(position: int) -> Callable[[Args], Tensors]:
    """The argument is a list of tensors."""
    return lambda args: args[position]


def _one(position: int) -> Callable[[Args], Tensors]:
    """The argument is a single tensor."""
    return lambda args: (args[position],)


def _nested(position: int) -> Callable[[Args], Tensors]:
    """The argument is a list of lists of tensors."""
    return lambda args: [tensor for tensors in args[position] for tensor in tensors]


def _nothing(_args: Args) -> Tensors:
    return ()


def _elements(splits: Sequence[int], tensor: Any) -> list[int]:
    """Split sizes along dimension 0, in elements of the tensor."""
    rows = int(tensor.size(0)) if tensor.dim() else 1
    row = int(tensor.numel()) // rows if rows else 0
    return [int(size) * row for size in splits]


def _base_splits(args: Args) -> tuple[list[int], list[int]] | None:
    """Splits of ``alltoall_base_``; None when all members get equal parts."""
    output, given, _, out_splits, in_splits = args[:5]
    if not out_splits and not in_splits:
        return None
    return _elements(in_splits, given), _elements(out_splits, output)


def _list_splits(args: Args) -> tuple[list[int], list[int]]:
    """Splits of ``alltoall_``: one tensor for each member."""
    outputs, inputs = args[:2]
    return [int(t.numel()) for t in inputs], [int(t.numel()) for t in outputs]


OPERATORS: dict[str, Operator] = {
    "allreduce_": Operator("all_reduce", "all_reduce", _list(0), _list(0), 1),
    "allreduce_coalesced_": Operator("all_reduce", "all_reduce", _list(0), _list(0), 1),
    "broadcast_": Operator("broadcast", "broadcast", _list(0), _list(0), 1, 2, "in"),
    "reduce_": Operator("reduce", "reduce", _list(0), _list(0), 1, 3, "out"),
    "allgather_": Operator("all_gather", "all_gather", _list(1), _nested(0), 2),
    "_allgather_base_": Operator("all_gather", "all_gather", _one(1), _one(0), 2),
    "allgather_coalesced_": Operator("all_gather", "all_gather", _list(1), _nested(0), 2),
    "allgather_into_tensor_coalesced_": Operator("all_gather", "all_gather", _list(1), _list(0), 2),
    "reduce_scatter_": Operator("reduce_scatter", "reduce_scatter", _nested(1), _list(0), 2),
    "_reduce_scatter_base_": Operator("reduce_scatter", "reduce_scatter", _one(1), _one(0), 2),
    "reduce_scatter_tensor_coalesced_": Operator(
        "reduce_scatter", "reduce_scatter", _list(1), _list(0), 2
    ),
    "alltoall_base_": Operator(
        "all_to_all", "all_to_all", _one(1), _one(0), 2, splits=_base_splits
    ),
    "alltoall_": Operator("all_to_all", "all_to_all", _list(1), _list(0), 2, splits=_list_splits),
    "gather_": Operator("gather", "gather", _list(1), _nested(0), 2, 3, "out"),
    "scatter_": Operator("scatter", "scatter", _nested(1), _list(0), 2, 3, "in"),
    "send": Operator("send", "send", _list(0), _nothing, 1, 2, p2p=True),
    "recv_": Operator("recv", "recv", _nothing, _list(0), 1, 2, p2p=True),
    "recv_any_source_": Operator("recv", "recv", _nothing, _list(0), 1, p2p=True),
    "barrier": Operator("barrier", "barrier", _nothing, _nothing, 1),
    "monitored_barrier_": Operator("barrier", "", _nothing, _nothing, 1),
}
"""Operators of the ``c10d`` library that communicate, by name without the library's prefix."""

NOT_COMMUNICATION = frozenset({"check_for_nan"})
"""Operators of the ``c10d`` library that do not communicate."""

SCALAR_TYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
    "complex32": "ComplexHalf",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
}


def scalar_type(dtype: object) -> str:
    """The c10 ScalarType name of a torch dtype: ``torch.bfloat16`` -> ``"BFloat16"``."""
    name = str(dtype).removeprefix("torch.")
    return SCALAR_TYPES.get(name, name[:1].upper() + name[1:])


def payload(
    operator: Operator, args: Args, group_rank: int
) -> tuple[int, int, Any, int, tuple[list[int], list[int]] | None]:
    """Exact sizes of one call.

    Args:
        operator: the operator called.
        args: its arguments, group included.
        group_rank: this rank's number within the group.

    Returns:
        Bytes put in, bytes got out, torch dtype (None without tensors), root or peer as a
        rank of the group (-1 for none), and the splits in elements (None: equal or none).
    """
    inputs, outputs = operator.inputs(args), operator.outputs(args)
    root = args[operator.root] if operator.root >= 0 else -1
    put = sum([tensor.nbytes for tensor in inputs])
    got = put if outputs is inputs else sum([tensor.nbytes for tensor in outputs])
    if operator.rooted and root != group_rank:
        put, got = (0, got) if operator.rooted == "in" else (put, 0)
    some = inputs or outputs
    splits = operator.splits(args) if operator.splits is not None else None
    return put, got, some[0].dtype if some else None, root, splits
