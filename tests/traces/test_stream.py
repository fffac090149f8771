"""Whole events out of text that is cut into pieces, cut off, or damaged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.traces.kineto import document, kernel, lasting, launch, losses, read, rows

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers import kineto

SMALL = document(
    [
        lasting("cpu_op", 'a "quoted" {name} \\ [x]', 10.5, 2, args={"External id": 4}),
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 1, "tid": 1, "ts": 10},
        launch(11, 9),
        kernel("gemm", 12.25, 3, 9, grid=[1, 2, 3]),
        lasting("cpu_op", "aten::µ", 20, 1, args={}),
    ]
)
EXPECTED = [
    ('a "quoted" {name} \\ [x]', 10500, 2000),
    ("cudaLaunchKernel", 11000, 1000),
    ("gemm", 12250, 3000),
    ("aten::µ", 20000, 1000),
]
LAYOUTS = {
    "compact": json.dumps(SMALL, separators=(",", ":"), ensure_ascii=False),
    "one line": json.dumps(SMALL),
    "pretty": json.dumps(SMALL, indent=2, ensure_ascii=False),
    "keys reversed": json.dumps(
        {k: SMALL[k] for k in reversed(SMALL)}
        | {"traceEvents": [{k: e[k] for k in reversed(e)} for e in SMALL["traceEvents"]]}
    ),
    "bare array": json.dumps(SMALL["traceEvents"]),
    "with a byte order mark": "\ufeff" + json.dumps(SMALL),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
def test_layout_and_pieces_do_not_matter(layout: str, chunk: int) -> None:
    tables = read(LAYOUTS[layout], chunk)
    assert rows(tables, "name", "start_ns", "dur_ns") == EXPECTED
    assert losses(tables) == {}
    assert tables.info.rank == (-1 if layout == "bare array" else 0)


@pytest.mark.parametrize("layout", ["compact", "pretty"])
def test_every_truncation_keeps_every_whole_event(layout: str) -> None:
    text = LAYOUTS[layout].encode()
    first = text.index(b"[", text.index(b"traceEvents")) + 1
    ends = []
    decoder = json.JSONDecoder()
    string = text.decode()
    position = string.index("[", string.index("traceEvents")) + 1
    for _ in SMALL["traceEvents"]:
        position = string.index("{", position)
        _, position = decoder.raw_decode(string, position)
        ends.append(len(string[:position].encode()))
    lasts = [e for e, event in zip(ends, SMALL["traceEvents"], strict=True) if event["ph"] == "X"]
    for cut in range(len(text)):
        whole = sum(end <= cut for end in lasts)
        if whole == 0:
            with pytest.raises(TraceFormatError):
                read(text[:cut])
            continue
        tables = read(text[:cut])
        assert rows(tables, "name", "start_ns", "dur_ns") == EXPECTED[:whole], cut
        assert tables.info.rank == 0
        closed = cut > text.rindex(b"]")
        assert ("end of the file is missing (whole events kept)" in losses(tables)) != closed
    assert first < ends[0]


@given(st.data())
def test_a_changed_byte_never_breaks_the_reader(data: st.DataObject) -> None:
    text = bytearray(LAYOUTS[data.draw(st.sampled_from(["compact", "pretty"]))].encode())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        tables = read(bytes(text), data.draw(st.sampled_from([16, 1 << 20])))
    except TraceFormatError:
        return
    assert len(tables.events) <= len(EXPECTED) + 2
    assert min(tables.events["dur_ns"].to_pylist()) >= 0


def damaged(old: str, new: str | bytes) -> bytes:
    text = json.dumps(SMALL, indent=1, ensure_ascii=False).encode()
    assert old.encode() in text
    return text.replace(old.encode(), new.encode() if isinstance(new, str) else new, 1)


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("aten::µ", b"aten::\xff", "aten::\N{REPLACEMENT CHARACTER}"),
        ("aten::µ", "aten::\\ud800", "aten::\N{REPLACEMENT CHARACTER}"),
        ("aten::µ", "C:\\work\\train", "C:\\work\train"),
        ("aten::µ", b"aten::\x01", "aten:: "),
        ("aten::µ", "aten\nrelu", "aten relu"),
    ],
)
def test_bad_texts_are_mended(old: str, new: str | bytes, name: str) -> None:
    tables = read(damaged(old, new))
    assert [n for (n,) in rows(tables, "name")] == [n for n, _, _ in EXPECTED[:3]] + [name]


def test_values_that_are_no_json_do_no_harm() -> None:
    for value in ("inf", "-Infinity", "NaN", "nan"):
        text = damaged('"External id": 4', f'"memory bandwidth (GB/s)": {value}, "External id": 4')
        assert rows(read(text), "name", "start_ns", "dur_ns") == EXPECTED


def test_duplicate_keys_take_the_last() -> None:
    text = damaged('"External id": 4', '"External id": 3, "External id": 4')
    assert rows(read(text), "external_id")[0] == (4,)


@pytest.mark.parametrize("chunk", [32, 1 << 20])
def test_unescaped_quotes_are_mended_and_said(chunk: int) -> None:
    tables = read(damaged("gemm", 'ge"mm "x", 3'), chunk)
    expected = [('ge"mm "x", 3' if n == "gemm" else n, s, d) for n, s, d in EXPECTED]
    assert rows(tables, "name", "start_ns", "dur_ns") == expected
    assert losses(tables) == {"damaged event mended (kept)": 1}
    assert tables.info.dropped[0].example.startswith('{ "ph": "X"')


def test_a_log_line_between_events_costs_nothing() -> None:
    text = json.dumps(SMALL, indent=1, ensure_ascii=False).encode()
    head, mark, rest = text.partition(b"traceEvents")
    text = head + mark + rest.replace(b"},\n", b"},\nINFO: profiler said so\n", 1)
    tables = read(text)
    assert rows(tables, "name", "start_ns", "dur_ns") == EXPECTED
    assert losses(tables) == {"damaged event": 1}


def test_damaged_metadata_still_tells_the_rank() -> None:
    text = json.dumps(document(SMALL["traceEvents"], rank=1, INFO="LOG"))
    tables = read(text.replace('"LOG"', '["said "so""]'))
    assert tables.info.rank == 1
    assert rows(tables, "name", "start_ns", "dur_ns") == EXPECTED
    assert "damaged metadata" in losses(tables)


def test_base_time_lost_with_the_end_is_said() -> None:
    text = json.dumps({"traceEvents": SMALL["traceEvents"], "baseTimeNanoseconds": 10**18})
    whole = read(text)
    assert rows(whole, "start_ns")[0] == (10**18 + 10_500,)
    cut = read(text[: text.rindex("]")])
    assert rows(cut, "start_ns")[0] == (10_500,)
    assert any("base time lost" in reason for reason in losses(cut))


@pytest.mark.parametrize("text", ["", " ", "{}", "[]", '{"a": [1]}', "hello", '{"traceEvents": 3}'])
def test_no_events_is_one_clear_error(text: str) -> None:
    with pytest.raises(TraceFormatError, match="it "):
        read(text)


def test_sniffing() -> None:
    for text in LAYOUTS.values():
        assert kineto.sniff(text.encode()[:64], "x")
    for other in (b"", b"\x89PNG\r\n", b"a,b\n1,2\n", b'{"schema": "1.0.2", "nodes": []}', b"[1]"):
        assert not kineto.sniff(other, "trace.json")


@pytest.mark.parametrize("place", [1, 4])
def test_a_damaged_arrow_takes_nothing_with_it(place: int) -> None:
    """Arrows are not kept, but what is wrong with one must not touch its neighbours."""
    arrow = {"ph": "s", "cat": "ac2g", "name": "ARROW", "id": 1, "pid": 1, "tid": 1, "ts": 10}
    events = [e for e in SMALL["traceEvents"] if e["ph"] == "X"]
    events.insert(place, arrow)
    text = json.dumps(SMALL | {"traceEvents": events}).replace("ARROW", "a\nc")
    tables = read(text, 1 << 20)
    assert rows(tables, "name", "start_ns", "dur_ns") == EXPECTED
    assert losses(tables) == {"control bytes in a text made blanks (kept)": 1}
