"""A large recorded job made from a small real one: its data-parallel axis, widened.

Eight recorded ranks (tensor 2, pipeline 2, data 2) are repeated so many times. Tensor, pipeline
and model-parallel groups stay within a replica; each data-parallel group spans all replicas, so
every rank is tied to every other. So that no two ranks are alike, a replica's host rows are
shifted by a smooth wave of up to 2 us, a different one on each rank, which changes their
durations by some per cent; and the clocks of each replica are off by up to a millisecond. Only
earlier, never later: calls stay before what they launch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from foretrace.replay.build import build, read
from foretrace.replay.build.communicators import communicators
from foretrace.replay.build.identity import match
from foretrace.replay.build.messages import messages
from foretrace.traces.manifest import GroupInfo
from foretrace.traces.store import RankTables, TraceSet, TraceSetWriter

TENSOR, DATA, PIPELINE = 2, 2, 2
WAVE_NS = 2_000
CLOCK_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Base:
    """The small job and which of its operations belong together.

    Attributes:
        path: its trace set.
        group: rank -> group of each operation, as an index into ``groups``, -1 for none.
        number: rank -> sequence number of each operation within its group.
        groups: ranks of each group.
    """

    path: str
    group: dict[int, np.ndarray]
    number: dict[int, np.ndarray]
    groups: tuple[tuple[int, ...], ...]


def widen(source: Path, target: Path, replicas: int, jobs: int) -> None:
    """Write the trace set of ``8 * replicas`` ranks.

    Args:
        source: trace set of the eight ranks.
        target: where to write.
        replicas: how often they are repeated.
        jobs: processes.
    """
    base = _identified(source)
    writer = TraceSetWriter(target)
    work = [(base, str(target), replica, replicas) for replica in range(replicas)]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for _ in pool.map(_write_replica, work, chunksize=4):
            pass
    writer.finish()


def _identified(source: Path) -> Base:
    trace = TraceSet.open(source)
    recording = read(trace)
    shift = build(trace).alignment.offset_ns
    comms = [
        c
        for rank, (events, talks) in recording.tables.items()
        for c in communicators(rank, events, talks, recording.groups[rank])
    ]
    sent = messages({r: c for r, (_, c) in recording.tables.items()}, recording.groups)
    found = match(comms, sent, shift)
    group = {r: np.full(len(c.kind), -1) for r, (_, c) in recording.tables.items()}
    number = {r: np.full(len(c.kind), -1) for r, (_, c) in recording.tables.items()}
    counts = np.zeros(len(found.groups), np.int64)
    for i, g in enumerate(found.group):
        for at in range(found.ptr[i], found.ptr[i + 1]):
            group[int(found.rank[at])][found.operation[at]] = g
            number[int(found.rank[at])][found.operation[at]] = counts[g]
        counts[g] += 1
    return Base(str(source), group, number, found.groups)


def _place(rank: int) -> tuple[int, int, int]:
    """Tensor, data and pipeline coordinate of a recorded rank."""
    return rank % TENSOR, rank // TENSOR % DATA, rank // (TENSOR * DATA)


def _rank(rank: int, replica: int, replicas: int) -> int:
    """Number of a replica's rank in the large job."""
    tensor, data, pipeline = _place(rank)
    return tensor + TENSOR * (data + DATA * replica + DATA * replicas * pipeline)


def _members(group: tuple[int, ...], replica: int, replicas: int) -> list[int]:
    """A group in the large job: all replicas' ranks where it lies along the data axis."""
    along_data = len({_place(r)[1] for r in group}) > 1
    of: Iterable[int] = range(replicas) if along_data else [replica]
    return sorted(_rank(r, k, replicas) for r in group for k in of)


def _write_replica(work: tuple[Base, str, int, int]) -> None:
    base, target, replica, replicas = work
    trace, writer = TraceSet.open(base.path), TraceSetWriter(target)
    clock = int(np.random.default_rng(replica).integers(-CLOCK_NS, CLOCK_NS))
    for rank in trace.ranks:
        tables = trace.tables(rank)
        number = _rank(rank, replica, replicas)
        events, place = _moved(tables.events, number, clock)
        own = sorted({int(g) for g in base.group[rank] if g >= 0})
        groups = [_members(base.groups[g], replica, replicas) for g in own]
        info = msgspec.structs.replace(
            tables.info,
            rank=number,
            world_size=TENSOR * DATA * PIPELINE * replicas,
            groups=[
                GroupInfo(name=f"group {g}", ranks=ranks, size=len(ranks))
                for g, ranks in zip(own, groups, strict=True)
            ],
            steps=[
                msgspec.structs.replace(s, start_ns=s.start_ns + clock, end_ns=s.end_ns + clock)
                for s in tables.info.steps
            ],
            span_ns=(0, 0),
        )
        local = np.array([own.index(g) if g >= 0 else -1 for g in base.group[rank]], np.int32)
        collectives = _regrouped(tables.collectives, local, own, groups, number)
        collectives = _put(collectives, seq=base.number[rank])
        rows = {
            name: np.where(ids >= 0, place[ids], -1)
            for name in ("call_event", "work_event", "wait_event")
            for ids in [collectives[name].to_numpy()]
        }
        writer.write_rank(RankTables(info, events, _put(collectives, **rows)))


def _moved(events: pa.Table, seed: int, clock_ns: int) -> tuple[pa.Table, np.ndarray]:
    """Events with the rank's wave and clock, in order again, and the new place of each row."""
    random = np.random.default_rng(seed)
    height, phase = random.uniform(0, WAVE_NS), random.uniform(0, 2 * np.pi)
    period = random.uniform(100_000, 1_000_000)
    start = events["start_ns"].to_numpy()
    end = start + events["dur_ns"].to_numpy()
    host = events["device"].to_numpy() < 0
    first = int(start.min())

    def moved(time: np.ndarray) -> np.ndarray:
        wave = (1 + np.sin(2 * np.pi * (time - first) / period + phase)) / 2
        return np.where(host, time - np.rint(height * wave).astype(np.int64), time) + clock_ns

    begin, finish = moved(start), moved(end)
    order = np.lexsort((np.arange(len(begin)), begin))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    table = _put(events, start_ns=begin, dur_ns=finish - begin).take(pa.array(order))
    return table.combine_chunks(), place


def _regrouped(
    table: pa.Table, local: np.ndarray, own: list[int], groups: list[list[int]], rank: int
) -> pa.Table:
    """Collectives that name their group as recent recordings do."""
    size = np.array([*(len(g) for g in groups), -1], np.int32)
    place = np.array([*(g.index(rank) for g in groups), -1], np.int32)
    names = pa.array([f"group {own[g]}" if g >= 0 else "" for g in local]).dictionary_encode()
    return _put(
        table, group=local, group_size=size[local], group_rank=place[local], group_key=names
    )


def _put(table: pa.Table, **columns: np.ndarray | pa.Array) -> pa.Table:
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        array = values if isinstance(values, pa.Array) else pa.array(values)
        table = table.set_column(at, field, array.cast(field.type))
    return table


def processes() -> int:
    """Processes that the machine has processors for."""
    return len(os.sched_getaffinity(0))
