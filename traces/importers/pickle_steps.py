"""The operations of pickles that build plain data, and no others."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from foretrace.traces.errors import TraceFormatError

MARK = object()
"""On the stack: where a container that is being built begins."""

_MOST_MEMO = 1 << 24
_DIGITS = 4300  # of a number written as text; more take time that grows with their square
_LONGEST = 1 << 10  # bytes of a number: it must be printable, too


class CutOffError(TraceFormatError):
    """The file ends before the data does."""


class Reader:
    """The file, what was built so far and what may be named again."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.count = 0

    def take(self, length: int) -> bytes:
        """The next bytes."""
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise CutOffError(f"the pickle is cut off at byte {self.at}")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, form: struct.Struct) -> Any:
        """The next number."""
        return form.unpack(self.take(form.size))[0]

    def line(self) -> bytes:
        """The next line, without its end."""
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise CutOffError(f"the pickle is cut off at byte {self.at}")
        part = self.data[self.at : end]
        self.at = end + 1
        return part

    def pop(self) -> Any:
        """What was built last."""
        if not self.stack or self.stack[-1] is MARK:
            raise TraceFormatError(f"the pickle takes what it did not build, at byte {self.at}")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        """What was built since the last mark, which goes, too."""
        at = len(self.stack) - 1
        while at >= 0 and self.stack[at] is not MARK:
            at -= 1
        if at < 0:
            raise TraceFormatError(f"the pickle closes what it did not open, at byte {self.at}")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def top(self, kind: type) -> Any:
        """What was built last and stays; it must be of this type."""
        if not self.stack or type(self.stack[-1]) is not kind:
            raise TraceFormatError(f"the pickle adds to no {kind.__name__}, at byte {self.at}")
        return self.stack[-1]

    def keep(self, number: int) -> None:
        """Give what was built last a name."""
        if number > _MOST_MEMO or not self.stack or self.stack[-1] is MARK:
            raise TraceFormatError(f"the pickle names what it did not build, at byte {self.at}")
        self.memo[number] = self.stack[-1]

    def again(self, number: int) -> None:
        """Take what has this name once more."""
        if number not in self.memo:
            raise TraceFormatError(f"the pickle uses a name it did not give, at byte {self.at}")
        self.stack.append(self.memo[number])


_U1, _U2, _U4, _U8 = (struct.Struct(f"<{c}") for c in "BHIQ")
_I4, _F8 = struct.Struct("<i"), struct.Struct(">d")
_Step = Callable[[Reader], object]


def _put(read: Callable[[Reader], Any]) -> _Step:
    return lambda reader: reader.stack.append(read(reader))


def _constant(value: Any) -> _Step:
    return lambda reader: reader.stack.append(value)


def _sized(form: struct.Struct, turn: Callable[[bytes], Any]) -> _Step:
    return _put(lambda reader: turn(reader.take(reader.number(form))))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _long(data: bytes) -> int:
    if len(data) > _LONGEST:
        raise TraceFormatError(f"the pickle holds a number of {len(data)} bytes; refused")
    return int.from_bytes(data, "little", signed=True)


def _written(line: bytes) -> Any:
    """A number as text: ``12``, ``12L``, or ``01`` and ``00`` for the truth values."""
    if line in (b"00", b"01"):
        return line == b"01"
    digits = line.removesuffix(b"L")
    if len(digits) > _DIGITS or not digits.removeprefix(b"-").isdigit():
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


def _set_item(reader: Reader) -> None:
    value, key = reader.pop(), reader.pop()
    reader.top(dict)[_key(key)] = value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise TraceFormatError("the pickle has a key without a value")
    return {_key(k): v for k, v in zip(items[::2], items[1::2], strict=True)}


def _set_items(reader: Reader) -> None:
    pairs = _pairs(reader.since_mark())
    reader.top(dict).update(pairs)


def _append(reader: Reader) -> None:
    value = reader.pop()
    reader.top(list).append(value)


def _appends(reader: Reader) -> None:
    items = reader.since_mark()
    reader.top(list).extend(items)


def _add_items(reader: Reader) -> None:
    items = [_key(v) for v in reader.since_mark()]
    reader.top(set).update(items)


def _tuple_of(length: int) -> _Step:
    def step(reader: Reader) -> None:
        items = [reader.pop() for _ in range(length)]
        reader.stack.append(tuple(items[::-1]))

    return step


def _copy(reader: Reader) -> None:
    value = reader.pop()
    reader.stack += [value, value]


def _memoize(reader: Reader) -> None:
    reader.keep(len(reader.memo))


def _name_number(line: bytes) -> int:
    number = _written(line)
    if not 0 <= number <= _MOST_MEMO:
        raise TraceFormatError("the pickle names more than it can hold")
    return int(number)


STEPS: dict[bytes, _Step] = {
    b"\x80": lambda r: r.take(1),  # protocol
    b"\x95": lambda r: r.take(8),  # frame
    b"(": _constant(MARK),
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
    b"l": _put(Reader.since_mark),
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
