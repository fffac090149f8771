"""The tasks of a rank and what each waits for, out of its tables, as a Chakra graph has them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.traces.schema import DEVICE_WORK_KINDS
from foretrace.traces.steps import launch_rows
from foretrace.traces.store import RankTables

I64 = NDArray[np.int64]

_COLUMNS = ("shapes", "dtypes", "rf_id", "sequence")
_HOST_GAP = "host work between calls"


def tasks_of(
    tables: RankTables, groups: list[int]
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Tasks and edges of one rank.

    Args:
        tables: of the rank.
        groups: number in the whole job of each of the rank's groups, -1 where its members
            are not known.

    Returns:
        The fields of ``Tasks``, those of ``Edges``, and what cannot be said.
    """
    events = {name: tables.events[name].to_numpy() for name in _NUMBERS}
    events |= {n: np.array(tables.events[n].to_pylist(), object) for n in ("kind", "name")}
    if tables.dependencies is not None:
        rows = np.arange(len(tables.events))
        fields = _fields(tables, events, rows)
        edges = {
            "source": tables.dependencies["source"].to_numpy(),
            "target": tables.dependencies["target"].to_numpy(),
            "is_data": np.array([k == "data" for k in tables.dependencies["kind"].to_pylist()]),
        }
        edges["is_data"] = edges["is_data"].astype(np.bool_)
        notes = []
    else:
        rows = _rows(tables, events)
        fields, edges = _recorded_order(tables, events, rows)
        notes = ["no dependencies recorded: the order of threads and streams, and launches"]
    fields["communication"] = _communication(tables, rows, groups)
    return fields, edges, notes + _unsaid(tables, fields["communication"])


_NUMBERS = ("start_ns", "dur_ns", "thread", "device", "stream", "correlation")


def _fields(tables: RankTables, events: dict[str, Any], rows: I64) -> dict[str, Any]:
    return {
        **{n: events[n][rows].tolist() for n in ("name", "kind")},
        **{
            n: events[n][rows].astype(np.int64)
            for n in ("start_ns", "dur_ns", "thread", "device", "stream")
        },
        "columns": {
            n: np.array(tables.events[n].to_pylist(), object)[rows].tolist() for n in _COLUMNS
        },
    }


def _rows(tables: RankTables, events: dict[str, Any]) -> I64:
    """Device work, calls of the device's library, and whatever else communicates.

    Where nothing calls a device, the operators that no other one called.
    """
    kind = events["kind"]
    chosen = np.isin(kind, (*DEVICE_WORK_KINDS, "runtime"))
    if not (kind == "runtime").any():
        hosts = np.flatnonzero(kind == "host_op")
        spans = (
            events["start_ns"],
            events["start_ns"] + events["dur_ns"],
            events["thread"].astype(np.int64),
        )
        chosen[hosts[_outermost(hosts, spans)]] = True
    work = tables.collectives["work_event"].to_numpy()
    chosen[work[work >= 0]] = True
    rows: I64 = np.flatnonzero(chosen)
    return rows


def _outermost(rows: I64, spans: tuple[I64, I64, I64]) -> NDArray[np.bool_]:
    """Which of the rows, sorted by start, lie in no other one of their thread."""
    start, end, thread = (s[rows] for s in spans)
    outer = np.zeros(len(rows), np.bool_)
    for number in np.unique(thread):
        here = np.flatnonzero(thread == number)
        so_far = np.maximum.accumulate(end[here])
        outer[here] = np.r_[True, start[here][1:] >= so_far[:-1]]
    return outer


def _recorded_order(
    tables: RankTables, events: dict[str, Any], rows: I64
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tasks with the host's time between calls as tasks of their own, and edges in order."""
    fields = _fields(tables, events, rows)
    launch = launch_rows(
        events["correlation"],
        events["kind"] == "runtime",
        np.isin(events["kind"], DEVICE_WORK_KINDS),
    )[rows]
    task = np.full(len(events["kind"]), -1, np.int64)
    task[rows] = np.arange(len(rows))
    launched = np.flatnonzero(launch >= 0)
    pairs = [np.stack([task[launch[launched]], launched])]
    gaps: list[tuple[int, int, int]] = []  # (thread, start, duration)
    lanes = np.stack([fields["device"], fields["thread"], fields["stream"]], axis=1)
    for lane in np.unique(lanes, axis=0):
        here = np.flatnonzero((lanes == lane).all(axis=1))
        here = here[np.argsort(fields["start_ns"][here], kind="stable")]
        if lane[0] >= 0:
            pairs.append(np.stack([here[:-1], here[1:]]))
            continue
        pairs.append(_with_gaps(fields, here, int(lane[1]), len(rows), gaps))
    _append_gaps(fields, gaps)
    source, target = np.concatenate(pairs, axis=1)
    known = source >= 0
    return fields, {
        "source": source[known],
        "target": target[known],
        "is_data": np.ones(int(known.sum()), np.bool_),
    }


def _with_gaps(
    fields: dict[str, Any], here: I64, thread: int, first: int, gaps: list[tuple[int, int, int]]
) -> I64:
    """Edges of one thread's calls in order, through the gaps between them."""
    end = fields["start_ns"][here] + fields["dur_ns"][here]
    begin = np.maximum.accumulate(end)[:-1]
    pairs: list[tuple[int, int]] = []
    for a, b, at, start in zip(
        here[:-1].tolist(),
        here[1:].tolist(),
        begin.tolist(),
        fields["start_ns"][here[1:]].tolist(),
        strict=True,
    ):
        if start > at:
            gap = first + len(gaps)
            gaps.append((thread, at, start - at))
            pairs += [(a, gap), (gap, b)]
        else:
            pairs.append((a, b))
    return np.array(pairs, np.int64).reshape(-1, 2).T


def _append_gaps(fields: dict[str, Any], gaps: list[tuple[int, int, int]]) -> None:
    thread, start, duration = np.array(gaps, np.int64).reshape(-1, 3).T
    absent = np.full(len(gaps), -1, np.int64)
    added = {
        "start_ns": start,
        "dur_ns": duration,
        "thread": thread,
        "device": absent,
        "stream": absent,
    }
    for name, values in added.items():
        fields[name] = np.concatenate([fields[name], values])
    fields["name"] = fields["name"] + [_HOST_GAP] * len(gaps)
    fields["kind"] = fields["kind"] + ["host_op"] * len(gaps)
    blank: dict[str, Any] = {"shapes": "", "dtypes": "", "rf_id": -1, "sequence": -1}
    fields["columns"] = {n: v + [blank[n]] * len(gaps) for n, v in fields["columns"].items()}


def _communication(tables: RankTables, rows: I64, groups: list[int]) -> dict[int, dict[str, Any]]:
    task = {int(row): i for i, row in enumerate(rows)}
    found = {}
    for row in tables.collectives.to_pylist():
        if row["work_event"] in task:
            row["group"] = groups[row["group"]] if row["group"] >= 0 else -1
            found[task[row["work_event"]]] = row
    return found


def _unsaid(tables: RankTables, communication: dict[int, dict[str, Any]]) -> list[str]:
    notes = []
    left = len(tables.collectives) - len(communication)
    if left:
        notes.append(f"{left} operations without a task that carries them out are left out")
    sizeless = [r for r in communication.values() if max(r["bytes_in"], r["bytes_out"]) <= 0]
    if sizeless:
        notes.append(
            f"{len(sizeless)} operations of unknown size keep their measured duration "
            "and are no communication for a simulator"
        )
    peerless = [r for r in communication.values() if r["p2p"] and r["peer"] < 0]
    if peerless:
        notes.append(f"{len(peerless)} messages of unknown peer keep their measured duration")
    groupless = [r for r in communication.values() if r["group"] < 0 and not r["p2p"]]
    if groupless:
        notes.append(f"{len(groupless)} operations name no group: simulators take all ranks")
    return notes
