"""The protobuf messages of Chakra execution traces (``.et``), described here at run time.

A file is a sequence of messages, each behind its length as a varint: one ``GlobalMetadata``,
then one ``Node`` per task.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

NODE_TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
    "STORAGE_NODE",
    "BATCH_NODE",
    "CHECKPOINT_NODE",
)
"""Node types by number."""

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",  # REDUCE_SCATTER_BLOCK
    "barrier",
)
"""Our kinds of collectives by the number of Chakra's."""

_PACKAGE = "foretrace_chakra"  # our own, so that no other definition in the process collides
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "double": _FIELD.TYPE_DOUBLE,
    "float": _FIELD.TYPE_FLOAT,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32,
    "uint64": _FIELD.TYPE_UINT64,
    "sint32": _FIELD.TYPE_SINT32,
    "sint64": _FIELD.TYPE_SINT64,
    "fixed32": _FIELD.TYPE_FIXED32,
    "fixed64": _FIELD.TYPE_FIXED64,
    "sfixed32": _FIELD.TYPE_SFIXED32,
    "sfixed64": _FIELD.TYPE_SFIXED64,
    "bool": _FIELD.TYPE_BOOL,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
}
_FIRST_VALUE = 3  # values of an attribute are fields 3 (double), 4 (list of them), 5 (float) ...
_MESSAGES: dict[str, tuple[tuple[str, str, int], ...]] = {
    "IOInfo": (("values", "string", 1), ("shapes", "string", 2), ("types", "string", 3)),
    "GlobalMetadata": (("version", "string", 1), ("attr", "*AttributeProto", 2)),
    "Node": (
        ("id", "uint64", 1),
        ("name", "string", 2),
        ("type", "int32", 3),  # an enum on the wire is an int32
        ("ctrl_deps", "*uint64", 4),
        ("data_deps", "*uint64", 5),
        ("start_time_micros", "uint64", 6),
        ("duration_micros", "uint64", 7),
        ("inputs", "IOInfo", 8),
        ("outputs", "IOInfo", 9),
        ("attr", "*AttributeProto", 10),
    ),
}


@cache
def messages() -> dict[str, Any]:
    """The message classes by name: AttributeProto, GlobalMetadata, Node, IOInfo."""
    file = descriptor_pb2.FileDescriptorProto(
        name="foretrace/chakra.proto", package=_PACKAGE, syntax="proto3"
    )
    attribute = file.message_type.add(name="AttributeProto")
    _add_field(attribute, "name", "string", 1)
    _add_field(attribute, "doc_string", "string", 2)
    attribute.oneof_decl.add(name="value")
    for place, kind in enumerate(_SCALARS):
        list_name = f"{kind.capitalize()}List"
        values = file.message_type.add(name=list_name)
        _add_field(values, "values", f"*{kind}", 1)
        number = _FIRST_VALUE + 2 * place
        for name, value, at in (
            (f"{kind}_val", kind, number),
            (f"{kind}_list", list_name, number + 1),
        ):
            _add_field(attribute, name, value, at).oneof_index = 0
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, kind, number in fields:
            _add_field(message, name, kind, number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("AttributeProto", *_MESSAGES)
    }


def _add_field(message: Any, name: str, kind: str, number: int) -> Any:
    """Add a field; ``*`` before its kind makes it repeated."""
    bare = kind.removeprefix("*")
    label = _FIELD.LABEL_REPEATED if bare != kind else _FIELD.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if bare in _SCALARS:
        field.type = _SCALARS[bare]
    else:
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{bare}"
    return field


def attribute_value(attribute: Any) -> Any:
    """The value of an attribute: a number, a text or a list; None if it has none."""
    kind = attribute.WhichOneof("value")
    if kind is None:
        return None
    value = getattr(attribute, kind)
    return list(value.values) if kind.endswith("_list") else value


def read_varint(text: bytes, at: int) -> tuple[int, int]:
    """(number that begins at ``at``, position after it); position -1 if it is cut or no varint."""
    value = shift = 0
    while at < len(text) and shift < 64:
        byte = text[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1


def varint(value: int) -> bytes:
    """A number as it stands before a message."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
