"""Pickles of plain data, read without Python's unpickler.

That one runs whatever a file tells it to. This one knows the operations that build containers,
numbers and texts and no others: nothing can be imported or called, and a file costs no more
time and memory than its own length explains.
"""

from __future__ import annotations

from typing import Any

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers.pickle_steps import MARK, STEPS, CutOffError, Reader
from foretrace.traces.salvage import Losses

MOST_BYTES = 1 << 29
"""Longest file that is read."""

MOST_DEPTH = 32
"""Containers within containers."""

_SHARING = 8
"""How many times longer the data may get because parts of it are named several times."""


def load_plain(data: bytes, losses: Losses | None = None) -> Any:
    """The value of a pickle that holds nothing but plain data.

    Dictionaries, lists, tuples, sets, texts, bytes, numbers, truth values and None are plain.
    Dictionary keys and set members must be texts, bytes, numbers or None.

    Args:
        data: the pickle.
        losses: if given, what is whole of a pickle that is cut off is kept, and the cut noted.

    Raises:
        TraceFormatError: it asks for anything else, is cut off or damaged, or unfolds to far
            more than it holds.
    """
    if len(data) > MOST_BYTES:
        raise TraceFormatError(f"a pickle of {len(data)} bytes; expected at most {MOST_BYTES}")
    reader = Reader(data)
    try:
        value = _run(reader)
    except CutOffError as error:
        value = _what_is_whole(reader.stack) if losses is not None else None
        if losses is None or value is None:
            raise
        losses.add("end of the file is missing (whole entries kept)", 1, str(error))
    _check_extent(value, _SHARING * reader.count + 1000)
    return value


def _run(reader: Reader) -> Any:
    while True:
        code = reader.take(1)
        reader.count += 1
        if code == b".":
            return reader.pop()
        step = STEPS.get(code)
        if step is None:
            raise TraceFormatError(
                f"the pickle asks for {_name(code)} at byte {reader.at - 1}: "
                "expected plain containers, numbers and texts; refused, nothing was run"
            )
        step(reader)


def _what_is_whole(stack: list[Any]) -> Any:
    """The outermost container, with what had been finished inside it; None if there is none.

    A dictionary that was being built inside a list goes: it is an entry without its end.
    """
    outermost = next((i for i, v in enumerate(stack) if v is not MARK), len(stack))
    while MARK in stack[outermost + 1 :]:
        at = len(stack) - 1 - stack[::-1].index(MARK)
        items = stack[at + 1 :]
        del stack[at:]
        holder = stack[-1]
        if type(holder) is list:
            holder.extend(items)
        elif type(holder) is dict and len(stack) == outermost + 1:
            whole = items[: len(items) // 2 * 2]
            holder.update(
                (k, v) for k, v in zip(whole[::2], whole[1::2], strict=True) if type(k) is str
            )
        else:
            stack.pop()
    return stack[outermost] if outermost < len(stack) else None


def _name(code: bytes) -> str:
    from pickletools import opcodes

    known = next((o.name for o in opcodes if o.code == code.decode("latin-1")), "")
    return known or f"an unknown operation {code!r}"


def _check_extent(value: Any, most: int) -> None:
    """Refuse what is nested too deep, holds itself, or unfolds to more than ``most`` values."""
    level, depth, seen = [value], 0, 0
    while level:
        seen += len(level)
        if depth > MOST_DEPTH or seen > most:
            what = "nests too deep" if depth > MOST_DEPTH else "unfolds to far more than it holds"
            raise TraceFormatError(f"the pickle {what}; refused")
        inner: list[Any] = []
        for item in level:
            if type(item) is dict:
                inner.extend(item.values())
            elif type(item) in (list, tuple):
                inner.extend(item)
            if len(inner) > most:
                break
        level, depth = inner, depth + 1
