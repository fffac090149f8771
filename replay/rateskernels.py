"""Compiled loops of the replay with rates: devices on which work slows other work down.

Like ``kernels``: arrays in, arrays out, and none calls a compiled function of another file.

While nothing changes on a device every task on it runs at a constant rate. So time goes from
event to event: a task arrives, begins or ends; then the rates of its neighbours are worked out
anew, what they have done so far is put down, and their ends move.
"""

from __future__ import annotations

import heapq

import numpy as np
from numba import njit

from foretrace.replay.ratesstate import (
    ALONE,
    ARRIVES,
    COMPUTES,
    ENDED,
    I8,
    I64,
    MILLION,
    MOVES,
    Clock,
    Shares,
    State,
    Successors,
)

Heap = list[tuple[int, int, int]]
"""Time, task and plan (-1: it may start) of what happens next."""


@njit(cache=True)
def new_state(tasks: int, devices: int, parties: int) -> State:
    """Nothing runs."""
    return State(
        np.zeros(devices, np.int64),
        np.zeros(devices, np.int64),
        np.zeros(devices, np.int64),
        np.full((devices, 2), -1, np.int64),
        np.full(tasks, -1, np.int64),
        np.full(tasks, -1, np.int64),
        np.zeros(tasks, np.bool_),
        np.zeros(tasks, np.int64),
        np.zeros(tasks, np.float64),
        np.zeros(tasks, np.int64),
        np.ones(tasks, np.float64),
        np.zeros(parties, np.int64),
        np.empty(tasks, np.int64),
        np.zeros(1, np.int64),
    )


@njit(cache=True)
def slowdown(task: int, shares: Shares, state: State) -> float:
    """How much slower than alone a task runs as things stand."""
    if shares.role[task] == MOVES:
        own: float = shares.disturbed[task]
        return own if state.beside[shares.party[task]] > 0 else 1.0
    device = shares.device[task]
    level = min(state.held[device], shares.table.shape[1] - 1)
    slow: float = shares.table[shares.row[task], level]
    if state.moving[device] > 0 and shares.evicted[task] >= 0:
        share = min(state.moving[device], 9 * MILLION // 10) / MILLION
        slow = max(slow, (1 + shares.evicted[task] * share) / (1 - share))
    return slow


@njit(cache=True)
def settle(task: int, now: int, state: State) -> None:
    """Put down what a running task has done until now."""
    gone = now - state.since[task]
    state.since[task] = now
    if state.slow[task] == 1.0:
        state.left[task] -= gone
        return
    done = gone / state.slow[task]
    whole = np.int64(np.floor(done))
    state.left[task] -= whole
    state.part[task] -= done - whole
    if state.part[task] < 0:
        state.part[task] += 1
        state.left[task] -= 1


@njit(cache=True)
def reconsider(task: int, now: int, shares: Shares, state: State) -> None:
    """Give a running task the rate that it has from now on."""
    slow = slowdown(task, shares, state)
    if slow != state.slow[task]:
        settle(task, now, state)
        state.slow[task] = slow
        state.changed[state.changes[0]] = task
        state.changes[0] += 1


@njit(cache=True)
def reconsider_computing(device: int, now: int, shares: Shares, state: State) -> None:
    """What computes on a device after what others take from it has changed."""
    task = state.first[device, 0]
    while task >= 0:
        reconsider(task, now, shares, state)
        task = state.after[task]


@njit(cache=True)
def disturb(task: int, more: int, now: int, shares: Shares, state: State) -> None:
    """One more or one less device on which something computes beside a party's data."""
    party = shares.party[task]
    was = state.beside[party]
    state.beside[party] = was + more
    if was == 0 or was + more == 0:
        for k in range(shares.party_ptr[party], shares.party_ptr[party + 1]):
            if state.runs[shares.member[k]]:
                reconsider(shares.member[k], now, shares, state)


@njit(cache=True)
def computing_changed(device: int, more: int, now: int, shares: Shares, state: State) -> None:
    """What moves data on a device when the first task there begins to compute or the last ends."""
    was = state.computing[device]
    state.computing[device] = was + more
    if was == 0 or was + more == 0:
        task = state.first[device, 1]
        while task >= 0:
            disturb(task, more, now, shares, state)
            task = state.after[task]


@njit(cache=True)
def begin(task: int, now: int, shares: Shares, state: State) -> None:
    """A task starts, or arrives."""
    device, role = shares.device[task], shares.role[task]
    if role == ARRIVES:
        state.held[device] += shares.holds[task]
        reconsider_computing(device, now, shares, state)
        return
    column = 0 if role == COMPUTES else 1
    follower = state.first[device, column]
    state.after[task], state.before[task] = follower, -1
    if follower >= 0:
        state.before[follower] = task
    state.first[device, column] = task
    state.since[task] = now
    state.slow[task] = 1.0
    state.runs[task] = True
    if role == COMPUTES:
        computing_changed(device, 1, now, shares, state)
    else:
        state.moving[device] += shares.moves[task]
        if state.computing[device] > 0:
            disturb(task, 1, now, shares, state)
        reconsider_computing(device, now, shares, state)
    if state.slow[task] == 1.0:
        reconsider(task, now, shares, state)


@njit(cache=True)
def finish(task: int, now: int, shares: Shares, state: State) -> None:
    """A running task ends."""
    device, role = shares.device[task], shares.role[task]
    settle(task, now, state)
    state.runs[task] = False
    column = 0 if role == COMPUTES else 1
    ahead, follower = state.before[task], state.after[task]
    if ahead >= 0:
        state.after[ahead] = follower
    else:
        state.first[device, column] = follower
    if follower >= 0:
        state.before[follower] = ahead
    if role == COMPUTES:
        computing_changed(device, -1, now, shares, state)
        return
    if state.computing[device] > 0:
        disturb(task, -1, now, shares, state)
    state.moving[device] -= shares.moves[task]
    state.held[device] -= shares.holds[task]
    reconsider_computing(device, now, shares, state)


@njit(cache=True)
def end_from_now(task: int, now: int, state: State) -> int:
    """When a running task ends if nothing changes any more."""
    left: int = state.left[task]
    slow: float = state.slow[task]
    if slow != 1.0 or state.part[task] != 0.0:
        left = int(np.rint((left + state.part[task]) * slow))
    return now + max(left, 0)


@njit(cache=True)
def deliver(task: int, from_start: bool, clock: Clock, edges: Successors) -> None:
    """Tell a task's start, or its end, to those that wait for it."""
    said = clock.start[task] if from_start else clock.end[task]
    for e in range(edges.ptr[task], edges.ptr[task + 1]):
        if edges.from_start[e] == from_start:
            target = edges.target[e]
            clock.ready[target] = max(clock.ready[target], said + edges.delay_ns[e])
            edges.missing[target] -= 1
            if edges.missing[target] == 0:
                clock.free[clock.depth[0]] = target
                clock.depth[0] += 1


@njit(cache=True)
def release(work_ns: I64, clock: Clock, edges: Successors, shares: Shares, heap: Heap) -> None:
    """Plan the starts of all tasks that wait for nothing more.

    The times of tasks at full rate are known at once: nothing that happens before can move them.
    """
    while clock.depth[0] > 0:
        clock.depth[0] -= 1
        task = clock.free[clock.depth[0]]
        if shares.role[task] == ALONE:
            clock.start[task] = clock.ready[task]
            clock.end[task] = clock.ready[task] + work_ns[task]
            deliver(task, True, clock, edges)
            deliver(task, False, clock, edges)
        else:
            heapq.heappush(heap, (clock.ready[task], task, -1))


@njit(cache=True)
def plan_end(task: int, now: int, clock: Clock, state: State, heap: Heap) -> None:
    """Plan the end of a running task anew."""
    clock.version[task] += 1
    heapq.heappush(heap, (end_from_now(task, now, state), task, clock.version[task]))


@njit(cache=True)
def run_with_rates(
    work_ns: I64, edges: Successors, shares: Shares, state: State
) -> tuple[I64, I64]:
    """Start and end of each task when work on one device slows other work there.

    Args:
        work_ns: duration of each task alone, shape ``(n,)``.
        edges: dependencies; no delay is negative, and there is no cycle.
        shares: what tasks take and feel.
        state: from :func:`new_state`.

    Returns:
        ``(start_ns, end_ns)``, both of shape ``(n,)``. Ends that move are rounded to the nearest
        ns; work is put down with its fractions, so that roundings do not add up.
    """
    clock = new_clock(edges)
    heap: Heap = [(0, 0, 0)]  # the compiler takes the element type from it
    heap.pop()
    while True:
        release(work_ns, clock, edges, shares, heap)
        if not heap:
            return clock.start, clock.end
        now, task, plan = heapq.heappop(heap)
        state.changes[0] = 0
        if plan < 0:
            clock.start[task] = now
            deliver(task, True, clock, edges)
            state.left[task] = work_ns[task]
            begin(task, now, shares, state)
            if state.slow[task] == 1.0:  # else it is among those that changed
                plan_end(task, now, clock, state, heap)
        elif plan == clock.version[task]:
            clock.end[task] = now
            deliver(task, False, clock, edges)
            if shares.role[task] != ARRIVES:
                finish(task, now, shares, state)
        for k in range(state.changes[0]):
            if state.runs[state.changed[k]]:
                plan_end(state.changed[k], now, clock, state, heap)


@njit(cache=True)
def new_clock(edges: Successors) -> Clock:
    """Nothing has started; tasks without predecessors may."""
    n = len(edges.missing)
    clock = Clock(
        np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64),
        np.zeros(n, np.int64), np.empty(n + 1, np.int64), np.zeros(1, np.int64),
    )  # fmt: skip
    for task in range(n):
        if edges.missing[task] == 0:
            clock.free[clock.depth[0]] = task
            clock.depth[0] += 1
    return clock


@njit(cache=True)
def work_done(events: tuple[I64, I64, I8], shares: Shares, state: State) -> I64:
    """Work that tasks did on a given timeline, ns at full rate.

    Args:
        events: time, task and what happens (ARRIVED, BEGUN, ENDED), in order of time.
        shares: what tasks take and feel.
        state: from :func:`new_state`.

    Returns:
        ns, shape ``(n,)``; 0 for tasks without events.
    """
    time, tasks, what = events
    for k in range(len(time)):
        state.changes[0] = 0
        if what[k] == ENDED:
            finish(tasks[k], time[k], shares, state)
        else:
            begin(tasks[k], time[k], shares, state)
    done = np.empty(len(state.left), np.int64)
    for task in range(len(done)):
        done[task] = np.int64(np.rint(-state.left[task] - state.part[task]))
    return done
