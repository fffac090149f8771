"""Process groups and communication operations of a Chakra graph."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foretrace.traces.chakra_messages import COLLECTIVES, NODE_TYPES
from foretrace.traces.classify import collective_kind
from foretrace.traces.collectives.model import Metadata, Operation
from foretrace.traces.collectives.sizes import fill_by_group_size
from foretrace.traces.collectives.table import as_table
from foretrace.traces.dtypes import scalar_type
from foretrace.traces.groups import GroupTable
from foretrace.traces.importers.chakra_nodes import GraphNode
from foretrace.traces.importers.et_collectives import GroupBook
from foretrace.traces.importers.et_nodes import Call
from foretrace.traces.manifest import GroupInfo, RankInfo
from foretrace.traces.salvage import Losses

I64 = NDArray[np.int64]

_SEND, _RECV, _COLL = (NODE_TYPES.index(f"COMM_{k}_NODE") for k in ("SEND", "RECV", "COLL"))
_METADATA = NODE_TYPES.index("METADATA_NODE")
_GROUPS = re.compile(r"\[\s*\{.*\}\s*\]", re.DOTALL)
_ELEMENT_TYPE = re.compile(r"Tensor\(([^)]*)\)")
_SAME_SIZE = ("all_reduce", "broadcast", "reduce", "all_to_all")


def on_host(node: GraphNode) -> bool:
    """Whether a node is work of the host; those that do not say so are the device's."""
    return bool(node.attrs.get("is_cpu_op", node.type <= _METADATA))


def group_book(nodes: list[GraphNode], losses: Losses) -> GroupBook:
    """The groups that metadata nodes list."""
    book = GroupBook()
    for node in nodes:
        match = _GROUPS.search(node.values) if node.type == _METADATA else None
        if match:
            call = Call(node.id, node.name, -1, [match.group()], [], "", "")
            book.add(call, losses)
    return book


def communication(
    nodes: list[GraphNode], place: I64, book: GroupBook, info: RankInfo
) -> tuple[pa.Table, list[GroupInfo]]:
    """The collectives table and the groups.

    Args:
        nodes: of the graph.
        place: row of the events table of each node.
        book: groups that the graph lists.
        info: of the rank.
    """
    groups = GroupTable(info.world_size, info.rank)
    book.fill(groups)
    rows = [i for i, n in enumerate(nodes) if _communicates(n)]
    device = [i for i in rows if not on_host(nodes[i])]
    # where both are there, the host's nodes are the calls that launched the device's
    row_of = {n.id: i for i, n in enumerate(nodes)}
    operations = []
    for i in device or rows:
        operation = _operation(nodes[i], int(place[i]), book)
        parents = [row_of[d] for d in nodes[i].ctrl if d in row_of and on_host(nodes[row_of[d]])]
        if parents and device:
            operation.call_event = int(place[parents[0]])
        _fill_group(operation, groups, info.rank)
        operations.append(operation)
    order = sorted(range(len(operations)), key=lambda k: operations[k].work_event)
    return as_table([operations[k] for k in order]), groups.groups


def _communicates(node: GraphNode) -> bool:
    return node.type in (_SEND, _RECV, _COLL) or "comm_kind" in node.attrs


def _operation(node: GraphNode, row: int, book: GroupBook) -> Operation:
    kind = _kind(node)
    name = str(node.attrs.get("pg_name", ""))
    known = book.names.get(name)
    match = _ELEMENT_TYPE.search(node.types)
    size = node.integer("comm_size")
    meta = Metadata(
        group_name=name,
        group_ranks=known["ranks"] if known else [],
        group_size=known["size"] if known else -1,
        dtype=str(node.attrs.get("dtype") or (scalar_type(match.group(1)) if match else "")),
        seq=node.integer("comm_seq", node.integer("comm_tag")),
        peer=node.integer("comm_dst" if kind == "send" else "comm_src"),
        exec_ns=-1,
    )
    operation = Operation(
        kind=kind,
        work_event=row,
        source="chakra",
        meta=meta,
        bytes_in=node.integer("bytes_in", 0 if kind == "recv" else size),
        bytes_out=node.integer("bytes_out", size if kind == "recv" else -1),
    )
    if kind in _SAME_SIZE and operation.bytes_out < 0:
        operation.bytes_out = operation.bytes_in
    if kind == "send" and operation.bytes_out < 0:
        operation.bytes_out = 0
    return operation


def _kind(node: GraphNode) -> str:
    if "comm_kind" in node.attrs:
        return str(node.attrs["comm_kind"])
    if node.type in (_SEND, _RECV):
        return "send" if node.type == _SEND else "recv"
    number = node.integer("comm_type")
    if 0 <= number < len(COLLECTIVES):
        return COLLECTIVES[number]
    return collective_kind(node.name) or "unknown"


def _fill_group(operation: Operation, groups: GroupTable, rank: int) -> None:
    meta = operation.meta
    operation.group = groups.row(meta.group_name, meta.group_ranks, max(meta.group_size, 0))
    if operation.group >= 0:
        ranks = groups.groups[operation.group].ranks
        if rank in ranks:
            meta.group_rank = ranks.index(rank)
    fill_by_group_size(operation)
