"""Ranks that take longer than their peers for the same work, or have more of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.activity import compute_tasks, device_ranks
from foretrace.analysis.causes.case import Case, Cause
from foretrace.analysis.causes.wording import ms, short_name
from foretrace.analysis.groups import ranks_text
from foretrace.analysis.intervals import F64
from foretrace.replay.graph import I64, TaskKind

SAME_WORK = 0.02
"""Ranks are peers when the numbers of their tasks by name differ by less than this share."""

LEAST_EXCESS = 0.02
"""A rank is slow when it takes this much longer than its peers."""

MOST_RANKS = 3
"""So many slow ranks are looked at one by one."""


@dataclass(frozen=True, slots=True)
class Work:
    """Tasks of one sort by name and rank; matrices of shape ``(names, ranks)``.

    Attributes:
        tasks: the tasks, shape ``(k,)``.
        name: row of each task.
        column: column of each task.
        ranks: rank of each column.
        count: how many.
        total_ns: their summed duration.
    """

    tasks: I64
    name: I64
    column: I64
    ranks: I64
    count: I64
    total_ns: F64

    @classmethod
    def of(cls, case: Case, mask: NDArray[np.bool_]) -> Work:
        """Gather the tasks that ``mask`` picks."""
        tasks = np.flatnonzero(mask)
        names, name = np.unique(case.graph.name[tasks], return_inverse=True)
        ranks, column = np.unique(case.graph.rank[tasks], return_inverse=True)
        shape = (len(names), len(ranks))
        cell = name * max(len(ranks), 1) + column
        size = shape[0] * shape[1]
        count = np.bincount(cell, minlength=size).reshape(shape)
        weights = case.graph.dur_ns[tasks].astype(np.float64)
        summed = np.bincount(cell, weights=weights, minlength=size).reshape(shape)
        total_ns: F64 = np.asarray(summed, np.float64)
        return cls(tasks, name, column, ranks.astype(np.int64), count, total_ns)

    def peers(self, column: int) -> NDArray[np.bool_]:
        """Which ranks run the same tasks as this one, itself included."""
        mine = self.count[:, column]
        difference = np.abs(self.count - mine[:, None]).sum(axis=0)
        result: NDArray[np.bool_] = difference <= SAME_WORK * max(mine.sum(), 1)
        return result

    def typical_ns(self, column: int) -> F64:
        """Total by name that this rank's peers typically take, shape ``(names,)``."""
        peers = self.peers(column)
        peers[column] = False
        if not peers.any():
            return self.total_ns[:, column]
        mean = self.total_ns[:, peers] / np.maximum(self.count[:, peers], 1)
        result: F64 = np.median(mean, axis=1) * self.count[:, column]
        return np.where((self.count[:, peers] > 0).all(axis=1), result, self.total_ns[:, column])


def slow_devices(case: Case) -> Iterator[Cause]:
    """A rank whose computation takes longer than the same computation elsewhere."""
    work = Work.of(case, compute_tasks(case.graph) & case.in_steps)
    on_device = bool(device_ranks(case.graph).any())
    what = "device" if on_device else "process"
    action = (
        "Compare clocks, power, temperature and ECC counters of this GPU (nvidia-smi -q), look "
        "for another job on it, and swap it for another one to see whether the slowness moves."
        if on_device
        else "Look for other load on the cores of this process (pinning, cgroups, NUMA) or a "
        "slower host."
    )
    yield from _slow(case, work, ("slow_device", what, action))


def slow_hosts(case: Case) -> Iterator[Cause]:
    """A rank whose host takes longer than other hosts for the same work."""
    mask = case.of_kind(TaskKind.HOST, TaskKind.CALL) & device_ranks(case.graph)
    action = (
        "Look for other load on the cores of this process, thread pinning and NUMA placement, "
        "CPU frequency, and Python-side differences such as logging on one rank only."
    )
    yield from _slow(case, Work.of(case, mask), ("slow_host", "host", action))


def uneven_work(case: Case) -> Iterator[Cause]:
    """Ranks with more computation than others: all would have the mean."""
    work = Work.of(case, compute_tasks(case.graph) & case.in_steps)
    if len(work.ranks) < 2:
        return
    total = work.total_ns.sum(axis=0)
    mean = float(total.mean())
    most = int(np.argmax(total))
    if mean <= 0 or total[most] < 1.05 * mean:
        return
    factor = mean / np.maximum(total, 1)
    heavy = tuple(int(r) for r in work.ranks[total > 1.02 * mean])
    yield Cause(
        kind="uneven_work",
        title=f"Computation is uneven: rank {work.ranks[most]} has "
        f"{total[most] / mean:.2f} times the mean",
        ranks=heavy,
        tasks=work.tasks,
        dur_ns=_scaled(case, work, factor[work.column]),
        evidence=(
            f"computation a step: {ms(total.min() / case.steps)} (rank "
            f"{work.ranks[np.argmin(total)]}) to {ms(total[most] / case.steps)} (rank "
            f"{work.ranks[most]}), mean {ms(mean / case.steps)}",
            "priced as if the same work were spread evenly over all ranks",
        ),
        action=(
            "Move work between ranks: split pipeline stages by time instead of by layers, "
            "balance sequence lengths or experts, spread embedding and loss."
        ),
        confidence=1,
    )


def _slow(case: Case, work: Work, words: tuple[str, str, str]) -> Iterator[Cause]:
    """Causes for the ranks with the most excess over their peers."""
    if len(work.ranks) < 2:
        return
    total = work.total_ns.sum(axis=0)
    typical = np.stack([work.typical_ns(c) for c in range(len(work.ranks))], axis=1)
    excess = np.maximum(total - typical.sum(axis=0), 0)
    share = total / np.maximum(typical.sum(axis=0), 1) - 1
    worst = np.argsort(-excess, kind="stable")
    slow = [c for c in worst.tolist() if share[c] >= LEAST_EXCESS]
    found = [_slow_rank(case, work, c, typical[:, c], words) for c in slow[:MOST_RANKS]]
    yield from found
    if 1 < len(slow) <= len(total) // 2:
        yield _slow_together(case, [_slow_rank(case, work, c, typical[:, c], words) for c in slow])


def _slow_together(case: Case, causes: list[Cause]) -> Cause:
    """Several slow ranks at their peers' speed: one alone may gain little while another waits."""
    ranks = tuple(sorted(r for c in causes for r in c.ranks))
    worst = causes[0]
    return replace(
        worst,
        title=f"Ranks {ranks_text(list(ranks))} are slower than their peers; the worst: "
        f"{worst.title[0].lower()}{worst.title[1:]}",
        ranks=ranks,
        tasks=np.concatenate([c.tasks for c in causes]),
        dur_ns=np.concatenate([c.dur_ns for c in causes]),
    )


def _slow_rank(
    case: Case, work: Work, column: int, typical: F64, words: tuple[str, str, str]
) -> Cause:
    """One rank at its peers' speed."""
    kind, what, action = words
    rank = int(work.ranks[column])
    total, expected = work.total_ns[:, column], float(typical.sum())
    slow = float(total.sum()) / max(expected, 1) - 1
    title = f"The {what} of rank {rank} is {slow:.0%} slower than that of its peers"
    top = int(np.argmax(total - typical))
    name = short_name(case.graph.names[case.graph.name[work.tasks[work.name == top][0]]])
    if not _is_broad(total, typical):
        kind = "slow_kernel" if kind == "slow_device" else "slow_operation"
        title = f"Rank {rank} spends {slow:.0%} more than its peers, most of it in {name}"
        action = (
            "Only some of its work is slower, so look for different data rather than a "
            "slow device: sequence lengths, token or expert distribution, sparse gradients."
        )
    mine = work.column == column
    factor = np.minimum(typical[work.name[mine]] / np.maximum(total[work.name[mine]], 1), 1)
    tasks = work.tasks[mine]
    peers = work.ranks[work.peers(column)]
    peers = peers[peers != rank]
    return Cause(
        kind=kind,
        title=title,
        ranks=(rank,),
        tasks=tasks,
        dur_ns=_rounded(case.graph.dur_ns[tasks] * factor),
        evidence=(
            f"{ms(total.sum() / case.steps)} a step against {ms(expected / case.steps)}, the "
            f"median for the same work on ranks {ranks_text(peers.tolist())}",
            f"largest excess: {name}, {ms((total - typical)[top] / case.steps)} a step",
            f"{ms(case.on_path(tasks))} of its work on the critical path",
        ),
        action=action,
        confidence=3 if len(peers) > 1 else 2,
    )


def _is_broad(total: F64, typical: F64) -> bool:
    """Whether most of the work is slower, and not a few names only."""
    shared = typical > 0
    ratio, weight = total[shared] / typical[shared], typical[shared]
    order = np.argsort(ratio)
    middle = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)
    return bool(len(ratio)) and float(ratio[order][min(middle, len(ratio) - 1)]) > 1 + LEAST_EXCESS


def _scaled(case: Case, work: Work, factor: F64) -> I64:
    return _rounded(case.graph.dur_ns[work.tasks] * factor)


def _rounded(dur_ns: F64) -> I64:
    return np.rint(dur_ns).astype(np.int64)
