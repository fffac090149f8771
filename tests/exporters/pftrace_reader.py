"""Reads Perfetto's protobuf traces byte by byte, by the wire format alone.

It knows field numbers from Perfetto's published schema and shares no code with the writer.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

Fields = dict[int, list[Any]]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Fields:
    """Values of a message by field number."""
    found: Fields = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        value: Any
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 1:
            value, at = struct.unpack("<Q", data[at : at + 8])[0], at + 8
        elif wire == 2:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
            assert len(value) == length
        else:
            raise AssertionError(f"wire type {wire}")
        found[number].append(value)
    return found


@dataclass
class Bar:
    """A slice as a trace processor makes it of its beginning and end."""

    track: int
    name: str
    category: str
    start: int
    end: int = -1
    depth: int = 0
    args: dict[str, Any] = field(default_factory=dict)
    leaving: list[int] = field(default_factory=list)
    arriving: list[int] = field(default_factory=list)


@dataclass
class Trace:
    """What a file holds."""

    tracks: dict[int, tuple[str, int]]
    processes: dict[int, str]
    bars: list[Bar]


def _names(data: Fields, number: int) -> dict[int, str]:
    parsed = (fields(entry) for entry in data[number])
    return {entry[1][0]: entry[2][0].decode() for entry in parsed}


def _arguments(event: Fields, names: dict[int, str]) -> dict[str, Any]:
    found = {}
    for raw in event[4]:
        value = fields(raw)
        found[names[value[1][0]]] = value[6][0].decode() if 6 in value else value[4][0]
    return found


def read_pftrace(data: bytes) -> Trace:
    """Read a trace the way the trace processor does: sorted by time, each track a stack."""
    trace = Trace({}, {}, [])
    event_names: dict[int, str] = {}
    categories: dict[int, str] = {}
    arg_names: dict[int, str] = {}
    events: list[tuple[int, Fields]] = []
    for raw in fields(data)[1]:
        packet = fields(raw)
        assert packet[10] == [1], "every packet names its sequence"
        if 60 in packet:
            about = fields(packet[60][0])
            (uuid,) = about[1]
            if 3 in about:
                trace.processes[uuid] = fields(about[3][0])[6][0].decode()
            else:
                trace.tracks[uuid] = (about[2][0].decode(), about[5][0])
        if 12 in packet:
            assert packet[13][0] & 1, "the first names clear what was before"
            interned = fields(packet[12][0])
            categories = _names(interned, 1)
            event_names = _names(interned, 2)
            arg_names = _names(interned, 3)
        if 11 in packet:
            assert packet[13][0] & 2, "events say that they need the names"
            events.append((packet[8][0], fields(packet[11][0])))
    open_bars: dict[int, list[Bar]] = defaultdict(list)
    for time, event in sorted(events, key=lambda pair: pair[0]):  # stable, as Perfetto sorts
        (track,) = event[11]
        stack = open_bars[track]
        if event[9] == [2]:
            stack.pop().end = time
            continue
        assert event[9] == [1]
        bar = Bar(
            track,
            event_names[event[10][0]],
            categories[event[3][0]],
            time,
            depth=len(stack),
            args=_arguments(event, arg_names),
            leaving=event[47],
            arriving=event[48],
        )
        trace.bars.append(bar)
        stack.append(bar)
    assert not any(open_bars.values()), "every bar ends"
    return trace
