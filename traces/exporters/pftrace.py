"""Write a timeline as Perfetto's own protobuf trace (``.pftrace``).

The same arrays as for the JSON form go in; the file is about a third as long, times are whole
nanoseconds, and large traces open faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from foretrace.traces.chakra_messages import varint
from foretrace.traces.exporters.perfetto import replacing
from foretrace.traces.exporters.rows import Flows, Slices, Timeline, Tracks, placed
from foretrace.traces.protobuf import message_classes

I64 = NDArray[np.int64]

_BEGIN, _END = 1, 2
_CLEARED, _NEEDS = 1, 2  # state of the interned names: begins here, is needed
_EXPLICIT = 3  # order of rows: by their rank
_SEQUENCE = 1
_CHUNK = 20_000
_MASK = (1 << 64) - 1  # negative numbers are written as large ones
_MESSAGES = {
    "Name": (("iid", "uint64", 1), ("name", "string", 2)),
    "InternedData": (
        ("event_categories", "*Name", 1),
        ("event_names", "*Name", 2),
        ("debug_annotation_names", "*Name", 3),
    ),
    "DebugAnnotation": (
        ("name_iid", "uint64", 1),
        ("int_value", "int64", 4),
        ("double_value", "double", 5),
        ("string_value", "string", 6),
        ("name", "string", 10),
    ),
    "TrackEvent": (
        ("category_iids", "*uint64", 3),
        ("debug_annotations", "*DebugAnnotation", 4),
        ("type", "int32", 9),  # an enum on the wire is an int32
        ("name_iid", "uint64", 10),
        ("track_uuid", "uint64", 11),
        ("flow_ids", "*fixed64", 47),
        ("terminating_flow_ids", "*fixed64", 48),
    ),
    "ProcessDescriptor": (("pid", "int32", 1), ("process_name", "string", 6)),
    "TrackDescriptor": (
        ("uuid", "uint64", 1),
        ("name", "string", 2),
        ("process", "ProcessDescriptor", 3),
        ("parent_uuid", "uint64", 5),
        ("child_ordering", "int32", 11),
        ("sibling_order_rank", "int32", 12),
        ("description", "string", 14),
    ),
    "TracePacket": (
        ("timestamp", "uint64", 8),
        ("trusted_packet_sequence_id", "uint32", 10),
        ("track_event", "TrackEvent", 11),
        ("interned_data", "InternedData", 12),
        ("sequence_flags", "uint32", 13),
        ("track_descriptor", "TrackDescriptor", 60),
    ),
}


@cache
def _classes() -> dict[str, Any]:
    return message_classes("foretrace_perfetto", _MESSAGES)


def write_pftrace(
    path: str | Path,
    tracks: Tracks,
    slices: Slices,
    flows: Sequence[Flows] = (),
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a timeline for the Perfetto UI and Perfetto's trace processor.

    Times stay as they are. Bars of one track that overlap without nesting are spread over
    sub-tracks, because Perfetto drops such bars.

    Args:
        path: ``.pftrace``, or ``.gz`` to compress. Replaced only when all is written.
        tracks: the rows.
        slices: the bars.
        flows: the arrows; each leads from the start of one bar to the start of another.
        metadata: shown as the description of the first group of rows.

    Raises:
        OSError: the file cannot be written.
    """
    write_timelines(path, [Timeline(tracks, slices, flows)], metadata)


def write_timelines(
    path: str | Path, timelines: Iterable[Timeline], metadata: Mapping[str, Any] | None = None
) -> None:
    """Write timelines one below the other, as :func:`write_pftrace` writes one.

    Args:
        path: as there.
        timelines: gone through twice, one at a time.
        metadata: as there.

    Raises:
        OSError: the file cannot be written.
    """
    words = _Words()
    processes: list[str] = []
    rows: list[tuple[int, str]] = []
    for part in placed(timelines):
        words.learn(part.timeline.slices)
        processes += part.timeline.tracks.processes
        rows += zip(part.process_of_row, part.names, strict=True)
    with replacing(Path(path)) as out:
        for packets in (_descriptors(processes, rows, metadata or {}), words.packets()):
            _write(out, (packet.SerializeToString() for packet in packets))
        number = 1
        for part in placed(timelines):
            slices = words.spelled(part.timeline.slices)
            uuid = part.row + 1 + len(processes)
            ids = _flow_ids(slices, part.timeline.flows, number)
            number += sum(len(ids_of) for ids_of in ids[0].values())
            args = [(words.args[name], np.asarray(v)) for name, v in slices.args.items()]
            _write(out, _events(slices, ids, args, part.order, uuid))


def _write(out: BinaryIO, packets: Iterator[bytes]) -> None:
    """Pieces of a trace may be written one behind the other: together they are the whole."""
    parts: list[bytes] = []
    for packet in packets:
        parts += (b"\x0a", varint(len(packet)), packet)
        if len(parts) >= 3 * _CHUNK:
            out.write(b"".join(parts))
            parts.clear()
    out.write(b"".join(parts))


def _descriptors(
    processes: Sequence[str], rows: Sequence[tuple[int, str]], metadata: Mapping[str, Any]
) -> Iterator[Any]:
    """One track for each process and, below it, one for each row: (process, name)."""
    packet = _classes()["TracePacket"]
    for number, name in enumerate(processes):
        made = packet(trusted_packet_sequence_id=_SEQUENCE)
        about = made.track_descriptor
        about.uuid, about.child_ordering, about.sibling_order_rank = number + 1, _EXPLICIT, number
        about.process.pid, about.process.process_name = number + 1, name
        if not number and metadata:
            about.description = ", ".join(f"{k}: {v}" for k, v in metadata.items())
        yield made
    for place, (process, name) in enumerate(rows, start=1):
        made = packet(trusted_packet_sequence_id=_SEQUENCE)
        about = made.track_descriptor
        about.uuid = len(processes) + place
        about.parent_uuid = process + 1
        about.name = name
        about.sibling_order_rank = place
        yield made


class _Words:
    """Names once for all timelines; number 0 means none, so that they count from 1.

    Attributes:
        args: number of each argument.
    """

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self.args: dict[str, int] = {}

    def learn(self, slices: Slices) -> None:
        """Take in the names of a timeline."""
        pairs = ((self._names, slices.names), (self._categories, slices.categories))
        for known, names in (*pairs, (self.args, slices.args)):
            for name in names:
                known.setdefault(name, len(known) + 1)

    def spelled(self, slices: Slices) -> Slices:
        """The same bars, with the numbers that their names and categories have here."""
        names, categories = (
            np.array([known[n] for n in own], np.int32)[codes]
            for known, own, codes in (
                (self._names, slices.names, slices.name),
                (self._categories, slices.categories, slices.category),
            )
        )
        return replace(slices, name=names, category=categories)

    def packets(self) -> Iterator[Any]:
        """The names and their numbers."""
        packet = _classes()["TracePacket"](
            trusted_packet_sequence_id=_SEQUENCE, sequence_flags=_CLEARED | _NEEDS
        )
        data = packet.interned_data
        for field, known in (
            (data.event_names, self._names),
            (data.event_categories, self._categories),
            (data.debug_annotation_names, self.args),
        ):
            for name, number in known.items():
                field.add(iid=number, name=name.encode("utf-8", "replace").decode())
        yield packet


def ordered_ends(slices: Slices, order: I64, row: I64) -> tuple[I64, NDArray[np.bool_]]:
    """Beginnings and ends of all bars so that those of each row are properly nested.

    Args:
        slices: the bars.
        order: bars by track, start and falling duration.
        row: row of each bar; the bars of a row nest.

    Returns:
        The bar of each, and whether it ends there, by time; shape ``(2 * slices,)``.
    """
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    bar = np.concatenate([order, order])
    ends = np.repeat([False, True], len(order))
    time = np.where(ends, slices.start_ns[bar] + slices.dur_ns[bar], slices.start_ns[bar])
    empty = slices.dur_ns[bar] == 0
    # at one time: first what ends, inner bars before outer ones; then what begins; then
    # the bars without length, each of which begins and ends at once
    phase = np.where(empty, 2, np.where(ends, 0, 1))
    turn = np.where(empty, 2 * place[bar] + ends, np.where(ends, -place[bar], place[bar]))
    sorted_ = np.lexsort((turn, phase, row[bar], time))
    return bar[sorted_], ends[sorted_]


def _events(
    slices: Slices,
    flow_ids: tuple[dict[int, list[int]], dict[int, list[int]]],
    args: list[tuple[int, NDArray[Any]]],
    order: I64,
    row: I64,
) -> Iterator[bytes]:
    """Packets of all beginnings and ends; what is the same in many of them is encoded once."""
    bar, ends = ordered_ends(slices, order, row)
    pieces = _Pieces(*flow_ids)
    for low in range(0, len(bar), _CHUNK):
        part, ending = bar[low : low + _CHUNK], ends[low : low + _CHUNK]
        time = slices.start_ns[part] + np.where(ending, slices.dur_ns[part], 0)
        shown = [(number, values[part].tolist()) for number, values in args]
        columns = (ending, time, row[part], slices.name[part], slices.category[part], part)
        for at, (is_end, ns, uuid, name, category, b) in enumerate(
            zip(*(c.tolist() for c in columns), strict=True)
        ):
            if is_end:
                event = pieces.end(uuid)
            else:
                values = [(number, column[at]) for number, column in shown]
                event = pieces.begin(uuid, name, category) + pieces.more(b, values)
            # fields may come in any order: event, what all packets share, time
            yield (
                b"\x5a" + varint(len(event)) + event + pieces.shared + b"\x40" + varint(max(ns, 0))
            )


class _Pieces:
    """Encoded parts of packets.

    Args:
        leaving: numbers of the arrows that leave each bar.
        arriving: numbers of the arrows that reach each bar.
    """

    def __init__(self, leaving: dict[int, list[int]], arriving: dict[int, list[int]]) -> None:
        self._leaving, self._arriving = leaving, arriving
        self._known: dict[Any, bytes] = {}
        packet = _classes()["TracePacket"]
        self.shared = packet(
            trusted_packet_sequence_id=_SEQUENCE, sequence_flags=_NEEDS
        ).SerializeToString()

    def end(self, row: int) -> bytes:
        """The event that ends the innermost bar of a row."""
        return self._event(row, type=_END, track_uuid=row)

    def begin(self, row: int, name: int, category: int) -> bytes:
        """The event that begins a bar."""
        key = (row, name, category)
        return self._event(
            key, type=_BEGIN, track_uuid=row, name_iid=name, category_iids=[category]
        )

    def more(self, bar: int, values: list[tuple[int, Any]]) -> bytes:
        """Arguments and arrows of one bar, to be put behind its beginning."""
        found = [self._argument(v) for v in values if v[1] not in (-1, "")]
        if bar in self._leaving or bar in self._arriving:
            event = _classes()["TrackEvent"](
                flow_ids=self._leaving.get(bar, ()),
                terminating_flow_ids=self._arriving.get(bar, ()),
            )
            found.append(event.SerializeToString())
        return b"".join(found)

    def _event(self, key: Any, **values: Any) -> bytes:
        if key not in self._known:
            self._known[key] = _classes()["TrackEvent"](**values).SerializeToString()
        return self._known[key]

    def _argument(self, value: tuple[int, Any]) -> bytes:
        number, held = value
        if not isinstance(held, str | float):  # most are numbers that occur once or twice
            body = b"\x08" + varint(number) + b"\x20" + varint(int(held) & _MASK)
            return b"\x22" + varint(len(body)) + body
        kind = "string_value" if isinstance(held, str) else "double_value"
        key = (number, kind, held)
        if key not in self._known:
            event = _classes()["TrackEvent"]()
            event.debug_annotations.add(name_iid=number, **{kind: held})
            self._known[key] = event.SerializeToString()
        return self._known[key]


def _flow_ids(
    slices: Slices, flows: Sequence[Flows], number: int
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Numbers of the arrows that leave and reach each bar; those back in time are left out.

    The first one gets ``number``.
    """
    leaving: dict[int, list[int]] = {}
    arriving: dict[int, list[int]] = {}
    for flow in flows:
        onward = slices.start_ns[flow.target] >= slices.start_ns[flow.source]
        source, target = flow.source[onward].tolist(), flow.target[onward].tolist()
        for a, b in zip(source, target, strict=True):
            leaving.setdefault(a, []).append(number)
            arriving.setdefault(b, []).append(number)
            number += 1
    return leaving, arriving
