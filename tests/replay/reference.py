"""A second replay: plain, slow, event by event. It shares no code with the engine.

Every edge is a message that arrives at its target some time after the source has ended (or, for
a launch, has begun). A task starts at the instant its last message arrives.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

from foretrace.replay.graph import EdgeKind, JobGraph

LAUNCHES = {int(EdgeKind.LAUNCH), int(EdgeKind.OVERLAP), int(EdgeKind.SEGMENT)}


class DeadlockError(Exception):
    """Some tasks wait for each other."""


def simulate(graph: JobGraph, dur_ns: list[int] | None = None) -> dict[int, int]:
    """Start of each task, ns; tasks that wait for nothing start at 0.

    Raises:
        DeadlockError: its argument is the set of tasks that never start.
    """
    dur = dict(enumerate(graph.dur_ns.tolist() if dur_ns is None else dur_ns))
    listeners = defaultdict(list)
    missing = {}
    for task in dur:
        first, stop = int(graph.pred_ptr[task]), int(graph.pred_ptr[task + 1])
        missing[task] = stop - first
        for edge in range(first, stop):
            message = (task, int(graph.edge_kind[edge]), int(graph.edge_delay_ns[edge]))
            listeners[int(graph.pred[edge])].append(message)
    mail = [(0, task) for task, count in missing.items() if count == 0]
    for _, task in mail:
        missing[task] = 1
    heapq.heapify(mail)
    started: dict[int, int] = {}
    while mail:
        now, task = heapq.heappop(mail)
        missing[task] -= 1
        if missing[task]:
            continue
        started[task] = now
        for target, kind, delay in listeners[task]:
            sent = now if kind in LAUNCHES else now + dur[task]
            heapq.heappush(mail, (sent + delay, target))
    if len(started) < len(dur):
        raise DeadlockError(set(dur) - set(started))
    return started
