"""Write tasks and their dependencies as Chakra graphs, one ``.et`` file per rank.

Simulators such as ASTRA-sim read these files. They count durations in whole microseconds;
those are rounded so that each thread and each stream keeps its total, and the exact
nanoseconds stand beside them for readers that look.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.traces.chakra_messages import COLLECTIVES, NODE_TYPES, messages, varint
from foretrace.traces.exporters.chakra_tasks import tasks_of
from foretrace.traces.storage import Folder
from foretrace.traces.store import TraceSet

I64 = NDArray[np.int64]

VERSION = "0.0.4"
_METADATA, _COMP = NODE_TYPES.index("METADATA_NODE"), NODE_TYPES.index("COMP_NODE")
_SEND, _RECV, _COLL = (NODE_TYPES.index(f"COMM_{k}_NODE") for k in ("SEND", "RECV", "COLL"))
_LOAD = NODE_TYPES.index("MEM_LOAD_NODE")
GROUPS_NODE = "## process_group:init ##"


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks of one rank; arrays of shape ``(tasks,)``.

    Attributes:
        name: what to call each.
        kind: ``schema.EVENT_KINDS`` value of each; host work is what is not on a device.
        dur_ns: duration.
        thread: host thread, -1 for device work.
        device: device index, -1 for host work.
        stream: device stream, -1 for host work.
        start_ns: when each was measured to begin; None where unknown.
        communication: task -> its operation, a row of ``schema.COLLECTIVES`` by column.
        columns: further columns that a reader gets back: shapes, dtypes, rf_id, sequence.
    """

    name: Sequence[str]
    kind: Sequence[str]
    dur_ns: I64
    thread: I64
    device: I64
    stream: I64
    start_ns: I64 | None = None
    communication: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Edges:
    """Dependencies between tasks; arrays of shape ``(edges,)``.

    Attributes:
        source: task that comes first.
        target: task that waits for it.
        is_data: a data dependency rather than a control dependency.
    """

    source: I64
    target: I64
    is_data: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What stands before a rank's tasks.

    Attributes:
        rank: global rank.
        world_size: ranks of the job.
        times: how the starts came about where they were not measured; "" where they were.
        groups: global ranks of each process group; names are their numbers from 1 on.
        descriptions: what each group is for; "" where unknown.
    """

    rank: int
    world_size: int
    times: str = ""
    groups: Sequence[Sequence[int]] = ()
    descriptions: Sequence[str] = ()


def export_chakra(
    traces: TraceSet, folder: str | os.PathLike[str], name: str = "foretrace"
) -> list[str]:
    """Write every rank of a trace set as a Chakra graph.

    Dependencies are those that were recorded; where none were, the order of host threads and
    streams, and each launch before its kernel.

    Args:
        traces: the job.
        folder: gets ``NAME.RANK.et`` for each rank, and ``NAME.groups.json`` with the groups.
        name: first part of the files' names.

    Returns:
        One line for everything that the graphs do not say.
    """
    target = Folder.at(folder)
    target.fs.makedirs(target.root, exist_ok=True)
    groups = _groups_of(traces)
    number = {members: i for i, members in enumerate(groups)}
    notes = []
    for rank in traces.ranks:
        info = traces.info(rank)
        own = [number.get(tuple(g.ranks), -1) for g in info.groups]
        tasks, edges, lost = tasks_of(traces.tables(rank), own)
        notes += [f"rank {rank}: {line}" for line in lost]
        described = {n: g.description or g.name for n, g in zip(own, info.groups, strict=True)}
        facts = RankFacts(
            rank=rank,
            world_size=info.world_size or len(traces.ranks),
            times=info.labels.get("times", ""),
            groups=groups,
            descriptions=[described.get(i, "") for i in range(len(groups))],
        )
        target.write(encode_rank(Tasks(**tasks), Edges(**edges), facts), f"{name}.{rank}.et")
    target.write(encode_groups(groups), f"{name}.groups.json")
    return notes


def _groups_of(traces: TraceSet) -> list[tuple[int, ...]]:
    return [tuple(g) for g in traces.groups]


def encode_groups(groups: Sequence[Sequence[int]]) -> bytes:
    """The groups as ASTRA-sim's communicator file has them: number -> ranks."""
    return json.dumps({str(i + 1): list(g) for i, g in enumerate(groups)}).encode()


def encode_rank(tasks: Tasks, edges: Edges, facts: RankFacts) -> bytes:
    """One rank's file.

    Args:
        tasks: of the rank. A communication row may have ``group`` as a number in ``facts``.
        edges: between them.
        facts: about the rank.
    """
    return b"".join(
        varint(len(text)) + text
        for text in (m.SerializeToString() for m in _messages(tasks, edges, facts))
    )


def _messages(tasks: Tasks, edges: Edges, facts: RankFacts) -> Iterator[Any]:
    yield _metadata(facts)
    if facts.groups:
        groups = _groups_node(facts, len(tasks.name))
        if tasks.start_ns is not None and len(tasks.start_ns):
            _attribute(groups, "start_ns", "int64", int(tasks.start_ns.min()))
        yield groups
    micros = whole_micros(tasks)
    data, control = _by_target(edges, len(tasks.name))
    node_type = messages()["Node"]
    for i, name in enumerate(tasks.name):
        node = node_type(
            id=i,
            name=name,
            duration_micros=int(micros[i]),
            data_deps=data[i],
            ctrl_deps=control[i],
        )
        _fill(node, i, tasks, facts)
        yield node


def _metadata(facts: RankFacts) -> Any:
    metadata = messages()["GlobalMetadata"](version=VERSION)
    _attribute(metadata, "rank", "int64", facts.rank)
    _attribute(metadata, "world_size", "int64", facts.world_size)
    _attribute(metadata, "writer", "string", "foretrace")
    if facts.times:
        _attribute(metadata, "times", "string", facts.times)
    return metadata


def _groups_node(facts: RankFacts, number: int) -> Any:
    """A node that lists the groups, as a recording of PyTorch would."""
    entries = [
        {
            "pg_name": str(i + 1),
            "pg_desc": facts.descriptions[i] if i < len(facts.descriptions) else "",
            "backend_config": "cuda:nccl",
            "ranks": list(group),
            "group_size": len(group),
            "group_count": len(facts.groups),
        }
        for i, group in enumerate(facts.groups)
    ]
    node = messages()["Node"](id=number, name=GROUPS_NODE, type=_METADATA)
    node.inputs.values = f"['{json.dumps(entries)}']"
    node.inputs.shapes, node.inputs.types = "[[]]", "['String']"
    _attribute(node, "is_cpu_op", "bool", True)
    return node


def whole_micros(tasks: Tasks) -> I64:
    """Durations in whole microseconds that add up on each thread and stream.

    Each task lasts from where the exact total before it rounds to, to where the total with it
    rounds to.
    """
    lanes = np.stack([tasks.device, tasks.thread, tasks.stream], axis=1)
    _, lane = np.unique(lanes, axis=0, return_inverse=True)
    order = np.argsort(lane.reshape(-1), kind="stable")
    sorted_lane = lane.reshape(-1)[order]
    total = np.cumsum(tasks.dur_ns[order])
    head = np.r_[True, sorted_lane[1:] != sorted_lane[:-1]] if len(order) else np.zeros(0, bool)
    base = (total - tasks.dur_ns[order])[head]
    total -= np.repeat(base, np.diff(np.r_[np.flatnonzero(head), len(order)]))
    ends = (total + 500) // 1000
    begins = (total - tasks.dur_ns[order] + 500) // 1000
    micros = np.empty(len(order), np.int64)
    micros[order] = ends - begins
    return micros


def _by_target(edges: Edges, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """Sources of the data and of the control edges of each task."""
    data: list[list[int]] = [[] for _ in range(count)]
    control: list[list[int]] = [[] for _ in range(count)]
    for source, target, is_data in zip(
        edges.source.tolist(), edges.target.tolist(), edges.is_data.tolist(), strict=True
    ):
        (data if is_data else control)[target].append(source)
    return data, control


def _fill(node: Any, i: int, tasks: Tasks, facts: RankFacts) -> None:
    device = int(tasks.device[i])
    _attribute(node, "is_cpu_op", "bool", device < 0)
    _attribute(node, "event_kind", "string", tasks.kind[i])
    _attribute(node, "duration_ns", "int64", int(tasks.dur_ns[i]))
    if tasks.start_ns is not None:
        _attribute(node, "start_ns", "int64", int(tasks.start_ns[i]))
        if not facts.times:
            node.start_time_micros = max(int(tasks.start_ns[i]) // 1000, 0)
    if device < 0:
        _attribute(node, "tid", "int64", int(tasks.thread[i]))
    else:
        _attribute(node, "device", "int64", device)
        _attribute(node, "stream", "int64", int(tasks.stream[i]))
    node.type = _COMP
    _fill_columns(node, i, tasks)
    if i in tasks.communication:
        _fill_communication(node, tasks.communication[i], facts)


def _fill_columns(node: Any, i: int, tasks: Tasks) -> None:
    columns = tasks.columns
    if "shapes" in columns:
        node.inputs.shapes = columns["shapes"][i]
    if "dtypes" in columns:
        node.inputs.types = columns["dtypes"][i]
    for name, column in (("rf_id", "rf_id"), ("seq_id", "sequence")):
        if column in columns and columns[column][i] >= 0:
            _attribute(node, name, "int64", int(columns[column][i]))


def _fill_communication(node: Any, row: Mapping[str, Any], facts: RankFacts) -> None:
    """Make it a communication node; one that a simulator cannot run keeps its duration only."""
    kind = row["kind"]
    size = max(row.get("bytes_in", -1), 0) or max(row.get("bytes_out", -1), 0)
    peer = row.get("peer", -1)
    if kind in ("send", "recv") and peer >= 0 and size:
        node.type = _SEND if kind == "send" else _RECV
        ends = (facts.rank, peer) if kind == "send" else (peer, facts.rank)
        _attribute(node, "comm_src", "int32", ends[0])
        _attribute(node, "comm_dst", "int32", ends[1])
        _attribute(node, "comm_tag", "int32", max(row.get("seq", 0), 0) & 0x7FFFFFFF)
    elif kind in COLLECTIVES and size:
        node.type = _COLL
        _attribute(node, "comm_type", "int64", COLLECTIVES.index(kind))
    if size:
        _attribute(node, "comm_size", "int64", size)
    group = row.get("group", -1)
    if group >= 0:
        _attribute(node, "pg_name", "string", str(group + 1))
    _attribute(node, "comm_kind", "string", kind)
    for name, column in (
        ("comm_seq", "seq"),
        ("bytes_in", "bytes_in"),
        ("bytes_out", "bytes_out"),
    ):
        _attribute(node, name, "int64", int(row.get(column, -1)))
    if row.get("dtype"):
        _attribute(node, "dtype", "string", row["dtype"])


def _attribute(message: Any, name: str, kind: str, value: Any) -> None:
    """Add an attribute; readers insist on the types that they know a name by."""
    message.attr.add(name=name, **{f"{kind}_val": value})
