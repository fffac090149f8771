"""Pickles are made by Python's pickler or byte by byte; a hostile one must do nothing at all."""

from __future__ import annotations

import os
import pickle
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers.plain_pickle import MOST_DEPTH, load_plain

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=25,
)


@given(PLAIN, st.integers(2, 5))
def test_plain_data_reads_as_with_pythons_own_unpickler(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert load_plain(data) == pickle.loads(data)  # noqa: S301


@given(st.dictionaries(st.integers(), st.lists(st.floats(-1e9, 1e9)), max_size=4))
def test_text_protocols(value: Any) -> None:
    assert load_plain(pickle.dumps(value, 0)) == value
    assert load_plain(pickle.dumps(value, 1)) == value


def test_bytes_and_sets() -> None:
    value = {"a": b"\xff\0", "b": {1, "x"}, "c": frozenset([2]), "d": bytearray(b"xy")}
    assert load_plain(pickle.dumps(value, 5)) == value
    with pytest.raises(TraceFormatError, match="no text or number: tuple"):
        load_plain(pickle.dumps({(1, 2): 3}, 2))


class Runs:
    """Its pickle runs a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


class Built:
    """Its pickle sets attributes."""

    def __init__(self) -> None:
        self.value = 1


@pytest.mark.parametrize("protocol", range(6))
def test_a_command_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    data = pickle.dumps({"entries": [Runs(mark)]}, protocol)
    with pytest.raises(TraceFormatError, match=r"asks for (STACK_)?GLOBAL .*nothing was run"):
        load_plain(data)
    assert not mark.exists()
    pickle.loads(data)  # noqa: S301 (the pickle is a working attack)
    assert mark.exists()


HOSTILE = {
    "REDUCE": b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
    "reduce alone": b"\x80\x02))R.",
    "BUILD": pickle.dumps(Built(), 2),
    "build alone": b"\x80\x02}}b.",
    "NEWOBJ": b"\x80\x02X\x01\x00\x00\x00a)\x81.",
    "NEWOBJ_EX": b"\x80\x04X\x01\x00\x00\x00a)}\x92.",
    "INST": b"(S'true'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nX\x04\x00\x00\x00trueo.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "EXT1": b"\x80\x02\x82\x01.",
    "EXT2": b"\x80\x02\x83\x01\x00.",
    "EXT4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "PERSID": b"Pmodule\n.",
    "BINPERSID": b"\x80\x02X\x01\x00\x00\x00aQ.",
    "NEXT_BUFFER": b"\x80\x05\x97.",
    "READONLY_BUFFER": b"\x80\x05C\x01a\x98.",
    "unknown": b"\x80\x02\xff.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_everything_but_plain_data_is_refused(name: str) -> None:
    with pytest.raises(TraceFormatError, match=r"asks for .*refused, nothing was run"):
        load_plain(HOSTILE[name])


def lists_in_lists(depth: int) -> bytes:
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


def test_depth_is_bounded() -> None:
    assert load_plain(lists_in_lists(MOST_DEPTH)) is not None
    for depth in (MOST_DEPTH + 2, 100_000):
        with pytest.raises(TraceFormatError, match="nests too deep"):
            load_plain(lists_in_lists(depth))


def test_a_small_file_that_unfolds_to_billions_is_refused() -> None:
    value: list[Any] = ["lol"] * 10
    for _ in range(12):
        value = [value] * 10
    data = pickle.dumps(value, 2)
    assert len(data) < 1000
    began = time.perf_counter()
    with pytest.raises(TraceFormatError, match="unfolds to far more"):
        load_plain(data)
    assert time.perf_counter() - began < 10  # a hang, not a speed


def test_data_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(TraceFormatError, match="nests too deep"):
        load_plain(pickle.dumps(value, 2))


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r\xff\xff\xff\xff.",  # a name that would take 32 GB to keep
        b"]p99999999999999999999\n.",
        b"\x80\x02X\xff\xff\xff\xffabc.",  # a text of 4 GB
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",  # a number of 2 GB
        b"I" + b"9" * 100_000 + b"\n.",  # a number that takes long to read
        b"\x80\x02h\x05.",
        b"\x80\x02e.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02K\x01K\x02a.",
        b"\x80\x02(0.",
        b"\x80\x02.",
        b"",
    ],
)
def test_what_costs_more_than_it_holds_or_is_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(TraceFormatError):
        load_plain(data)


def test_cut_off_at_every_byte() -> None:
    data = pickle.dumps({"entries": [{"a": 1, "b": [2.5, "x", None]}] * 3}, 4)
    for end in range(len(data)):
        with pytest.raises(TraceFormatError):
            load_plain(data[:end])


@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_give_data_or_one_clear_error(data: bytes, headed: bool) -> None:
    with suppress(TraceFormatError):
        load_plain((b"\x80\x02" if headed else b"") + data + b".")


@given(st.integers(0, 400), st.integers(0, 255))
def test_one_changed_byte(at: int, value: int) -> None:
    entry = {"seq": 7, "sizes": [[8, 4]], "name": "nccl:all_reduce", "t": 2**60, "x": None}
    data = bytearray(pickle.dumps({"entries": [entry, entry | {"seq": 8}]}, 2))
    data[at % len(data)] = value
    with suppress(TraceFormatError):
        load_plain(bytes(data))


def test_floats_and_short_forms() -> None:
    data = b"\x80\x02(" + b"G" + struct.pack(">d", 2.5) + b"F1e3\nI01\nI00\nL12L\nU\x02hit."
    assert load_plain(data) == (2.5, 1000.0, True, False, 12, "hi")


@pytest.mark.parametrize("line", [b"--6", b"-", b"", b"1-2", b"6LL"])
def test_numbers_that_are_none(line: bytes) -> None:
    for code in (b"I", b"L", b"p"):
        with pytest.raises(TraceFormatError):
            load_plain(b"\x80\x02N" + code + line + b"\n.")
