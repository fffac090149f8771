"""Puts what the hooks saw over what the profiler's events tell about collectives.

The events stay as they are. Each call that the hooks saw becomes one row of the collectives
table, with its exact sizes, and points to the events that issued it, that executed it and
that waited for it. Several calls may share one execution (a batch of sends and receives that
NCCL fuses into one kernel); a call with several executions gives a row each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foretrace.collector.annotations import Moved, as_annotations, with_annotations
from foretrace.collector.calls import OPERATORS
from foretrace.collector.implied import IMPLIED_NAME, idle_by_events, implied_waits
from foretrace.collector.matching import Rows, gloo_work_rows, rows_inside, rows_of_spans
from foretrace.collector.spool import Call, Group, Recording, Wait
from foretrace.collector.waits import WAIT_NAME
from foretrace.traces.enclosing import enclosing_rows
from foretrace.traces.manifest import GroupInfo
from foretrace.traces.schema import COLLECTIVES, arrow_schema
from foretrace.traces.steps import launch_rows

I64 = NDArray[np.int64]
Row = dict[str, Any]

WAIT_TENSOR = "_c10d_functional::wait_tensor"
_P2P = frozenset({"send", "recv", "send_recv"})


@dataclass(frozen=True, slots=True)
class Links:
    """Rows of events for each call, shape ``(calls,)``; -1 for none.

    Attributes:
        call: the ``c10d::`` operator.
        work: the gloo annotation.
        wait: the first wait for it.
    """

    call: I64
    work: I64
    wait: I64


def overlay(
    events: pa.Table, imported: pa.Table, recording: Recording, group_of: Sequence[int]
) -> tuple[pa.Table, pa.Table]:
    """Events and collectives of a rank that the hooks watched.

    Args:
        events: events, sorted.
        imported: collectives as the importer found them in the events alone.
        recording: what the hooks saw.
        group_of: for each group of the importer, its place in the joined list of groups.

    Returns:
        Events with an annotation added for each implied wait, and collectives in issue order,
        columns of ``schema.COLLECTIVES``. Imported rows that no call explains are kept.
    """
    events = as_annotations(events, WAIT_NAME)
    rows = Rows.of(events)
    links = find_links(rows, recording)
    implied = _implied(rows, links, recording)
    if implied:
        events, moved = with_annotations(events, implied, IMPLIED_NAME)
        links = _moved_links(links, moved, implied, recording)
        imported = moved_events(imported, moved)
        rows = Rows.of(events)
    found: list[Row] = imported.to_pylist()
    kernels = [i for i, row in enumerate(found) if row["source"] != "gloo"]
    pairs = _pairs(events, rows, links, recording.calls, [found[i] for i in kernels])
    merged = _hooked_rows(recording, links, [found[i] for i in kernels], pairs, rows)
    taken = {kernels[k] for _, k in pairs} | _explained(found, links)
    for i, row in enumerate(found):
        if i not in taken:
            group = group_of[row["group"]] if 0 <= row["group"] < len(group_of) else -1
            event = row["call_event"] if row["call_event"] >= 0 else row["work_event"]
            merged.append((int(rows.start_ns[event]), row | {"group": group}))
    merged.sort(key=lambda pair: pair[0])
    return events, as_table([row for _, row in merged])


def _implied(rows: Rows, links: Links, recording: Recording) -> list[Wait]:
    end_ns = np.where(links.work >= 0, rows.end_ns[np.maximum(links.work, 0)], -1)
    return implied_waits(recording, end_ns, idle_by_events(rows)) if len(end_ns) else []


def _moved_links(
    links: Links, moved: Moved, implied: Sequence[Wait], recording: Recording
) -> Links:
    wait = moved.old(links.wait)
    number = {call.ident: i for i, call in enumerate(recording.calls)}
    wait[[number[w.ident] for w in implied]] = moved.added
    return Links(moved.old(links.call), moved.old(links.work), wait)


def moved_events(imported: pa.Table, moved: Moved) -> pa.Table:
    """Collectives that point to the events' new rows."""
    for name in ("call_event", "work_event", "wait_event"):
        at = imported.schema.get_field_index(name)
        rows = moved.old(np.asarray(imported.column(name).to_numpy(), np.int64))
        imported = imported.set_column(at, imported.schema.field(at), pa.array(rows, pa.int64()))
    return imported


def _explained(found: list[Row], links: Links) -> set[int]:
    """Imported gloo rows whose call or execution the hooks have too."""
    calls, works = set(links.call.tolist()) - {-1}, set(links.work.tolist()) - {-1}
    return {
        i
        for i, row in enumerate(found)
        if row["source"] == "gloo" and (row["call_event"] in calls or row["work_event"] in works)
    }


def find_links(rows: Rows, recording: Recording) -> Links:
    """The events that belong to each call."""
    calls = recording.calls
    call = np.full(len(calls), -1, np.int64)
    thread = np.array([c.thread for c in calls], np.int64)
    start = np.array([c.start_ns for c in calls], np.int64)
    for operator in sorted({c.operator for c in calls}):
        mine = np.array([i for i, c in enumerate(calls) if c.operator == operator], np.int64)
        named = rows.named(f"c10d::{operator}")
        call[mine] = rows_of_spans(rows, named, thread[mine], start[mine])
    return Links(call, _gloo_links(rows, calls, call), _wait_links(rows, recording))


def _gloo_links(rows: Rows, calls: Sequence[Call], call: I64) -> I64:
    code_of = {name: code for code, name in enumerate(rows.names)}
    kind = np.array(
        [code_of.get(f"gloo:{OPERATORS[c.operator].gloo}", -1) for c in calls], np.int64
    )
    p2p = np.array([OPERATORS[c.operator].p2p for c in calls], np.bool_)
    group = np.array([c.group for c in calls], np.int64)
    # A send or receive is annotated on the calling thread, from inside the call on.
    alike = rows.named("gloo:send", "gloo:recv")
    work = np.full(len(calls), -1, np.int64)
    work[p2p] = rows_inside(rows, alike, call[p2p])
    collectives = np.setdiff1d(rows.named(prefix="gloo:"), alike)
    work[~p2p] = gloo_work_rows(rows, collectives, call[~p2p], kind[~p2p], group[~p2p])
    return work


def _wait_links(rows: Rows, recording: Recording) -> I64:
    first: dict[int, int] = {}
    for annotated, name in ((True, WAIT_NAME), (False, WAIT_TENSOR)):
        waits = [w for w in recording.waits if w.annotated == annotated]
        found = rows_of_spans(
            rows,
            rows.named(name),
            np.array([w.thread for w in waits], np.int64),
            np.array([w.start_ns for w in waits], np.int64),
        )
        _note_first(first, waits, found)
    return np.array([first.get(c.ident, -1) for c in recording.calls], np.int64)


def _note_first(first: dict[int, int], waits: list[Wait], found: I64) -> None:
    for wait, row in zip(waits, found.tolist(), strict=True):
        if row >= 0:
            first[wait.ident] = min(row, first.get(wait.ident, row))


def _pairs(
    events: pa.Table, rows: Rows, links: Links, calls: Sequence[Call], kernels: list[Row]
) -> list[tuple[int, int]]:
    """Which call each communication kernel executes, as (call, position in ``kernels``)."""
    number = {row: i for i, row in enumerate(links.call.tolist()) if row >= 0}
    issued = np.array([k["call_event"] for k in kernels], np.int64)
    around = np.full(len(kernels), -1, np.int64)
    known = np.flatnonzero(issued >= 0)
    at = issued[known]
    around[known] = enclosing_rows(
        np.array(sorted(number), np.int64),
        (rows.start_ns, rows.end_ns, rows.thread),
        (rows.start_ns[at], rows.thread[at]),
    )
    pairs = [(number[row], k) for k, row in enumerate(around.tolist()) if row >= 0]
    left = [k for k, row in enumerate(around.tolist()) if row < 0 and kernels[k]["kind"] in _P2P]
    waiting = set(range(len(calls))) - {c for c, _ in pairs}
    waiting = {i for i in waiting if OPERATORS[calls[i].operator].p2p}
    launched = _launches(events, np.array([kernels[k]["work_event"] for k in left], np.int64))
    fused = sorted((row, k) for row, k in zip(launched.tolist(), left, strict=True) if row >= 0)
    return pairs + _fused_pairs(rows, calls, waiting, fused)


def _launches(events: pa.Table, work: I64) -> I64:
    """Row of the call that launched each device row."""
    kind = events.column("kind").cast(pa.string()).to_numpy(zero_copy_only=False)
    device = np.isin(kind, ("kernel", "memcpy", "memset"))
    return launch_rows(events.column("correlation").to_numpy(), kind == "runtime", device)[work]


def _fused_pairs(
    rows: Rows, calls: Sequence[Call], waiting: set[int], launched: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Batched p2p: one kernel, launched when the batch ends, runs all calls before it.

    Args:
        rows: the events.
        calls: what the hooks saw.
        waiting: p2p calls that no kernel executes yet.
        launched: launching row and number of each p2p kernel without a call, in order.
    """
    pairs: list[tuple[int, int]] = []
    for row, kernel in launched:
        before = {
            i
            for i in waiting
            if calls[i].thread == rows.thread[row] and calls[i].start_ns < rows.start_ns[row]
        }
        pairs += [(i, kernel) for i in sorted(before)]
        waiting = waiting - before
    return pairs


def _hooked_rows(
    recording: Recording,
    links: Links,
    kernels: list[Row],
    pairs: list[tuple[int, int]],
    rows: Rows,
) -> list[tuple[int, Row]]:
    """One row for each call and execution, with the time it was issued."""
    bases: dict[int, list[Row]] = {}
    for number, kernel in pairs:
        bases.setdefault(number, []).append(kernels[kernel])
    # Inside our wait lies the profiler's own row of it, where the backend writes one.
    records = rows_inside(rows, rows.named("record_param_comms"), links.wait)
    merged = []
    for i, call in enumerate(recording.calls):
        own = call_row(call, recording)
        own |= {
            "call_event": int(links.call[i]),
            "work_event": int(links.work[i]),
            "wait_event": int(links.wait[i]),
        }
        several = bases.get(i, [])
        for base in several or [{}]:
            row = own | _from_kernel(base, int(records[i]), len(several) > 1)
            merged.append((call.start_ns, row))
    return merged


def _from_kernel(base: Row, record: int, several: bool) -> Row:
    """What a communication kernel's row knows better than the hook."""
    if not base:
        return {}
    kept = {name: base[name] for name in ("comm_id", "work_event")}
    if base["call_event"] >= 0:
        kept["call_event"] = base["call_event"]
    if record >= 0 or base["wait_event"] >= 0:
        kept["wait_event"] = record if record >= 0 else base["wait_event"]
    if several:  # each kernel moves only its part
        kept |= {name: base[name] for name in ("bytes_in", "bytes_out")}
    return kept


def call_row(call: Call, recording: Recording) -> Row:
    """A row of the collectives table that points to no event yet."""
    group: Group = recording.groups[call.group]
    operator = OPERATORS[call.operator]
    member = recording.rank in group.ranks
    return {
        "kind": operator.kind,
        "call_event": -1,
        "work_event": -1,
        "wait_event": -1,
        "group": call.group,
        "group_key": group.name,
        "group_size": len(group.ranks) or -1,
        "group_rank": group.ranks.index(recording.rank) if member else -1,
        "seq": call.seq,
        "comm_id": 0,
        "p2p": operator.p2p,
        "peer": call.peer,
        "bytes_in": call.bytes_in,
        "bytes_out": call.bytes_out,
        "dtype": call.dtype,
        "in_splits": call.in_splits,
        "out_splits": call.out_splits,
        "is_async": call.is_async,
        "source": "hook",
    }


def as_table(rows: list[Row]) -> pa.Table:
    """Rows as a collectives table."""
    schema = arrow_schema("collectives")
    columns = [
        pa.array(
            [row.get(c.name, c.absent) for row in rows],
            pa.string() if pa.types.is_dictionary(c.type) else c.type,
        )
        for c in COLLECTIVES
    ]
    return pa.table(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


def join_groups(
    recorded: Sequence[Group], imported: Sequence[GroupInfo]
) -> tuple[list[GroupInfo], list[int]]:
    """Groups of both sources, the hooks' first.

    Returns:
        The joined list, and for each imported group its place there.
    """
    joined = [
        GroupInfo(name=g.name, description=g.description, ranks=g.ranks, size=len(g.ranks))
        for g in recorded
    ]
    place = {info.name: i for i, info in reversed(list(enumerate(joined)))}
    group_of = []
    for info in imported:
        same = place.get(info.name, -1)
        if same < 0:
            same = len(joined)
            joined.append(info)
        group_of.append(same)
    return joined, group_of
