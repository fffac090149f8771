"""Which kernels take the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrace.analysis.activity import compute_tasks
from foretrace.analysis.intervals import total_by
from foretrace.replay.graph import TaskKind, Timeline

if TYPE_CHECKING:
    import pandas as pd

CLASSES = ("compute", "communication", "copy")


def kernels(timeline: Timeline, step: int | None = None) -> pd.DataFrame:
    """Device work by name, all ranks together; host work for ranks without a device.

    Args:
        timeline: measured, replayed or what-if.
        step: only tasks of this step; None for all.

    Returns:
        ``name, class, ranks, count, total_ns, share, mean_ns, max_ns``, longest total first.
        ``ranks`` counts the ranks that run it; ``share`` is of the total of all rows.
        Communication counts its execution only, never its waiting.
    """
    import pandas as pd

    graph = timeline.graph
    code = np.full(len(graph), -1, np.int64)
    code[compute_tasks(graph)] = CLASSES.index("compute")
    code[graph.kind == TaskKind.COMM] = CLASSES.index("communication")
    copies = np.isin(graph.kind, (TaskKind.MEMCPY, TaskKind.MEMSET))
    code[copies] = CLASSES.index("copy")
    chosen = code >= 0 if step is None else (code >= 0) & (graph.step == step)
    tasks = np.flatnonzero(chosen)
    key, row = np.unique(graph.name[tasks] * len(CLASSES) + code[tasks], return_inverse=True)
    dur = (timeline.end_ns - timeline.start_ns)[tasks]
    longest = np.zeros(len(key), np.int64)
    np.maximum.at(longest, row, dur)
    rank_of = np.unique(np.stack([row, graph.rank[tasks]], axis=1), axis=0)[:, 0]
    total = total_by(row, dur, len(key))
    count = np.bincount(row, minlength=len(key))
    table = pd.DataFrame(
        {
            "name": [graph.names[k // len(CLASSES)] for k in key.tolist()],
            "class": [CLASSES[k % len(CLASSES)] for k in key.tolist()],
            "ranks": np.bincount(rank_of, minlength=len(key)),
            "count": count,
            "total_ns": total,
            "share": total / max(int(total.sum()), 1),
            "mean_ns": np.round(total / np.maximum(count, 1)).astype(np.int64),
            "max_ns": longest,
        }
    )
    return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)
