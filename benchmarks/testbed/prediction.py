"""Predictions from recorded runs, on disk before any changed job has run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from foretrace.replay.build import build_graph
from foretrace.replay.engine import replay
from foretrace.replay.graph import JobGraph, TaskKind
from foretrace.replay.timeline import step_windows
from foretrace.replay.transforms.typical import Typical
from foretrace.traces.store import TraceSet
from testbed.interventions import INTERVENTIONS, RECORDED, SINGLE, Intervention
from testbed.prices import fitted

_HOST = (TaskKind.HOST, TaskKind.CALL, TaskKind.STALL, TaskKind.SYNC)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a change is said to do; times of a step in ms.

    Attributes:
        name: the intervention.
        recorded_ms: the recorded job, replayed without any change.
        predicted_ms: the changed job.
        naive_ms: the changed job if nothing overlapped and nobody waited: the most that any
            rank computes and communicates.
    """

    name: str
    recorded_ms: float
    predicted_ms: float
    naive_ms: float


def predict_all(
    folder: Path, interventions: Sequence[Intervention] = INTERVENTIONS
) -> list[Prediction]:
    """Predictions of all interventions from the trace sets in a folder.

    Args:
        folder: holds a ``NAME.trace`` for each recorded job and for the single operations.
        interventions: what to predict.
    """
    prices = fitted(_graph(folder, SINGLE.kind), SINGLE.mbit)
    graphs = {key: Typical()(_graph(folder, key)) for key in {i.recorded for i in interventions}}
    found = []
    for one in interventions:
        graph = graphs[one.recorded]
        changed = one.predict(graph, prices)
        found.append(
            Prediction(one.name, step_ms(graph), step_ms(changed), nothing_overlaps_ms(changed))
        )
    return found


def step_ms(graph: JobGraph) -> float:
    """Typical step, ms: median time between the ends of steps, the last rank counting.

    Ranks enter a step at different times, so that from a step's first begin to its last end
    is more than a step.
    """
    ends = np.maximum.accumulate(step_windows(replay(graph)).end_ns)
    return float(np.median(np.diff(ends))) / 1e6


def nothing_overlaps_ms(graph: JobGraph) -> float:
    """What a step takes a rank that does one thing after another and never waits, ms.

    The median over steps of the busiest rank.
    """
    counts = np.isin(graph.kind, (*_HOST, TaskKind.COMM)) & (graph.step >= 0) & (graph.rank >= 0)
    tasks = np.flatnonzero(counts)
    steps, step = np.unique(graph.step[tasks], return_inverse=True)
    ranks, rank = np.unique(graph.rank[tasks], return_inverse=True)
    total = np.zeros((len(steps), len(ranks)))
    np.add.at(total, (step, rank), graph.dur_ns[tasks])
    return float(np.median(total.max(axis=1))) / 1e6


def write_predictions(path: Path, folder: Path, found: Sequence[Prediction]) -> str:
    """Write predictions with the time and what they were made of; returns the file's SHA-256.

    Raises:
        FileExistsError: there are predictions already; they are never replaced.
    """
    names = [*RECORDED, SINGLE.kind]
    content = {
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "trace_sets": {name: digest(folder / f"{name}.trace") for name in names},
        "predictions": [asdict(one) for one in found],
    }
    with path.open("x") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_predictions(path: Path) -> list[Prediction]:
    """What :func:`write_predictions` wrote."""
    rows: Sequence[Mapping[str, float]] = json.loads(path.read_text())["predictions"]
    return [Prediction(**row) for row in rows]  # type: ignore[arg-type]


def digest(folder: Path) -> str:
    """SHA-256 over the names and contents of all files of a folder."""
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        total.update(str(path.relative_to(folder)).encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _graph(folder: Path, name: str) -> JobGraph:
    return build_graph(TraceSet.open(str(folder / f"{name}.trace")))
