"""What the NCCL profiler plugins wrote, in the same words for both ways of writing.

One plugin writes an object per line with ``recordType`` and ``type``; it names the device, the
communicator and the parent of every event. The example plugin that comes with NCCL writes a
list of asynchronous Chrome trace events, ``b`` and ``e``; there the events of an operation stand
between its two, and only the operation names the communicator.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from foretrace.traces.importers.loose import any_whole, members, nanoseconds, text, whole
from foretrace.traces.salvage import Losses

# What an event is.
API, OPERATION, CHANNEL, LAUNCH, KERNEL, INIT, PROXY, OTHER = (
    *("api", "operation", "channel", "launch", "kernel", "init", "proxy", "other"),
)

_LINE_KINDS = {
    "ncclProfileCollApi": API,
    "ncclProfileP2pApi": API,
    "ncclProfileColl": OPERATION,
    "ncclProfileP2p": OPERATION,
    "ncclProfileKernelCh": CHANNEL,
    "ncclProfileKernelLaunch": LAUNCH,
    "ncclProfileProxyOp": PROXY,
    "ncclProfileProxyStep": PROXY,
    "ncclProfileNetPlugin": PROXY,
    "KERNEL": KERNEL,
    "ProfilerInit": INIT,
}
_CHROME_KINDS = {
    "COLL": OPERATION,
    "P2P": OPERATION,
    "COLL_API": API,
    "P2P_API": API,
    "GPU": CHANNEL,
    "KERNEL_LAUNCH": LAUNCH,
    "PROXY": PROXY,
    "NET": PROXY,
    "NET_IB": PROXY,
    "NET_SOCK": PROXY,
}
_CHROME_DETAILS = {
    "SeqNum": "seq",
    "Count": "count",
    "Datatype": "dtype",
    "datatype": "dtype",
    "Algorithm": "algo",
    "Protocol": "proto",
    "nChannels": "channels",
    "nMaxChannels": "channels",
    "Root": "root",
    "Peer": "peer",
    "Channel": "channel",
}


@dataclass(slots=True)
class Event:
    """One event of a plugin.

    Attributes:
        what: API, OPERATION, CHANNEL, ...
        name: function or event name.
        start_ns: begin on the plugin's clock, -1 where it was not written.
        stop_ns: end, -1 where it was not written.
        thread: host thread.
        process: id of the process.
        who: the device; None where the event does not tell.
        comm: communicator id, 0 unknown.
        rank: number within the communicator, -1 unknown.
        address: by which others name it as their parent.
        parent: of its parent.
        link: joins a launch to its kernel, -1 for none.
        details: everything else.
    """

    what: str
    name: str
    start_ns: int
    stop_ns: int
    thread: int = -1
    process: int = -1
    who: Hashable = None
    comm: int = 0
    rank: int = -1
    address: str = ""
    parent: str = ""
    link: int = -1
    details: dict[str, Any] = field(default_factory=dict)


def read_events(objects: Iterable[dict[str, Any]], losses: Losses) -> Iterator[Event]:
    """The events of either way of writing.

    Args:
        objects: of the file.
        losses: takes note of what is left out.
    """
    open_events: dict[tuple[str, str, str], Event] = {}
    operations: list[Event] = []
    for item in objects:
        if "ph" in item:
            yield from _chrome(item, open_events, operations, losses)
        elif item.get("recordType") == "state":
            losses.add("record of a state (left out)")
        elif "type" in item:
            yield _line(item)
        else:
            losses.add("record of another kind (left out)", 1, item)
    for event in open_events.values():
        losses.add("event whose end was never written (its duration is unknown)", 1, event.name)
        yield event


def _line(item: dict[str, Any]) -> Event:
    details = members(item.get("details"))
    name = text(item["type"])
    if name == "ProfilerLifecycle":
        name = text(item.get("func"))
    start, stop = members(item.get("start")), members(item.get("stop"))
    return Event(
        what=_LINE_KINDS.get(name, OTHER),
        name=text(item.get("name")) or text(details.get("func")) or name,
        start_ns=nanoseconds(start.get("ts")),
        stop_ns=nanoseconds(stop.get("ts")),
        thread=whole(start.get("tid"), -1),
        process=whole(start.get("pid"), -1),
        who=(whole(start.get("pid")), text(item["gpuUuid"])) if item.get("gpuUuid") else None,
        comm=_communicator(item.get("commId")),
        rank=whole(item.get("rank"), -1),
        address=text(item.get("eventAddr")),
        parent=text(item.get("parentObj")),
        link=whole(item.get("extCorrId")),
        details={**details, "deviceId": item.get("deviceId"), "cuptiStream": item.get("stream")},
    )


def _chrome(
    item: dict[str, Any],
    open_events: dict[tuple[str, str, str], Event],
    operations: list[Event],
    losses: Losses,
) -> Iterator[Event]:
    category = text(item.get("cat"))
    key = (category, text(item.get("name")), text(item.get("id")))
    if item["ph"] == "e":
        event = open_events.pop(key, None)
        if event is None:
            losses.add("end of an event that never began (left out)", 1, item)
            return
        event.stop_ns = nanoseconds(item.get("ts"))
        if event in operations:
            operations.remove(event)
        yield event
    elif item["ph"] == "b":
        if key in open_events:
            losses.add("event whose end was never written (its duration is unknown)", 1, key[1])
            yield open_events[key]
        event = _begin(item, category, operations)
        open_events[key] = event
        if event.what == OPERATION:
            operations.append(event)


def _begin(item: dict[str, Any], category: str, operations: list[Event]) -> Event:
    args = members(item.get("args"))
    what = _CHROME_KINDS.get(category, OTHER)
    if what == CHANNEL and item.get("name") != "KernelCh":
        what = OTHER
    event = Event(
        what=what,
        name=text(item.get("name")),
        start_ns=nanoseconds(item.get("ts")),
        stop_ns=-1,
        thread=whole(item.get("tid"), -1),
        process=whole(item.get("pid"), -1),
        comm=_communicator(args.get("CommHash")),
        rank=whole(args.get("Rank"), -1),
        details={_CHROME_DETAILS.get(k, k): v for k, v in args.items()},
    )
    if what == OPERATION:
        event.address = f"{category}-{item.get('id')}"
        event.who = (whole(item.get("pid")), event.rank)
    elif operations:  # it lies between the two ends of the operation
        around = operations[-1]
        event.parent, event.who = around.address, around.who
        event.comm, event.rank = around.comm, around.rank
    return event


def _communicator(value: Any) -> int:
    """Id of a communicator: 64 bits without a sign."""
    return (any_whole(value) or 0) & (1 << 64) - 1
