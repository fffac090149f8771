"""Arrow arrays out of NumPy arrays and short lists.

``pyarrow.array`` would do the same but loads pandas when it is first called, which costs an
importing process 45 MB and a third of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from foretrace.traces.errors import TraceFormatError


def numbers(values: Any, kind: pa.DataType) -> pa.Array:
    """Numbers or truth values as an Arrow array of type ``kind``, without nulls."""
    if pa.types.is_boolean(kind):
        packed = np.packbits(np.asarray(values, np.bool_), bitorder="little")
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(packed)], 0)
    flat = np.ascontiguousarray(_fitting(values, kind), kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(flat), [None, pa.py_buffer(flat)], 0)


def _fitting(values: Any, kind: pa.DataType) -> Any:
    """Values with what does not fit ``kind`` made absent; a conversion would wrap it around.

    Raises:
        TraceFormatError: 64 bits are not enough.
    """
    if not pa.types.is_integer(kind):
        return values
    bounds = np.iinfo(kind.to_pandas_dtype())
    least, most, wide = int(bounds.min), int(bounds.max), bounds.bits == 64
    absent = -1 if least else 0
    if not len(values) or (isinstance(values, np.ndarray) and wide):
        return values
    if isinstance(values, np.ndarray):
        inside = (values >= least) & (values <= most)
        return values if inside.all() else np.where(inside, values, absent)
    if least <= min(values) and max(values) <= most:
        return values
    odd = next(v for v in values if not least <= v <= most)
    if wide and least:
        raise TraceFormatError(f"a number that does not fit 64 bits: {str(odd)[:40]}")
    return [v if least <= v <= most else absent for v in values]


def strings(values: Iterable[str]) -> pa.Array:
    """Texts as an Arrow string array."""
    data = [v.encode("utf-8", "replace") for v in values]
    offsets = np.zeros(len(data) + 1, np.int32)
    np.cumsum([len(d) for d in data], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.string(), len(data), buffers, 0)


def coded(codes: Any, values: Iterable[str]) -> pa.DictionaryArray:
    """A dictionary array: ``codes`` are indices into ``values``."""
    return pa.DictionaryArray.from_arrays(numbers(codes, pa.int32()), strings(values))


def texts(values: Iterable[str]) -> pa.DictionaryArray:
    """Texts as a dictionary array."""
    table: dict[str, int] = {}
    codes = [table.setdefault(v, len(table)) for v in values]
    return coded(np.array(codes, np.int32), table)


def number_lists(values: Sequence[Sequence[int]]) -> pa.Array:
    """Lists of integers as an Arrow list array."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(v) for v in values], out=offsets[1:])
    flat = numbers([n for v in values for n in v], pa.int64())
    return pa.ListArray.from_arrays(numbers(offsets, pa.int32()), flat)
