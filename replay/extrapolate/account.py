"""Where the time of an extrapolated step goes, averaged over all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.extrapolate.job import Extrapolated
from foretrace.replay.extrapolate.template import Lane
from foretrace.replay.graph import I64, TaskKind, Timeline

_SIDES = len(Lane) + 1


@dataclass(frozen=True, slots=True)
class Account:
    """Time of a step, ns, mean over ranks; the parts add up to the step.

    Attributes:
        step_ns: length of the step.
        compute_ns: computation.
        exposed_ns: communication with no computation beside it, by kind of group. Where two
            messages run at once, the one that holds up the computation counts.
        idle_ns: neither: pipeline bubbles, waiting for slower ranks and for the host.
    """

    step_ns: int
    compute_ns: float
    exposed_ns: dict[str, float]
    idle_ns: float


def account(job: Extrapolated, timeline: Timeline) -> Account:
    """Add up a step.

    Args:
        job: the job.
        timeline: its replay.
    """
    graph = job.graph
    step = int(timeline.end_ns.max(initial=0))
    kinds, of_name = _kinds(job)
    busy, exposed = 0.0, dict.fromkeys(kinds, 0.0)
    total = int(job.roles.count.sum())
    order = np.lexsort((timeline.start_ns, graph.lane))
    order = order[np.isin(graph.kind[order], (TaskKind.KERNEL, TaskKind.COMM))]
    cuts = np.searchsorted(graph.lane[order], np.arange(len(job.roles) * _SIDES + 1))
    for role, count in enumerate(job.roles.count.tolist()):
        covered = np.zeros((0, 2), np.int64)
        for lane in [lane for lane in Lane if lane != Lane.HOST]:
            at = role * _SIDES + lane
            rows = order[cuts[at] : cuts[at + 1]]
            if not len(rows):
                continue
            spans = np.stack([timeline.start_ns[rows], timeline.end_ns[rows]], axis=1)
            open_ns = spans[:, 1] - spans[:, 0] - _overlap(spans, covered)
            if lane == Lane.COMPUTE:
                busy += count * float(open_ns.sum())
            else:
                own = np.bincount(of_name[graph.name[rows]], open_ns, len(kinds))
                for kind, ns in zip(kinds, own.tolist(), strict=True):
                    exposed[kind] += count * ns
            covered = _union(covered, spans)
        for kind, ns in job.inside[role].items():
            busy -= count * ns
            exposed[kind] += count * ns
    parts = {kind: ns / total for kind, ns in exposed.items()}
    compute = busy / total
    return Account(step, compute, parts, step - compute - sum(parts.values()))


def _kinds(job: Extrapolated) -> tuple[list[str], I64]:
    """Kinds of groups that talk, and the kind of each message's name: its last word."""
    graph = job.graph
    talk = np.unique(graph.name[graph.kind == TaskKind.COMM]).tolist()
    words = {name: graph.names[name].rpartition(" ")[2] for name in talk}
    held = {kind for inside in job.inside for kind in inside}
    kinds = sorted(held | set(words.values()))
    of_name = np.zeros(len(graph.names), np.int64)
    of_name[talk] = [kinds.index(words[name]) for name in talk]
    return kinds, of_name


def _union(a: I64, b: I64) -> I64:
    """Spans of two lists, merged where they touch; sorted."""
    spans = np.concatenate([a, b])
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    if not len(spans):
        return spans
    reach = np.maximum.accumulate(spans[:, 1])
    head = np.append(True, spans[1:, 0] > reach[:-1])
    last = np.append(np.flatnonzero(head)[1:], len(spans)) - 1
    return np.stack([spans[head, 0], reach[last]], axis=1)


def _overlap(spans: I64, covered: I64) -> I64:
    """Time of each span that lies in any of the covered ones, which do not overlap."""
    length = np.concatenate([[0], np.cumsum(covered[:, 1] - covered[:, 0])])

    def before(t: I64) -> I64:
        place = np.searchsorted(covered[:, 0], t, side="right")
        inside = np.where(place > 0, np.minimum(t, np.append(covered[:, 1], 0)[place - 1]), 0)
        start = np.append(covered[:, 0], 0)[place - 1]
        result: I64 = np.where(place > 0, length[place - 1] + inside - start, 0)
        return result

    return before(spans[:, 1]) - before(spans[:, 0])
