"""Process groups and communication operations of an execution trace.

They stand in ``## process_group:init ##`` and ``record_param_comms`` nodes: as attributes in
newer files, in older ones only by their place among the inputs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from foretrace.traces.classify import collective_kind
from foretrace.traces.collectives.model import Metadata, Operation
from foretrace.traces.collectives.sizes import MOST_BYTES, fill_by_group_size
from foretrace.traces.dtypes import element_bytes, scalar_type
from foretrace.traces.groups import GroupTable, ranks_from, ranks_of
from foretrace.traces.importers.et_nodes import Call
from foretrace.traces.salvage import Losses

GROUPS_NAME = "## process_group:init ##"
CALL_NAME = "record_param_comms"

_ELEMENT_TYPE = re.compile(r"Tensor\(([^)]*)\)")
_ROOTED = ("broadcast", "reduce", "gather", "scatter", "send", "recv")
"""Kinds whose calls give the root or the peer where others give the rank itself."""
_NO_OPERATION = re.compile(r"wait|init|coalescing|start|end", re.IGNORECASE)


@dataclass(slots=True)
class GroupBook:
    """Groups as their creation tells them.

    Attributes:
        names: handle of a group (name or number) -> its entry.
        world_size: members of the largest group.
    """

    entries: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, dict[str, Any]] = field(default_factory=dict)
    world_size: int = 0

    def add(self, call: Call, losses: Losses) -> None:
        """Take in the groups that a creation node lists."""
        for value in call.values:
            try:
                entries = msgspec.json.decode(value) if isinstance(value, str) else []
            except (msgspec.DecodeError, RecursionError):
                losses.add("unreadable list of process groups", 1, value)
                continue
            for entry in entries if isinstance(entries, list) else []:
                if isinstance(entry, dict):
                    self._add(entry)

    def _add(self, entry: dict[str, Any]) -> None:
        size = entry.get("group_size", entry.get("pg_size"))
        ranks = ranks_of(entry.get("ranks"))
        size = size if isinstance(size, int) and size > 0 else len(ranks)
        name = str(entry.get("pg_name", ""))
        known = {
            "name": name,
            "description": str(entry.get("pg_desc", "")),
            "size": size,
            "ranks": ranks or ranks_from(0, size),  # none listed means all
            "backend": str(entry.get("backend_config", "")),
        }
        self.entries.append(known)
        self.names.setdefault(name, known)
        for handle in ("backend_id", "uid"):
            if handle in entry:
                self.names.setdefault(str(entry[handle]), known)
        self.world_size = max(self.world_size, size)

    def fill(self, table: GroupTable) -> None:
        """Put all groups into the rank's table."""
        for entry in self.entries:
            table.row(entry["name"], entry["ranks"], entry["size"], entry["description"])


@dataclass(slots=True)
class CommCall:
    """What a ``record_param_comms`` node says.

    Attributes:
        row: of the node.
        name: of the operation, as recorded.
        meta: what was recorded.
        bytes_in: bytes put in, from the tensors; -1 unknown.
        bytes_out: bytes got out, from the tensors; -1 unknown.
        own_rank: this rank's number within the group, -1 where the call does not tell it.
    """

    row: int
    name: str
    meta: Metadata
    bytes_in: int
    bytes_out: int
    own_rank: int = -1


def read_comm(call: Call, row: int, book: GroupBook) -> CommCall | None:
    """A call of the communication library; None if the node does not look like one.

    Its inputs are ``(tensors,) seq, group, rank or root, name, in splits, out splits`` and then
    nothing, the group's size, or first rank, stride and size. A wait names no tensors.
    """
    values = call.values
    at = next((i for i, v in enumerate(values) if i >= 3 and isinstance(v, str)), -1)
    if at < 0:
        return None
    name = str(call.attrs.get("collective_name") or values[at])
    seq, group, rank = values[at - 3 : at]
    splits = [*values[at + 1 : at + 3], [], []]
    tail = [v for v in values[at + 3 :] if isinstance(v, int)]
    meta = Metadata(
        collective=name,
        seq=seq if isinstance(seq, int) and seq > 0 else -1,
        in_splits=ranks_of(call.attrs.get("in_split_size") or splits[0]),
        out_splits=ranks_of(call.attrs.get("out_split_size") or splits[1]),
        group_size=call.integer("pg_size", tail[-1] if tail else -1),
        in_elements=call.integer("in_msg_nelems"),
        out_elements=call.integer("out_msg_nelems"),
        dtype=_element_type(call),
    )
    _fill_group(meta, call, group, tail, book)
    kind = collective_kind(name)
    own = rank if isinstance(rank, int) and kind not in _ROOTED else -1
    if kind in _ROOTED:
        meta.root = rank if isinstance(rank, int) else -1
    meta.group_rank = own
    tensors = values[: at - 3]
    return CommCall(row, name, meta, _bytes(tensors), _bytes(call.outputs), own)


def _fill_group(meta: Metadata, call: Call, group: Any, tail: list[int], book: GroupBook) -> None:
    """Name and members of the group, as the call or the group's creation tell them."""
    named = group if isinstance(group, list) and len(group) == 2 else [group, ""]
    meta.group_name = str(call.attrs.get("pg_name") or named[0] or "")
    meta.group_description = str(call.attrs.get("pg_desc") or named[1] or "")
    first = call.integer("global_rank_start", tail[0] if len(tail) == 3 else -1)
    stride = call.integer("global_rank_stride", tail[1] if len(tail) == 3 else -1)
    size = meta.group_size
    known = book.names.get(meta.group_name)
    if known is not None and (size < 0 or known["size"] == size):
        meta.group_name, meta.group_ranks = known["name"] or meta.group_name, known["ranks"]
        meta.group_size = known["size"]
        meta.group_description = meta.group_description or known["description"]
    elif size > 0 and first >= 0 and stride > 0:
        meta.group_ranks = ranks_from(first, size, stride)


def _element_type(call: Call) -> str:
    dtype = call.attrs.get("dtype")
    if isinstance(dtype, str) and dtype:
        return scalar_type(dtype) or dtype
    match = _ELEMENT_TYPE.search(call.types)
    return scalar_type(match.group(1)) if match else ""


def is_tensor(value: Any) -> bool:
    """Whether a recorded value is ``[tensor id, storage id, offset, elements, bytes, device]``."""
    return (
        isinstance(value, list)
        and len(value) == 6
        and isinstance(value[5], str)
        and all(isinstance(v, int) for v in value[:5])
    )


def tensors_of(values: list[Any]) -> list[list[Any]]:
    """All tensors among values, lists of tensors opened."""
    found: list[list[Any]] = []
    left = values[::-1]
    while left:
        value = left.pop()
        if is_tensor(value):
            found.append(value)
        elif isinstance(value, list):
            left += value[::-1]
    return found


def _bytes(values: list[Any]) -> int:
    tensors = tensors_of(values)
    total = sum(t[3] * t[4] for t in tensors)
    return total if tensors and 0 <= total <= MOST_BYTES else -1


def operations(calls: list[CommCall], groups: GroupTable) -> list[Operation]:
    """One operation per call that communicates; waits are joined to what they wait for."""
    found: list[Operation] = []
    open_by_seq: dict[int, Operation] = {}
    for call in calls:
        meta = call.meta
        kind = collective_kind(call.name)
        if "wait" in call.name.lower():
            waiting = open_by_seq.pop(meta.seq, None)
            if waiting is not None:
                waiting.wait_event = call.row
            continue
        if not kind and _NO_OPERATION.search(call.name):
            continue
        operation = Operation(
            kind=kind or "unknown",
            work_event=-1,
            source=CALL_NAME,
            meta=meta,
            call_event=call.row,
            bytes_in=call.bytes_in,
            bytes_out=call.bytes_out,
        )
        _fill(operation, groups)
        found.append(operation)
        open_by_seq[meta.seq] = operation
    return found


def _fill(operation: Operation, groups: GroupTable) -> None:
    meta = operation.meta
    width = element_bytes(meta.dtype)
    if width and 0 <= meta.in_elements <= MOST_BYTES // width:
        operation.bytes_in = meta.in_elements * width
    if width and 0 <= meta.out_elements <= MOST_BYTES // width:
        operation.bytes_out = meta.out_elements * width
    if operation.kind == "send":
        operation.bytes_out = 0
    if operation.kind == "recv":
        operation.bytes_in, operation.bytes_out = 0, max(operation.bytes_in, operation.bytes_out)
    operation.group = groups.row(
        meta.group_name, meta.group_ranks, max(meta.group_size, 0), meta.group_description
    )
    if operation.group >= 0:
        ranks = groups.groups[operation.group].ranks
        if groups.rank in ranks:
            meta.group_rank = ranks.index(groups.rank)
        if 0 <= meta.root < len(ranks):
            meta.peer = ranks[meta.root]
    fill_by_group_size(operation)
