"""How many bytes an operation moves: from metadata, else from the shapes of operators."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from foretrace.traces.collectives.model import EventView, Metadata, Operation, decoded
from foretrace.traces.dtypes import element_bytes, scalar_type
from foretrace.traces.groups import MOST_RANKS

Sizes = tuple[tuple[int, str], ...]
"""(bytes, element type) of tensors, in order."""

MOST_BYTES = 1 << 50
"""No operation moves more; a larger number is damage."""

_SAME_SIZE = ("all_reduce", "broadcast", "send", "recv", "reduce")


@lru_cache(maxsize=1 << 14)
def _tensor_sizes(shapes: str, dtypes: str) -> Sizes:
    dims, types = decoded(shapes), decoded(dtypes)
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) != len(types):
        return ()
    sizes = []
    for shape, kind in zip(dims, types, strict=True):
        width = element_bytes(kind) if isinstance(kind, str) else 0
        flat = isinstance(shape, list) and shape and all(isinstance(d, int) for d in shape)
        flat = flat and 0 <= width * prod(shape) <= MOST_BYTES
        if width and flat:
            sizes.append((width * prod(shape), scalar_type(kind)))
    return tuple(sizes)


def tensor_sizes(events: EventView, *rows: int) -> Sizes:
    """Sizes of the tensors that the first of ``rows`` with any recorded was given."""
    for row in rows:
        if row >= 0:
            sizes = _tensor_sizes(events.shapes.text(row), events.dtypes.text(row))
            if sizes:
                return sizes
    return ()


def fill_bytes(operation: Operation, inputs: Sizes, operands: Sizes) -> None:
    """Fill in bytes and element type of ``operation``.

    Args:
        operation: gets them.
        inputs: what the communication library was given.
        operands: what the c10d operator was given: (output, input) for its base variants.
    """
    meta = operation.meta
    _from_metadata(operation, meta)
    if operation.bytes_in < 0 and inputs:
        operation.bytes_in = sum(size for size, _ in inputs)
        meta.dtype = inputs[0][1]
    if len(operands) == 2 and operation.kind in ("all_gather", "reduce_scatter", "all_to_all"):
        (out, dtype), (put_in, _) = operands
        operation.bytes_in = put_in if operation.bytes_in < 0 else operation.bytes_in
        operation.bytes_out = out if operation.bytes_out < 0 else operation.bytes_out
        meta.dtype = meta.dtype or dtype
    if operation.kind in _SAME_SIZE and operation.bytes_out < 0:
        operation.bytes_out = operation.bytes_in
    if operation.kind == "send":
        operation.bytes_out = min(operation.bytes_out, 0)
    if operation.kind == "recv":
        operation.bytes_in = min(operation.bytes_in, 0)


def _from_metadata(operation: Operation, meta: Metadata) -> None:
    width = element_bytes(meta.dtype)
    meta.dtype = scalar_type(meta.dtype) or meta.dtype
    if width and 0 <= meta.in_elements <= MOST_BYTES // width:
        operation.bytes_in = meta.in_elements * width
    if width and 0 <= meta.out_elements <= MOST_BYTES // width:
        operation.bytes_out = meta.out_elements * width


def of_all(size: int, members: int) -> int:
    """Bytes of all members of a group that have ``size`` bytes each; -1 where one cannot be."""
    return size * members if 0 <= size <= MOST_BYTES and 0 < members <= MOST_RANKS else -1


def fill_by_group_size(operation: Operation) -> None:
    """What one side of an all-gather or reduce-scatter tells of the other."""
    size = operation.meta.group_size
    if not 0 < size <= MOST_RANKS or operation.bytes_in < 0 or operation.bytes_out >= 0:
        return
    if operation.kind == "all_gather":
        operation.bytes_out = of_all(operation.bytes_in, size)
    elif operation.kind == "reduce_scatter":
        operation.bytes_out = operation.bytes_in // size
