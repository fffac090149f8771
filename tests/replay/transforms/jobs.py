"""Jobs for the tests of transforms: what a small machine runs, with the bytes of each operation."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.replay.machine import Machine, Op
from tests.replay.traces import Job, job, write

from foretrace.replay.engine import replay
from foretrace.replay.graph import JobGraph, TaskKind
from foretrace.replay.scenario import Scenario
from foretrace.replay.scenariofile import parse_scenarios
from foretrace.replay.timeline import step_windows
from foretrace.replay.transforms import transform_class
from foretrace.replay.transforms.base import Transform
from foretrace.traces.store import TraceSet

US = 1_000
MB = 1_000_000


def ran(path: Path, programs: list[list[Op]], sizes: list[int] | None = None) -> Job:
    """What the machine recorded of these programs, as a job graph."""
    machine = Machine(programs, [0] * len(programs))
    built = job(path, *_with_bytes(machine, sizes))
    if sizes is not None:
        assert built.graph.collectives.bytes.tolist() == sizes
    return built


def recorded(path: Path, programs: list[list[Op]], sizes: list[int]) -> TraceSet:
    """The same as a trace set on disk."""
    return write(path / "job.trace", *_with_bytes(Machine(programs, [0] * len(programs)), sizes))


def _with_bytes(machine: Machine, sizes: list[int] | None) -> list:  # type: ignore[type-arg]
    traces = machine.traces()
    for trace in traces:
        for operation, size in zip(trace.operations, sizes or [], strict=False):
            operation["bytes_in"] = operation["bytes_out"] = size
    return traces


def transform(name: str, **fields: object) -> Transform:
    """A transform as a scenario file would give it."""
    import msgspec

    return msgspec.convert(fields, transform_class(name))


def scenario(text: str) -> Scenario:
    """The only scenario of a TOML text."""
    (found,) = parse_scenarios(text)
    return found


def step_us(graph: JobGraph) -> float:
    """Length of the job's only step."""
    (length,) = step_windows(replay(graph)).dur_ns.tolist()
    return float(length) / US


def ends_us(graph: JobGraph, kind: TaskKind, rank: int) -> list[float]:
    """When the tasks of a kind end on a rank, in order."""
    end = replay(graph).end_ns[(graph.kind == kind) & (graph.rank == rank)]
    return sorted((end / US).tolist())


def with_bytes(graph: JobGraph, sizes: list[int]) -> JobGraph:
    """The graph with other sizes of its collectives."""
    table = replace(graph.collectives, bytes=np.array(sizes, np.int64))
    return replace(graph, collectives=table)


def alike(graph: JobGraph) -> JobGraph:
    """The graph with names that are the same on every rank: ``kernel .3`` for ``kernel 1.3``."""
    plain = [re.sub(r" \d+\.", " .", name) for name in graph.names]
    names = tuple(dict.fromkeys(plain))
    number = np.array([names.index(name) for name in plain], np.int32)
    return replace(graph, names=names, name=number[graph.name])
