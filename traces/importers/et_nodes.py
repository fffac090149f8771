"""The nodes of a PyTorch execution trace, of every schema, one record each.

Schema 1.0.1 writes everything flat; from 1.0.2 on tensors stand in ``inputs`` and ``outputs``
and the rest in a list of attributes. Nodes are cut out of the text one by one, so that one
damaged node costs no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers import json_text
from foretrace.traces.importers.loose import whole
from foretrace.traces.salvage import Losses, repair

_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_NODE_START = re.compile(  # an attribute has a name too, but no id
    rb'\{\s*"(?:id"\s*:\s*\d|name"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*"id"\s*:)'
)
_SPACE = re.compile(rb"[ \t\r\n,]*")
_HEAD_KEYS = ("schema", "pid", "time", "start_ts", "finish_ts")


class Attribute(msgspec.Struct):
    """One named attribute of a node."""

    name: str
    value: Any = None


class Node(msgspec.Struct):
    """One node of an execution trace; the fields of all schemas."""

    id: int
    name: str = ""
    ctrl_deps: int = -1
    parent: int = -1
    inputs: Any = None
    outputs: Any = None
    attrs: list[Attribute] = []
    input_shapes: msgspec.Raw = msgspec.Raw(b"[]")
    input_types: msgspec.Raw = msgspec.Raw(b"[]")
    rf_id: int = 0
    fw_parent: int = 0
    seq_id: int = -1
    scope: int = 0
    tid: int = 0
    fw_tid: int = 0
    op_schema: str = ""


@dataclass(slots=True)
class Call:
    """One node in the same words for all schemas.

    Attributes:
        id: number within the file; nodes that began later have higher ones.
        name: operator or annotation.
        parent: node that called it, -1 for none.
        values: inputs.
        outputs: outputs.
        shapes: JSON text of the inputs' shapes.
        types: JSON text of the inputs' types.
        attrs: everything else by name.
    """

    id: int
    name: str
    parent: int
    values: list[Any]
    outputs: list[Any]
    shapes: str
    types: str
    attrs: dict[str, Any] = field(default_factory=dict)

    def integer(self, name: str, absent: int = -1) -> int:
        """An attribute as a whole number; ``absent`` where it is none or does not fit."""
        value = self.attrs.get(name)
        if isinstance(value, str) and value.removeprefix("-").isdecimal():
            return whole(value.lstrip("0") or "0", absent)
        return whole(value, absent) if type(value) is int else absent


_FLAT = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema")
_decoder = msgspec.json.Decoder(Node)


def head_of(text: bytes) -> dict[str, Any]:
    """The members before and after the nodes, as far as they can be read."""
    head: dict[str, Any] = {}
    for key in _HEAD_KEYS:
        match = re.search(rb'"%s"\s*:\s*("[^"]*"|-?\d+)' % key.encode(), text[:4096])
        match = match or re.search(rb'"%s"\s*:\s*("[^"]*"|-?\d+)' % key.encode(), text[-4096:])
        if match:
            head[key] = msgspec.json.decode(repair(match.group(1)))
    return head


def read_calls(text: bytes, losses: Losses) -> Iterator[Call]:
    """The nodes of an execution trace, in the order of the file.

    Args:
        text: the whole file.
        losses: takes note of nodes that are damaged.

    Raises:
        TraceFormatError: there is no list of nodes.
    """
    match = _NODES.search(text)
    if match is None:
        raise TraceFormatError("it has no list of nodes")
    view = json_text.as_array(text)
    end = len(text)
    p = match.end()
    while True:
        p = _SPACE.match(text, p).end()  # type: ignore[union-attr]
        if p >= end:
            losses.add("end of the file is missing (whole nodes kept)")
            return
        if text[p] == ord("]"):
            return
        stop = int(json_text.skip_value(view, p, end)) if text[p] == ord("{") else -1
        call = _decode(text[p:stop]) if stop > p else None
        if call is not None:
            yield call
            p = stop
            continue
        following = _NODE_START.search(text, max(stop, p + 1))
        losses.add("damaged node", 1, text[p : p + 400])
        if following is None:
            return
        p = following.start()


def _decode(text: bytes) -> Call | None:
    for candidate in (text, None):
        try:
            return _call(_decoder.decode(repair(text) if candidate is None else candidate))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return None


def _call(node: Node) -> Call:
    if isinstance(node.inputs, dict):
        outputs = node.outputs if isinstance(node.outputs, dict) else {}
        return Call(
            id=node.id,
            name=node.name,
            parent=node.ctrl_deps,
            values=_list(node.inputs.get("values")),
            outputs=_list(outputs.get("values")),
            shapes=_text(node.inputs.get("shapes")),
            types=_text(node.inputs.get("types")),
            attrs={a.name: a.value for a in node.attrs},
        )
    return Call(
        id=node.id,
        name=node.name,
        parent=node.parent if node.parent >= 0 else node.ctrl_deps,
        values=_list(node.inputs),
        outputs=_list(node.outputs),
        shapes=bytes(node.input_shapes).decode(),
        types=bytes(node.input_types).decode(),
        attrs={name: getattr(node, name) for name in _FLAT},
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode() if value else "[]"
