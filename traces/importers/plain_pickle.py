"""Pickles of plain data, read without Python's unpickler.

That one runs whatever a file tells it to. This one knows the operations that build containers,
numbers and texts and no others: nothing can be imported or called, and a file costs no more
time and memory than its own length explains.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from foretrace.traces.errors import TraceFormatError

MOST_BYTES = 1 << 29
"""Longest file that is read."""

MOST_DEPTH = 32
"""Containers within containers."""

_MOST_MEMO = 1 << 24
_SHARING = 8
"""How many times longer the data may get because parts of it are named several times."""

_MARK = object()
_DIGITS = 4300  # of a number written as text; more take time that grows with their square


class _Reader:
    """The file, what was built so far and what may be named again."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.count = 0

    def take(self, length: int) -> bytes:
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise TraceFormatError(f"the pickle is cut off at byte {self.at}")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, form: struct.Struct) -> Any:
        return form.unpack(self.take(form.size))[0]

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise TraceFormatError(f"the pickle is cut off at byte {self.at}")
        part = self.data[self.at : end]
        self.at = end + 1
        return part

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise TraceFormatError(f"the pickle takes what it did not build, at byte {self.at}")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while at >= 0 and self.stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise TraceFormatError(f"the pickle closes what it did not open, at byte {self.at}")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def top(self, kind: type) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind:
            raise TraceFormatError(f"the pickle adds to no {kind.__name__}, at byte {self.at}")
        return self.stack[-1]

    def keep(self, number: int) -> None:
        if number > _MOST_MEMO or not self.stack or self.stack[-1] is _MARK:
            raise TraceFormatError(f"the pickle names what it did not build, at byte {self.at}")
        self.memo[number] = self.stack[-1]

    def again(self, number: int) -> None:
        if number not in self.memo:
            raise TraceFormatError(f"the pickle uses a name it did not give, at byte {self.at}")
        self.stack.append(self.memo[number])


_U1, _U2, _U4, _U8 = (struct.Struct(f"<{c}") for c in "BHIQ")
_I4, _F8 = struct.Struct("<i"), struct.Struct(">d")
_Step = Callable[[_Reader], object]


def load_plain(data: bytes) -> Any:
    """The value of a pickle that holds nothing but plain data.

    Dictionaries, lists, tuples, sets, texts, bytes, numbers, truth values and None are plain.
    Dictionary keys and set members must be texts, bytes, numbers or None.

    Raises:
        TraceFormatError: it asks for anything else, is cut off or damaged, or unfolds to far
            more than it holds.
    """
    if len(data) > MOST_BYTES:
        raise TraceFormatError(f"a pickle of {len(data)} bytes; expected at most {MOST_BYTES}")
    reader = _Reader(data)
    while True:
        code = reader.take(1)
        reader.count += 1
        if code == b".":
            value = reader.pop()
            _check_extent(value, _SHARING * reader.count + 1000)
            return value
        step = _STEPS.get(code)
        if step is None:
            raise TraceFormatError(
                f"the pickle asks for {_name(code)} at byte {reader.at - 1}: "
                "expected plain containers, numbers and texts; refused, nothing was run"
            )
        step(reader)


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


def _put(read: Callable[[_Reader], Any]) -> _Step:
    return lambda reader: reader.stack.append(read(reader))


def _constant(value: Any) -> _Step:
    return lambda reader: reader.stack.append(value)


def _sized(form: struct.Struct, turn: Callable[[bytes], Any]) -> _Step:
    return _put(lambda reader: turn(reader.take(reader.number(form))))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _long(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _written(line: bytes) -> Any:
    """A number as text: ``12``, ``12L``, or ``01`` and ``00`` for the truth values."""
    if line in (b"00", b"01"):
        return line == b"01"
    digits = line.removesuffix(b"L")
    if len(digits) > _DIGITS or not digits.lstrip(b"-").isdigit():
        raise TraceFormatError(f"the pickle holds no number where one is due: {line[:20]!r}")
    return int(digits)


def _float(line: bytes) -> float:
    try:
        return float(line)
    except ValueError:
        raise TraceFormatError(f"the pickle holds no number: {line[:20]!r}") from None


def _quoted(line: bytes) -> str:
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
        raise TraceFormatError("the pickle holds a text without its quotes")
    return _text(line[1:-1])


def _key(value: Any) -> Any:
    if value is None or type(value) in (str, bytes, int, float, bool):
        return value
    raise TraceFormatError(
        f"the pickle has a key that is no text or number: {type(value).__name__}"
    )


def _set_item(reader: _Reader) -> None:
    value, key = reader.pop(), reader.pop()
    reader.top(dict)[_key(key)] = value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise TraceFormatError("the pickle has a key without a value")
    return {_key(k): v for k, v in zip(items[::2], items[1::2], strict=True)}


def _set_items(reader: _Reader) -> None:
    pairs = _pairs(reader.since_mark())
    reader.top(dict).update(pairs)


def _append(reader: _Reader) -> None:
    value = reader.pop()
    reader.top(list).append(value)


def _appends(reader: _Reader) -> None:
    items = reader.since_mark()
    reader.top(list).extend(items)


def _add_items(reader: _Reader) -> None:
    items = [_key(v) for v in reader.since_mark()]
    reader.top(set).update(items)


def _tuple_of(length: int) -> _Step:
    def step(reader: _Reader) -> None:
        items = [reader.pop() for _ in range(length)]
        reader.stack.append(tuple(items[::-1]))

    return step


def _copy(reader: _Reader) -> None:
    value = reader.pop()
    reader.stack += [value, value]


def _memoize(reader: _Reader) -> None:
    reader.keep(len(reader.memo))


def _name_number(line: bytes) -> int:
    number = _written(line)
    if not 0 <= number <= _MOST_MEMO:
        raise TraceFormatError("the pickle names more than it can hold")
    return int(number)


_STEPS: dict[bytes, _Step] = {
    b"\x80": lambda r: r.take(1),  # protocol
    b"\x95": lambda r: r.take(8),  # frame
    b"(": _constant(_MARK),
    b"0": lambda r: r.pop(),  # drop
    b"1": lambda r: r.since_mark(),
    b"2": _copy,
    b"N": _constant(None),
    b"\x88": _constant(True),
    b"\x89": _constant(False),
    b"I": _put(lambda r: _written(r.line())),
    b"L": _put(lambda r: _written(r.line())),
    b"F": _put(lambda r: _float(r.line())),
    b"J": _put(lambda r: r.number(_I4)),
    b"K": _put(lambda r: r.number(_U1)),
    b"M": _put(lambda r: r.number(_U2)),
    b"G": _put(lambda r: r.number(_F8)),
    b"\x8a": _sized(_U1, _long),
    b"\x8b": _sized(_U4, _long),
    b"S": _put(lambda r: _quoted(r.line())),
    b"T": _sized(_U4, _text),
    b"U": _sized(_U1, _text),
    b"V": _put(lambda r: _text(r.line())),
    b"X": _sized(_U4, _text),
    b"\x8c": _sized(_U1, _text),
    b"\x8d": _sized(_U8, _text),
    b"B": _sized(_U4, bytes),
    b"C": _sized(_U1, bytes),
    b"\x8e": _sized(_U8, bytes),
    b"\x96": _sized(_U8, bytes),
    b"]": _put(lambda r: []),
    b"l": _put(_Reader.since_mark),
    b"a": _append,
    b"e": _appends,
    b")": _constant(()),
    b"t": _put(lambda r: tuple(r.since_mark())),
    b"\x85": _tuple_of(1),
    b"\x86": _tuple_of(2),
    b"\x87": _tuple_of(3),
    b"}": _put(lambda r: {}),
    b"d": _put(lambda r: _pairs(r.since_mark())),
    b"s": _set_item,
    b"u": _set_items,
    b"\x8f": _put(lambda r: set()),
    b"\x90": _add_items,
    b"\x91": _put(lambda r: frozenset(_key(v) for v in r.since_mark())),
    b"p": lambda r: r.keep(_name_number(r.line())),
    b"q": lambda r: r.keep(r.number(_U1)),
    b"r": lambda r: r.keep(r.number(_U4)),
    b"\x94": _memoize,
    b"g": lambda r: r.again(_name_number(r.line())),
    b"h": lambda r: r.again(r.number(_U1)),
    b"j": lambda r: r.again(r.number(_U4)),
}
