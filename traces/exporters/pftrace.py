"""Write a timeline as Perfetto's own protobuf trace (``.pftrace``).

The same arrays as for the JSON form go in; the file is about a fifth as long, times are whole
nanoseconds, and large traces open faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from foretrace.traces.exporters.perfetto import (
    Flows,
    Slices,
    Tracks,
    replacing,
    subtracks,
    thread_ids,
)
from foretrace.traces.protobuf import message_classes

I64 = NDArray[np.int64]

_BEGIN, _END = 1, 2
_CLEARED, _NEEDS = 1, 2  # state of the interned names: begins here, is needed
_EXPLICIT = 3  # order of rows: by their rank
_SEQUENCE = 1
_CHUNK = 20_000
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
    "Trace": (("packet", "*TracePacket", 1),),
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
    order = np.lexsort((-slices.dur_ns, slices.start_ns, slices.track))
    tid, rows = thread_ids(slices.track, subtracks(slices, order))
    with replacing(Path(path)) as out:
        for packets in (
            _descriptors(tracks, rows, metadata or {}),
            _names(slices),
            _events(slices, flows, order, tid + len(tracks.processes)),
        ):
            _write(out, packets)


def _write(out: BinaryIO, packets: Iterator[Any]) -> None:
    """Pieces of a trace may be written one behind the other: together they are the whole."""
    trace = _classes()["Trace"]()
    for packet in packets:
        trace.packet.append(packet)
        if len(trace.packet) >= _CHUNK:
            out.write(trace.SerializeToString())
            trace = _classes()["Trace"]()
    out.write(trace.SerializeToString())


def _descriptors(
    tracks: Tracks, rows: list[tuple[int, int]], metadata: Mapping[str, Any]
) -> Iterator[Any]:
    """One track for each process and, below it, one for each row."""
    packet = _classes()["TracePacket"]
    for number, name in enumerate(tracks.processes):
        made = packet(trusted_packet_sequence_id=_SEQUENCE)
        about = made.track_descriptor
        about.uuid, about.child_ordering, about.sibling_order_rank = number + 1, _EXPLICIT, number
        about.process.pid, about.process.process_name = number + 1, name
        if not number and metadata:
            about.description = ", ".join(f"{k}: {v}" for k, v in metadata.items())
        yield made
    for place, (track, sub) in enumerate(rows, start=1):
        made = packet(trusted_packet_sequence_id=_SEQUENCE)
        about = made.track_descriptor
        about.uuid = len(tracks.processes) + place
        about.parent_uuid = int(tracks.process[track]) + 1
        about.name = tracks.name[track] + (f" (overlap {sub})" if sub else "")
        about.sibling_order_rank = place
        yield made


def _names(slices: Slices) -> Iterator[Any]:
    """Names once for all; number 0 means none, so that they count from 1."""
    packet = _classes()["TracePacket"](
        trusted_packet_sequence_id=_SEQUENCE, sequence_flags=_CLEARED | _NEEDS
    )
    data = packet.interned_data
    for field, names in (
        (data.event_names, slices.names),
        (data.event_categories, slices.categories),
        (data.debug_annotation_names, list(slices.args)),
    ):
        for number, name in enumerate(names, start=1):
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


def _events(slices: Slices, flows: Sequence[Flows], order: I64, row: I64) -> Iterator[Any]:
    bar, ends = ordered_ends(slices, order, row)
    leaving, arriving = _flow_ids(slices, flows)
    packet = _classes()["TracePacket"]
    args = [(i, np.asarray(values)) for i, values in enumerate(slices.args.values(), start=1)]
    for low in range(0, len(bar), _CHUNK):
        part = bar[low : low + _CHUNK]
        time = slices.start_ns[part] + np.where(ends[low : low + _CHUNK], slices.dur_ns[part], 0)
        shown = [(i, values[part].tolist()) for i, values in args]
        columns = (part, ends[low : low + _CHUNK], time, row[part], slices.name[part] + 1)
        category = (slices.category[part] + 1).tolist()
        for at, (b, is_end, ns, uuid, name) in enumerate(
            zip(*(c.tolist() for c in columns), strict=True)
        ):
            made = packet(
                timestamp=max(ns, 0), trusted_packet_sequence_id=_SEQUENCE, sequence_flags=_NEEDS
            )
            event = made.track_event
            event.track_uuid = uuid
            event.type = _END if is_end else _BEGIN
            if not is_end:
                event.name_iid = name
                event.category_iids.append(category[at])
                event.flow_ids.extend(leaving.get(b, ()))
                event.terminating_flow_ids.extend(arriving.get(b, ()))
                _add_args(event, shown, at)
            yield made


def _add_args(event: Any, shown: list[tuple[int, list[Any]]], at: int) -> None:
    for number, values in shown:
        value = values[at]
        if value in (-1, ""):
            continue
        if isinstance(value, str):
            event.debug_annotations.add(name_iid=number, string_value=value)
        elif isinstance(value, float):
            event.debug_annotations.add(name_iid=number, double_value=value)
        else:
            event.debug_annotations.add(name_iid=number, int_value=int(value))


def _flow_ids(
    slices: Slices, flows: Sequence[Flows]
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Numbers of the arrows that leave and reach each bar; those back in time are left out."""
    leaving: dict[int, list[int]] = {}
    arriving: dict[int, list[int]] = {}
    number = 1
    for flow in flows:
        onward = slices.start_ns[flow.target] >= slices.start_ns[flow.source]
        source, target = flow.source[onward].tolist(), flow.target[onward].tolist()
        for a, b in zip(source, target, strict=True):
            leaving.setdefault(a, []).append(number)
            arriving.setdefault(b, []).append(number)
            number += 1
    return leaving, arriving
