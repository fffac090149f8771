"""The nodes of a Chakra graph, from its protobuf file or from the JSON that its feeder reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from foretrace.traces.chakra_messages import attribute_value, messages, read_varint
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers.loose import whole
from foretrace.traces.salvage import Losses

_JSON_ATTRIBUTES = (
    *("is_cpu_op", "num_ops", "tensor_size", "comm_type", "comm_priority", "comm_size"),
    *("comm_src", "comm_dst", "comm_tag", "pg_name", "stream", "tid"),
)


@dataclass(slots=True)
class GraphNode:
    """One node of a Chakra graph.

    Attributes:
        id: number within the file.
        name: of the task.
        type: index into ``chakra_messages.NODE_TYPES``.
        start_us: start, 0 where the file has no times.
        dur_us: duration.
        data: nodes whose data it needs.
        ctrl: nodes that come first for other reasons.
        values: inputs, as recorded.
        shapes: of the inputs, as recorded.
        types: of the inputs, as recorded.
        attrs: everything else by name.
    """

    id: int
    name: str = ""
    type: int = 0
    start_us: int = 0
    dur_us: int = 0
    data: list[int] = field(default_factory=list)
    ctrl: list[int] = field(default_factory=list)
    values: str = ""
    shapes: str = ""
    types: str = ""
    attrs: dict[str, Any] = field(default_factory=dict)

    def integer(self, name: str, absent: int = -1) -> int:
        """An attribute as a whole number; ``absent`` where it is none or does not fit."""
        value = self.attrs.get(name)
        return whole(value, absent) if isinstance(value, int | float) else absent


def is_protobuf(head: bytes) -> bool:
    """Whether a file begins with a Chakra graph's metadata and then a node."""
    size, at = read_varint(head, 0)
    if at < 0 or at + size + 2 > len(head) or not size:
        return False
    metadata = messages()["GlobalMetadata"]()
    try:
        metadata.ParseFromString(head[at : at + size])
    except DecodeError:
        return False
    known = bool(metadata.version) or any(a.name for a in metadata.attr)
    node_size, node = read_varint(head, at + size)
    return known and node_size > 0 and 0 <= node < len(head) and head[node] in (0x08, 0x12)


def read_protobuf(text: bytes, losses: Losses) -> tuple[dict[str, Any], Iterator[GraphNode]]:
    """Metadata by name, and the nodes in the order of the file.

    Args:
        text: the whole file.
        losses: takes note of what is damaged.

    Raises:
        TraceFormatError: the metadata cannot be read.
    """
    size, at = read_varint(text, 0)
    metadata = messages()["GlobalMetadata"]()
    try:
        if at < 0 or at + size > len(text):
            raise DecodeError
        metadata.ParseFromString(text[at : at + size])
    except DecodeError:
        raise TraceFormatError("its metadata cannot be read") from None
    known = {a.name: attribute_value(a) for a in metadata.attr}
    if metadata.version:
        known["version"] = metadata.version
    return known, _nodes(text, at + size, losses)


def _nodes(text: bytes, at: int, losses: Losses) -> Iterator[GraphNode]:
    node_type = messages()["Node"]
    while at < len(text):
        size, begin = read_varint(text, at)
        if begin < 0 or begin + size > len(text):
            losses.add("node cut off by the end of the file, or its length damaged")
            return
        at = begin + size
        message = node_type()
        try:
            message.ParseFromString(text[begin:at])
        except DecodeError:
            losses.add("damaged node")
            continue
        yield _from_message(message)


def _from_message(message: Any) -> GraphNode:
    inputs = message.inputs
    return GraphNode(
        id=message.id,
        name=message.name,
        type=message.type,
        start_us=message.start_time_micros,
        dur_us=message.duration_micros,
        data=list(message.data_deps),
        ctrl=list(message.ctrl_deps),
        values=inputs.values,
        shapes=inputs.shapes,
        types=inputs.types,
        attrs={a.name: attribute_value(a) for a in message.attr},
    )


class _JsonNode(msgspec.Struct):
    id: int = msgspec.field(name="Id")
    name: str = msgspec.field(default="", name="Name")
    type: int = msgspec.field(default=0, name="NodeType")
    ctrl_camel: list[int] = msgspec.field(default_factory=list, name="ctrlDeps")
    ctrl: list[int] = msgspec.field(default_factory=list, name="ctrl_deps")
    data: list[int] = msgspec.field(default_factory=list, name="data_deps")
    runtime: int | float = 0


class _JsonGraph(msgspec.Struct):
    workload_graph: list[dict[str, Any]]
    workload_name: str = ""
    ngpus: int = 0


def read_json(text: bytes, losses: Losses) -> tuple[dict[str, Any], Iterator[GraphNode]]:
    """Like :func:`read_protobuf`, from the feeder's JSON.

    Raises:
        TraceFormatError: it is no JSON, or has no graph.
    """
    try:
        graph = msgspec.json.decode(text, type=_JsonGraph)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFormatError(f"damaged JSON ({error})") from None
    known: dict[str, Any] = {"workload_name": graph.workload_name, "ngpus": graph.ngpus}
    return {k: v for k, v in known.items() if v}, _json_nodes(graph.workload_graph, losses)


def _json_nodes(nodes: list[dict[str, Any]], losses: Losses) -> Iterator[GraphNode]:
    for raw in nodes:
        try:
            node = msgspec.convert(raw, _JsonNode)
        except msgspec.ValidationError:
            losses.add("damaged node", 1, raw)
            continue
        yield GraphNode(
            id=node.id,
            name=node.name,
            type=node.type,
            dur_us=int(node.runtime),
            data=node.data,
            ctrl=node.ctrl or node.ctrl_camel,
            attrs={k: raw[k] for k in _JSON_ATTRIBUTES if k in raw},
        )
