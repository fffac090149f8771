"""The graph of some ranks, reduced to what other ranks or the length of a step depend on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from foretrace.replay.build.labelkernel import distinct, grouped
from foretrace.replay.contract.segments import Segments, contract
from foretrace.replay.graph import TASK_COLUMNS, EdgeKind, JobGraph, StepMarks, TaskKind
from foretrace.replay.timeline import IS_DEVICE


def reduced(graph: JobGraph) -> JobGraph:
    """Only the tasks that other ranks or the length of a step depend on, and segments.

    Kept are communication that meets other ranks, step marks, and for each rank and step a task
    that stands for the end of its last device work. Task 0 is time zero.

    Args:
        graph: some ranks without the rendezvous between them; tasks with a number in
            ``collective`` are those that meet other ranks.
    """
    whole = with_last_work(graph)
    kept = whole.collective >= 0
    kept[whole.steps.begin] = kept[whole.steps.end] = True
    kept[len(graph) :] = True
    return _as_graph(whole, contract(whole, kept))


def with_last_work(graph: JobGraph) -> JobGraph:
    """The graph with one more task for each rank and step: it follows all device work there.

    A kernel without a duration, so that whatever asks for the end of a step finds it.
    """
    counts = IS_DEVICE[graph.kind] & np.isin(graph.step, graph.steps.step)
    work = np.flatnonzero(counts)
    groups, which = distinct((graph.rank[work].astype(np.int64) << 32) + graph.step[work])
    order, first = grouped(which, len(groups))
    end = np.full(len(groups), np.iinfo(np.int64).min)
    np.maximum.at(end, which, graph.measured_end_ns[work])
    last = work[order[first[:-1]]]
    added: dict[str, Any] = {name: getattr(graph, name)[last] for name in TASK_COLUMNS}
    added |= {
        "kind": np.full(len(groups), TaskKind.KERNEL, np.int8),
        "dur_ns": np.zeros(len(groups), np.int64),
        "event": np.full(len(groups), -1),
        "collective": np.full(len(groups), -1, np.int32),
        "measured_start_ns": end,
        "measured_end_ns": end,
    }
    ptr = len(graph.pred) + first[1:]
    return replace(
        graph,
        **{name: _joined(getattr(graph, name), added[name]) for name in TASK_COLUMNS},
        pred_ptr=_joined(graph.pred_ptr, ptr),
        pred=_joined(graph.pred, work[order]),
        edge_kind=_joined(graph.edge_kind, np.full(len(work), EdgeKind.MARK)),
        edge_delay_ns=_joined(graph.edge_delay_ns, np.zeros(len(work), np.int64)),
    )


def _as_graph(graph: JobGraph, segments: Segments) -> JobGraph:
    """Kept tasks and segments as a job graph whose task 0 is time zero."""
    task = segments.task
    number = np.full(len(graph), -1, np.int64)
    number[task] = np.arange(1, len(task) + 1)
    origin: dict[str, int] = dict.fromkeys(TASK_COLUMNS, -1)
    origin |= {"kind": TaskKind.SKEW, "dur_ns": 0, "name": 0}
    first = int(graph.measured_start_ns.min()) if len(graph) else 0
    origin |= {"measured_start_ns": first, "measured_end_ns": first}
    steps = graph.steps
    return replace(
        graph,
        **{
            name: _joined(np.array([origin[name]], getattr(graph, name).dtype), values[task])
            for name in TASK_COLUMNS
            for values in [getattr(graph, name)]
        },
        pred_ptr=_joined(np.zeros(1, np.int64), segments.ptr),
        pred=segments.source + 1,
        edge_kind=np.full(len(segments.source), EdgeKind.SEGMENT, np.int8),
        edge_delay_ns=segments.weight_ns,
        steps=StepMarks(steps.step, steps.rank, number[steps.begin], number[steps.end]),
    )


def _joined(a: Any, b: np.ndarray) -> Any:
    """Both, in the type of the first."""
    return np.concatenate([a, b.astype(a.dtype)])
