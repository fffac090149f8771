"""Devices that wait for their host."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from foretrace.analysis.activity import device_ranks
from foretrace.analysis.causes.case import Case, Cause
from foretrace.analysis.causes.wording import by_rank, ms, named_ranks, short_name
from foretrace.replay.graph import I64, TaskKind

_LOADER = re.compile(r"DataLoader|data_?load|next_batch|_next_data|get_batch", re.IGNORECASE)


def launch_bound(case: Case) -> Iterator[Cause]:
    """Host work between launches takes half as long."""
    mask = case.of_kind(TaskKind.HOST, TaskKind.CALL) & device_ranks(case.graph)
    tasks = np.flatnonzero(mask)
    tasks = tasks[~_is_loader(case, tasks)]
    if not len(tasks):
        return
    ranks, _ = by_rank(case, tasks, least=0.5)
    calls = int((case.graph.kind[tasks] == TaskKind.CALL).sum())
    mean = case.graph.dur_ns[tasks].sum() / max(calls, 1)
    top = _top_names(case, tasks)
    yield Cause(
        kind="host_bound",
        title=f"Devices wait for launches: {ms(case.on_path(tasks))} of host work a step "
        "on the critical path",
        ranks=ranks,
        tasks=tasks,
        dur_ns=case.graph.dur_ns[tasks] // 2,
        evidence=(
            f"{calls / case.steps / max(len(ranks), 1):,.0f} launches a step and rank, "
            f"{ms(mean)} of host work for each",
            *([f"most on the path: {top}"] if top else []),
            "priced as if the host were twice as fast",
        ),
        action=(
            "Launch less: torch.compile, CUDA graphs, fused optimizers (fused=True, foreach), "
            "larger micro-batches; take Python work and logging out of the step."
        ),
        confidence=2,
    )


def data_loading(case: Case) -> Iterator[Cause]:
    """Waiting for the next batch is gone."""
    tasks = np.flatnonzero(case.of_kind(TaskKind.HOST, TaskKind.STALL))
    tasks = tasks[_is_loader(case, tasks)]
    if not len(tasks):
        return
    ranks, shares = by_rank(case, tasks)
    yield Cause(
        kind="data_loading",
        title=f"{named_ranks(ranks).capitalize()} load data for {ms(shares[0])} a step"
        if len(ranks) > 1
        else f"Rank {ranks[0]} loads data for {ms(shares[0])} a step",
        ranks=ranks,
        tasks=tasks,
        dur_ns=np.zeros(len(tasks), np.int64),
        evidence=(f"{ms(case.on_path(tasks))} of it on the critical path",),
        action="More loader workers, prefetch_factor, pinned memory; decode on the device.",
        confidence=2,
    )


def _is_loader(case: Case, tasks: I64) -> np.ndarray:
    names = np.array([bool(_LOADER.search(name)) for name in case.graph.names] or [False])
    return names[case.graph.name[tasks]]


def _top_names(case: Case, tasks: I64, count: int = 3) -> str:
    """Host operations with the most time on the critical path, in words."""
    total = np.bincount(case.graph.name[tasks], weights=case.path_ns[tasks])
    order = np.argsort(-total, kind="stable")[:count]
    return ", ".join(
        f"{short_name(case.graph.names[i], 40)} {ms(total[i])}" for i in order if total[i] > 0
    )
