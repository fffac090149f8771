"""Chakra graphs (protobuf ``.et``, or the feeder's JSON) to the tables of one rank.

Their tasks have durations and dependencies, and most have no times. Those are then laid out:
each task starts as early as its dependencies and its thread or stream allow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foretrace.traces.chakra_messages import NODE_TYPES
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.groups import MOST_RANKS
from foretrace.traces.importers import chakra_nodes
from foretrace.traces.importers.chakra_collectives import communication, group_book, on_host
from foretrace.traces.importers.chakra_nodes import GraphNode
from foretrace.traces.importers.loose import whole
from foretrace.traces.importers.tables import (
    NO_TIMES,
    TIMES_LABEL,
    counts_of,
    event_table,
    span_of,
    table_of,
)
from foretrace.traces.layout import closing_edges, lay_out
from foretrace.traces.manifest import RankInfo
from foretrace.traces.salvage import Losses
from foretrace.traces.schema import EVENT_KINDS
from foretrace.traces.store import RankTables

I64 = NDArray[np.int64]

NAME = "Chakra graph"

_JSON = re.compile(rb'"workload_graph"\s*:\s*\[')
_METADATA, _INVALID = NODE_TYPES.index("METADATA_NODE"), NODE_TYPES.index("INVALID_NODE")
_MEMORY = (NODE_TYPES.index("MEM_LOAD_NODE"), NODE_TYPES.index("MEM_STORE_NODE"))
_COMP = NODE_TYPES.index("COMP_NODE")
_COMM = tuple(NODE_TYPES.index(f"COMM_{k}_NODE") for k in ("SEND", "RECV", "COLL"))
_LAID_OUT = NO_TIMES + " in a Chakra graph: laid out from durations and dependencies"
_MOST_NS = 1 << 62
_NO_STREAMS = "no streams recorded: computation put on stream 0, communication on stream 1"


def sniff(head: bytes, name: str) -> bool:
    """Whether a file that begins with ``head`` is a Chakra graph."""
    del name
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{":
        return bool(_JSON.search(head))
    return chakra_nodes.is_protobuf(head)


def read(chunks: Iterable[bytes], *, python: bool = False) -> RankTables:
    """Read one file; the rank is -1 unless the file was written by foretrace.

    Args:
        chunks: the uncompressed content, in pieces of any size.
        python: has no meaning here.

    Raises:
        TraceFormatError: the content holds no nodes.
    """
    del python
    text = b"".join(chunks)
    losses = Losses()
    is_json = text[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{"
    reader = chakra_nodes.read_json if is_json else chakra_nodes.read_protobuf
    known, stream = reader(text, losses)
    nodes = _distinct(stream, losses)
    if not nodes:
        raise TraceFormatError("it holds no nodes")
    source, target, is_data = _edges(nodes, losses)
    columns = _columns(nodes, losses)
    placed = any(n.start_us or "start_ns" in n.attrs for n in nodes)
    timed = placed and TIMES_LABEL not in known
    if not placed:
        _check_durations(columns["dur_ns"])
        columns["start_ns"] = lay_out(columns["dur_ns"], _lanes(columns), source, target)
    losses.add(_LAID_OUT, 0 if timed else len(nodes))
    events, place = event_table(columns)
    info = _info(known, nodes, events, timed)
    book = group_book(nodes, losses)
    info.world_size = info.world_size or book.world_size
    collectives, info.groups = communication(nodes, place, book, info)
    info.dropped = losses.as_list()
    edges = _edge_table(place[source], place[target], is_data)
    return RankTables(info, events, collectives, dependencies=edges)


def _distinct(stream: Iterable[GraphNode], losses: Losses) -> list[GraphNode]:
    nodes: dict[int, GraphNode] = {}
    for node in stream:
        if node.id in nodes:
            losses.add("second node of the same id (left out)", 1, f"{node.id} {node.name}")
        else:
            nodes[node.id] = node
    return list(nodes.values())


def _edges(nodes: list[GraphNode], losses: Losses) -> tuple[I64, I64, NDArray[np.bool_]]:
    """(source row, target row, whether data flows) of each dependency; none closes a cycle."""
    row = {node.id: i for i, node in enumerate(nodes)}
    edges: list[tuple[int, int, bool]] = []
    for i, node in enumerate(nodes):
        for is_data, ids in ((True, node.data), (False, node.ctrl)):
            known = [row[d] for d in ids if d in row]
            losses.add(
                "dependency on a node that is not in the file (left out)",
                len(ids) - len(known),
                f"node {node.id} {node.name}",
            )
            edges += [(k, i, is_data) for k in known]
    table = np.array(edges, np.int64).reshape(-1, 3)
    source, target, is_data_edge = table.T
    back = closing_edges(source, target, is_data_edge.astype(np.bool_), len(nodes))
    if back.any():
        first = int(np.flatnonzero(back)[0])
        a, b = nodes[source[first]], nodes[target[first]]
        losses.add("dependency that closes a cycle (left out)", int(back.sum()), f"{a.id}, {b.id}")
    return source[~back], target[~back], is_data_edge[~back].astype(np.bool_)


def _check_durations(dur_ns: I64) -> None:
    """One task after the other must end before 63 bits do."""
    total = float(dur_ns.sum(dtype=np.float64))
    if total > _MOST_NS:
        raise TraceFormatError(f"its durations add up to {total / 1e9:.3g} s; they are damaged")


def _edge_table(source: I64, target: I64, is_data: NDArray[np.bool_]) -> pa.Table:
    kinds = np.where(is_data, "data", "ctrl").tolist()
    return table_of("dependencies", {"source": source, "target": target, "kind": kinds})


def _columns(nodes: list[GraphNode], losses: Losses) -> dict[str, Any]:
    host = np.array([on_host(n) for n in nodes], np.bool_)
    stream = np.array([n.integer("stream") for n in nodes], np.int64)
    unknown = ~host & (stream < 0)
    talks = np.array([n.type in _COMM for n in nodes], np.bool_)
    losses.add(_NO_STREAMS, int(unknown.sum()))
    stream = np.where(unknown, talks.astype(np.int64), stream)
    return {
        "kind": [_kind(n, h) for n, h in zip(nodes, host.tolist(), strict=True)],
        "name": [n.name for n in nodes],
        "start_ns": np.array([_ns(n, "start_ns", n.start_us) for n in nodes], np.int64),
        "dur_ns": np.array([_ns(n, "duration_ns", n.dur_us) for n in nodes], np.int64),
        "thread": np.where(host, [n.integer("tid", 0) for n in nodes], -1),
        "device": np.where(host, -1, [n.integer("device", 0) for n in nodes]),
        "stream": np.where(host, -1, stream),
        "sequence": [n.integer("seq_id") for n in nodes],
        "shapes": [n.shapes for n in nodes],
        "dtypes": [n.types for n in nodes],
        "rf_id": [n.integer("rf_id") or -1 for n in nodes],
        "bytes": [n.integer("tensor_size") if n.type in _MEMORY else -1 for n in nodes],
    }


def _ns(node: GraphNode, exact: str, micros: int) -> int:
    """Nanoseconds, exact where foretrace wrote them."""
    return max(node.integer(exact, min(micros, 1 << 50) * 1000), 0)


def _kind(node: GraphNode, host: bool) -> str:
    if node.attrs.get("event_kind") in EVENT_KINDS:
        return str(node.attrs["event_kind"])
    if node.type == _METADATA:
        return "annotation"
    if node.type == _INVALID or node.type > _COMM[-1]:
        return "other"
    if host:
        return "host_op"
    if node.type in _MEMORY or node.name.startswith("Memcpy"):
        return "memcpy"
    return "memset" if node.name.startswith("Memset") else "kernel"


def _lanes(columns: dict[str, Any]) -> I64:
    """A number for each thread and each stream; metadata takes no time anywhere."""
    keys = np.stack([columns["device"], columns["thread"], columns["stream"]], axis=1)
    _, lane = np.unique(keys, axis=0, return_inverse=True)
    lanes: I64 = lane.reshape(-1).astype(np.int64)
    return lanes


def _info(known: dict[str, Any], nodes: list[GraphNode], events: pa.Table, timed: bool) -> RankInfo:
    rank = whole(known.get("rank", -1))
    rank = rank if 0 <= rank < MOST_RANKS else -1
    labels = {k: str(v) for k, v in known.items() if k not in ("version", "schema", "rank")}
    versions = {f"chakra_{k}": str(known[k]) for k in ("version", "schema") if k in known}
    return RankInfo(
        rank=rank,
        rank_from="collectives" if rank >= 0 else "",
        world_size=whole(known.get("world_size"), 0),
        span_ns=span_of(events),
        counts=counts_of(events),
        versions=versions,
        labels=labels if timed else {TIMES_LABEL: "laid out", **labels},
    )
