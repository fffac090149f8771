"""One rank: what its rules share, its tasks, and its waits that concern no other rank."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from foretrace.replay.build import calls as calls_
from foretrace.replay.build import device as device_
from foretrace.replay.build import gaps, handoffs, host, returns, streamwaits, syncs
from foretrace.replay.build import steps as steps_
from foretrace.replay.build.anchors import find_anchors
from foretrace.replay.build.buckets import with_bucket_waits
from foretrace.replay.build.columns import NETWORK, RankCollectives, RankEvents
from foretrace.replay.build.context import Context
from foretrace.replay.build.launches import Launches, launches
from foretrace.replay.build.launchqueue import Blocked, blocked_launches
from foretrace.replay.build.memorycalls import memory_calls
from foretrace.replay.build.parts import GraphParts
from foretrace.replay.build.polls import with_polls
from foretrace.replay.build.rules import Rule
from foretrace.replay.graph import I64, EdgeKind


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank while its graph is built.

    Attributes:
        events: its rows, spins merged.
        collectives: its communication operations.
        call_of: runtime row that caused each device row, -1 without one.
        launched: its device work by launch.
        calls: host calls that launch or wait.
        blocked: launches held up by a full queue.
        boundaries: starts and ends of its host rows.
        handoffs: waits between its threads.
        marks: its step marks.
        dropped: what was set aside and why -> how many.
        trusted: whether its times may contradict a rule; not where waits were cut out of them.
    """

    events: RankEvents
    collectives: RankCollectives
    call_of: I64
    launched: Launches
    calls: calls_.Calls
    blocked: Blocked
    boundaries: gaps.Boundaries
    handoffs: handoffs.Handoffs
    marks: steps_.Marks
    dropped: dict[str, int]
    trusted: bool


def prepare(
    events: RankEvents, collectives: RankCollectives, names: tuple[str, ...], *, trusted: bool
) -> Rank:
    """What the rules of one rank share."""
    call_of = calls_.device_call_rows(events)
    events, spins, dropped = with_polls(events, call_of, names)
    collectives = with_bucket_waits(events, collectives, call_of, names)
    launched = launches(events, call_of)
    blocked = blocked_launches(events, launched, call_of)
    memory, ran_on = memory_calls(events, launched, names)
    if ran_on:
        dropped["allocating call that returned while older work ran"] = ran_on
    if collectives.weak.any():
        dropped["kernels that communicate without a record"] = int(collectives.weak.sum())
    special = calls_.Special(
        spins,
        np.concatenate([blocked.row, memory.row]),
        np.concatenate([blocked.cost_ns, memory.cost_ns]),
    )
    calls = calls_.find_calls(events, collectives, call_of, names, special)
    b = gaps.boundaries(events)
    held = calls.row[calls.blocks | (calls.cost >= 0)]
    return Rank(
        events=events,
        collectives=collectives,
        call_of=call_of,
        launched=launched,
        calls=calls,
        blocked=blocked,
        boundaries=b,
        handoffs=handoffs.find_handoffs(b, held, _network(events, collectives), names),
        marks=steps_.recorded_marks(events, names),
        dropped=dropped,
        trusted=trusted,
    )


def _network(events: RankEvents, collectives: RankCollectives) -> handoffs.Network:
    """Communication of the rank's host threads that is waited for without a row, by end."""
    rows = np.flatnonzero(events.device == NETWORK)
    # Where the wait is known, whatever else lasted beyond the end was at work.
    rows = np.setdiff1d(rows, collectives.work[collectives.wait >= 0])
    rows = rows[np.argsort(events.end[rows], kind="stable")]
    return handoffs.Network(rows, events.end[rows])


def as_one_step(p: Rank) -> Rank:
    """A recording without step marks is one step."""
    step = np.full_like(p.events.step, steps_.ONLY_STEP)
    waits = p.calls.row[p.calls.blocks]
    marks = steps_.whole_recording(p.events, waits)
    return replace(p, events=replace(p.events, step=step), marks=marks)


def add_rank(
    parts: GraphParts, p: Rank, exec_ns: I64, context: Context, names: tuple[str, ...]
) -> tuple[I64, I64, list[tuple[int, ...]]]:
    """Add one rank's tasks and its own waits; returns its device tasks and step marks."""
    events = p.events
    late = returns.late_returns(events, p.calls, p.launched, names, context.typical)
    anchors = find_anchors(events, p.boundaries, p.calls, late, p.handoffs, p.marks)
    tasks = host.add_host_tasks(parts, events, p.boundaries, anchors, context)
    device = device_.add_device_tasks(parts, events, p.call_of, tasks, exec_ns, context)
    for why, count in p.dropped.items():
        parts.count_dropped(why, count)
    _add_host_waits(parts, p, tasks, device, names)
    _add_stream_waits(parts, p, device, names)
    begin, end, step = tasks.mark_begin, tasks.mark_end, p.marks.step
    if not events.is_host.any() and len(device.queue):
        begin, end = device_.add_device_marks(parts, events, device, context)
        step = np.array([steps_.ONLY_STEP], np.int32)
    marks = zip(step, [events.rank] * len(begin), begin, end, strict=True)
    return device.begin, device.finish, list(marks)


def _add_host_waits(
    parts: GraphParts,
    p: Rank,
    tasks: host.HostTasks,
    device: device_.DeviceTasks,
    names: tuple[str, ...],
) -> None:
    """Waits of host threads for the device and for communication."""
    events = p.events
    found = syncs.blocking_calls(events, p.calls, p.launched, p.call_of, names)
    for rule, rows in found.items():
        source, target = rows[0][rows[0] >= 0], rows[1][rows[0] >= 0]
        if p.trusted:
            (source, target), contradicted = syncs.held_waits(events, (source, target))
            parts.count_dropped("host wait against the recorded order", contradicted)
        waits = np.where(tasks.block[target] >= 0, tasks.block[target], tasks.issue[target])
        parts.add_edges(device.finish[source], waits, EdgeKind.SYNC, rule)
    made_room = device.finish[p.blocked.source]
    parts.add_edges(made_room, tasks.issue[p.blocked.row], EdgeKind.QUEUE)
    work, wait = calls_.network_waits(events, p.collectives)
    by_host = Rule.HOST_COMMUNICATION
    parts.add_edges(device.finish[work], tasks.block[wait], EdgeKind.SYNC, by_host)
    work = p.handoffs.work
    done = np.where(work >= 0, device.finish[work], -1)
    parts.add_edges(done, tasks.resume, EdgeKind.SYNC, by_host)


def _add_stream_waits(
    parts: GraphParts, p: Rank, device: device_.DeviceTasks, names: tuple[str, ...]
) -> None:
    """Waits of streams for each other."""
    shared = (p.events, p.collectives, p.launched, p.call_of)
    found = {
        **streamwaits.collective_waits(*shared),
        Rule.RECORDED_EVENT: streamwaits.recorded_stream_waits(p.events, p.launched, p.call_of),
        **streamwaits.inferred_stream_waits(*shared, names),
    }
    for rule, rows in found.items():
        (source, target), contradicted = streamwaits.uncontradicted(p.events, rows)
        parts.count_dropped("stream wait against the recorded order", contradicted)
        parts.add_edges(device.finish[source], device.begin[target], EdgeKind.EVENT, rule)
