"""What each kind of work is worth: the step if it ran twice as fast, by replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from foretrace.analysis.activity import compute_tasks
from foretrace.analysis.causes.case import Case, make_case
from foretrace.analysis.communication import labels
from foretrace.replay.engine import replay_each
from foretrace.replay.graph import I64, JobGraph, TaskKind
from foretrace.replay.timeline import step_time, step_windows
from foretrace.traces.schema import COLLECTIVE_KINDS

if TYPE_CHECKING:
    import pandas as pd


def sensitivity(source: JobGraph | Case, top: int = 5) -> pd.DataFrame:
    """How much shorter a step gets when one kind of work takes half as long.

    Args:
        source: a job graph, or a case made of one.
        top: how many single kernels to price, those with most time on the critical path.

    Returns:
        ``what, path_ns, path_share, saving_ns, saving_share``, best saving first.
        ``path_ns`` is the work's time on the critical path of a step; ``saving_ns`` is what
        halving all of it saves, at most half of that.
    """
    import pandas as pd

    case = source if isinstance(source, Case) else make_case(source)
    on_path = {what: (case.on_path(t), t) for what, t in _kinds_of_work(case, top).items()}
    priced = {what: tasks for what, (time, tasks) in on_path.items() if time > 0}
    rows = [
        (run.label, on_path[run.label][0], case.step_ns - step_time(step_windows(run)))
        for run in replay_each(case.graph, _halved(case.graph, priced))
    ]
    total = max(case.step_ns, 1)
    table = pd.DataFrame(rows, columns=["what", "path_ns", "saving_ns"])
    table = table.astype({"path_ns": float, "saving_ns": float})
    table.insert(2, "path_share", table["path_ns"] / total)
    table["saving_share"] = table["saving_ns"] / total
    table = table.round({"path_ns": 0, "saving_ns": 0}).astype(
        {"path_ns": np.int64, "saving_ns": np.int64}
    )
    return table.sort_values("saving_ns", ascending=False, kind="stable", ignore_index=True)


def _halved(graph: JobGraph, priced: dict[str, I64]) -> Iterator[tuple[str, I64]]:
    """Durations with one kind of work at a time halved."""
    for what, tasks in priced.items():
        dur = graph.dur_ns.copy()
        dur[tasks] //= 2
        yield what, dur


def _kinds_of_work(case: Case, top: int) -> dict[str, I64]:
    """Tasks by what people would speed up."""
    graph = case.graph
    compute = compute_tasks(graph) & case.in_steps
    on_host = np.isin(graph.kind, (TaskKind.HOST, TaskKind.CALL)) & ~compute & case.in_steps
    kinds = {
        "computation": np.flatnonzero(compute),
        "host work": np.flatnonzero(on_host),
        "copies": np.flatnonzero(case.of_kind(TaskKind.MEMCPY, TaskKind.MEMSET)),
    }
    comm = np.flatnonzero(case.of_kind(TaskKind.COMM))
    code = labels(graph).kind[comm]
    for kind in np.unique(code).tolist():
        kinds[COLLECTIVE_KINDS[kind]] = comm[code == kind]
    tasks = kinds["computation"]
    by_name = np.bincount(graph.name[tasks], weights=case.path_ns[tasks])
    for name in np.argsort(-by_name, kind="stable")[:top].tolist():
        kinds[graph.names[name]] = tasks[graph.name[tasks] == name]
    return kinds
