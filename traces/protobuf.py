"""Classes of protobuf messages that are described at run time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32,
    "uint64": _FIELD.TYPE_UINT64,
    "fixed64": _FIELD.TYPE_FIXED64,
    "double": _FIELD.TYPE_DOUBLE,
    "bool": _FIELD.TYPE_BOOL,
    "string": _FIELD.TYPE_STRING,
}

Fields = tuple[tuple[str, str, int], ...]
"""(name, kind, number) of each field; ``*`` before its kind makes a field repeated."""


def message_classes(package: str, messages: Mapping[str, Fields]) -> dict[str, Any]:
    """Message classes by name (proto2: a field that was not set is not written).

    Args:
        package: a name of our own, so that no other definition in the process collides.
        messages: fields by message; a kind is a scalar type or one of these messages.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto2"
    )
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for name, kind, number in fields:
            bare = kind.removeprefix("*")
            label = _FIELD.LABEL_REPEATED if bare != kind else _FIELD.LABEL_OPTIONAL
            field = message.field.add(name=name, number=number, label=label)
            if bare in _TYPES:
                field.type = _TYPES[bare]
            else:
                field.type = _FIELD.TYPE_MESSAGE
                field.type_name = f".{package}.{bare}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }
