"""PyTorch execution traces (Chakra host traces, JSON) to the tables of one rank.

They tell which operators ran, in which order, on which tensors and in which groups, and never
when: read alone, ``start_ns`` counts the calls and all durations are 0. Beside a profiler
trace of the same run their rows fill in what that one lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from foretrace.traces.collectives.table import as_table
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.groups import GroupTable
from foretrace.traces.importers.et_collectives import (
    CALL_NAME,
    GROUPS_NAME,
    CommCall,
    GroupBook,
    is_tensor,
    operations,
    read_comm,
    tensors_of,
)
from foretrace.traces.importers.et_nodes import Call, head_of, read_calls
from foretrace.traces.importers.tables import (
    NO_TIMES,
    TIMES_LABEL,
    counts_of,
    event_table,
    span_of,
    table_of,
)
from foretrace.traces.manifest import RankInfo
from foretrace.traces.salvage import Losses
from foretrace.traces.store import RankTables

NAME = "PyTorch execution trace"

_SCHEMA = re.compile(rb'"schema"\s*:\s*"(1\.[^"]*)"')
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_STRUCTURE = "[pytorch|profiler|"  # the process and its threads
_USER_SCOPE = 7
_NO_TIMES = NO_TIMES + " in an execution trace: start_ns counts the calls, durations are 0"


def sniff(head: bytes, name: str) -> bool:
    """Whether a file that begins with ``head`` is an execution trace."""
    del name
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{"
    return start and bool(_SCHEMA.search(head)) and bool(_NODES.search(head))


def read(chunks: Iterable[bytes], *, python: bool = False) -> RankTables:
    """Read one file; the rank is -1 if no call tells it.

    Args:
        chunks: the uncompressed text, in pieces of any size.
        python: has no meaning here.

    Raises:
        TraceFormatError: the text holds no calls.
    """
    del python
    text = b"".join(chunks)
    losses = Losses()
    calls = sorted(read_calls(text, losses), key=lambda c: c.id)
    rows = [c for c in calls if not c.name.startswith(_STRUCTURE)]
    if not rows:
        raise TraceFormatError("it holds no calls")
    book, comms = _communication(rows, losses)
    rank = _rank(comms)
    groups = GroupTable(book.world_size, rank)
    book.fill(groups)
    collectives = as_table(operations(comms, groups))
    losses.add(_NO_TIMES, len(rows))
    _note_parents(calls, losses)
    events, _ = event_table(_columns(rows))
    info = _info(head_of(text), rank, book, events)
    info.groups, info.dropped = groups.groups, losses.as_list()
    return RankTables(info, events, collectives, dependencies=_data_edges(rows))


def _communication(rows: list[Call], losses: Losses) -> tuple[GroupBook, list[CommCall]]:
    book = GroupBook()
    for call in rows:
        if call.name == GROUPS_NAME:
            book.add(call, losses)
    comms = []
    for row, call in enumerate(rows):
        if call.name == CALL_NAME:
            comm = read_comm(call, row, book)
            if comm is None:
                losses.add("call of the communication library that cannot be read", 1, call)
            else:
                comms.append(comm)
    return book, comms


def _rank(comms: list[CommCall]) -> int:
    """The global rank, where all calls on groups with known members agree on it; else -1."""
    found = {
        c.meta.group_ranks[c.own_rank]
        for c in comms
        if 0 <= c.own_rank < len(c.meta.group_ranks) and len(c.meta.group_ranks) > 1
    }
    return found.pop() if len(found) == 1 else -1


def _note_parents(calls: list[Call], losses: Losses) -> None:
    ids = {c.id for c in calls}
    orphans = [c for c in calls if c.parent >= 0 and c.parent not in ids and c.parent != c.id]
    # the process that all threads hang from is not always written out
    orphans = [c for c in orphans if not c.name.startswith(_STRUCTURE)]
    losses.add("caller missing in the file (calls kept)", len(orphans), _shown(orphans))


def _shown(calls: list[Call]) -> str:
    return f"node {calls[0].id} {calls[0].name} names {calls[0].parent}" if calls else ""


def _columns(rows: list[Call]) -> dict[str, Any]:
    count = len(rows)
    seqs = [c.integer("seq_id") for c in rows]
    return {
        "kind": ["annotation" if c.integer("scope") == _USER_SCOPE else "host_op" for c in rows],
        "name": [c.name for c in rows],
        "start_ns": np.arange(count),
        "dur_ns": np.zeros(count, np.int64),
        "thread": [c.integer("tid") for c in rows],
        "sequence": seqs,
        "fwd_thread": [c.integer("fw_tid") or -1 for c in rows],
        "shapes": [c.shapes for c in rows],
        "dtypes": [c.types for c in rows],
        "inputs": [_scalars(c.values) for c in rows],
        "rf_id": [c.integer("rf_id") or -1 for c in rows],
    }


def _scalars(values: list[Any]) -> str:
    """Inputs as a profiler writes them: texts, empty where a tensor stands."""
    shown = ["" if is_tensor(v) or tensors_of([v]) else _word(v) for v in values]
    return msgspec.json.encode(shown).decode()


def _word(value: Any) -> str:
    try:
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except (RecursionError, OverflowError):  # nested too deep, or of more than 64 bits
        return ""


def _data_edges(rows: list[Call]) -> pa.Table | None:
    """From the last call that wrote a storage to the calls that use it; innermost calls only."""
    parents = {c.parent for c in rows}
    writer: dict[int, int] = {}
    edges: dict[tuple[int, int], None] = {}
    for row, call in enumerate(rows):
        if call.id in parents:
            continue
        for tensor in tensors_of(call.values):
            source = writer.get(tensor[1], -1)
            if source >= 0:
                edges[source, row] = None
        for tensor in tensors_of(call.outputs):
            writer[tensor[1]] = row
    if not edges:
        return None
    source, target = np.array(list(edges), np.int64).T
    return table_of(
        "dependencies", {"source": source, "target": target, "kind": ["data"] * len(edges)}
    )


def _info(head: dict[str, Any], rank: int, book: GroupBook, events: pa.Table) -> RankInfo:
    backends = {e["backend"].rsplit(":", 1)[-1] for e in book.entries} - {""}
    return RankInfo(
        rank=rank,
        world_size=book.world_size,
        backend=backends.pop() if len(backends) == 1 else "",
        rank_from="collectives" if rank >= 0 else "",
        span_ns=span_of(events),
        counts=counts_of(events),
        versions={"execution_trace_schema": str(head["schema"])} if "schema" in head else {},
        labels={TIMES_LABEL: "order", **{k: str(head[k]) for k in ("time", "pid") if k in head}},
    )
