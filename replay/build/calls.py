"""Which host calls matter to the graph: launches, blocking calls and what they wait for."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from foretrace.replay.build.columns import KIND, NETWORK, RankCollectives, RankEvents
from foretrace.replay.build.named import matching
from foretrace.replay.graph import I64

BLOCKING = re.compile(
    r"^(cuda|hip)(Device|Stream|Event|Ctx)Synchronize|^cuCtxSynchronize|^cuStreamSynchronize"
)
SYNCHRONOUS_COPY = re.compile(r"^(cuda|hip)Memcpy(2D|3D)?(_ptds|_v\d+)?$|WithStream$")
PAGEABLE_TO_HOST = re.compile(r"DtoH.*Pageable|CopyDeviceToHost")

BLOCKED_COPY_NS = 100_000
"""A copy call that lasts this long and returns after its copy has ended was blocked."""

MAX_DRIFT = 1e-4
"""Clocks are taken to run off by no more than this share of a row's duration."""

RETURN_TOLERANCE_NS = 3_000
"""Clock resolution between host and device rows of one rank."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Host calls of one rank that make or wait for device work; shape ``(calls,)``.

    Attributes:
        row: event row.
        launches: whether device rows carry its correlation.
        blocks: whether it waits for the device.
        until: its end, ns; of a call that posts a message the moment it does, since all of its
            own work lies before that.
        cost: own cost, ns, of a call that waits and then takes its time: a launch held up by a
            full queue, a call that allocates or frees; -1 of all others.
    """

    row: I64
    launches: np.ndarray
    blocks: np.ndarray
    until: I64
    cost: I64


@dataclass(frozen=True, slots=True)
class Special:
    """Calls that wait though their names alone do not say so.

    Attributes:
        spins: rows that stand for a run of queries.
        rows: rows that wait and then take their time; shape ``(k,)``.
        cost_ns: that time, shape ``(k,)``.
    """

    spins: I64
    rows: I64
    cost_ns: I64


def device_call_rows(events: RankEvents) -> I64:
    """For each event row: the runtime row that caused it (same correlation), -1 without one.

    Only device rows get a value. One call may cause many rows (graph launches).
    """
    runtime = np.flatnonzero((events.kind == KIND["runtime"]) & (events.correlation >= 0))
    result = np.full(len(events.kind), -1, np.int64)
    device = np.flatnonzero(
        (events.is_device_work | (events.kind == KIND["sync"])) & (events.correlation > 0)
    )
    if not len(runtime) or not len(device):
        return result
    order = runtime[np.argsort(events.correlation[runtime], kind="stable")]
    keys = events.correlation[order]
    at = np.minimum(np.searchsorted(keys, events.correlation[device]), len(order) - 1)
    found = keys[at] == events.correlation[device]
    result[device[found]] = order[at[found]]
    return result


def find_calls(
    events: RankEvents,
    collectives: RankCollectives,
    call_of: I64,
    names: tuple[str, ...],
    special: Special,
) -> Calls:
    """Launching and blocking calls of one rank, in order of start.

    Args:
        events: the rank's events.
        collectives: the rank's communication operations.
        call_of: from :func:`device_call_rows`.
        names: the job's names.
        special: calls that other rules found to wait.
    """
    is_runtime = events.kind == KIND["runtime"]
    work = np.flatnonzero(events.is_device_work & (call_of >= 0))
    launches = np.zeros(len(events.kind), bool)
    launches[call_of[work]] = True
    blocks = is_runtime & matching(BLOCKING, names)[events.name]
    blocks |= _blocked_copies(events, call_of, names)
    blocks[network_waits(events, collectives)[1]] = True
    blocks[special.spins] = True
    cost = np.full(len(events.kind), -1, np.int64)
    cost[special.rows] = special.cost_ns
    blocks[special.rows] = False
    rows = np.flatnonzero((launches & is_runtime) | blocks | (cost >= 0))
    until = events.end.copy()
    posts = work[is_message(events, work)]
    until[call_of[posts]] = np.clip(
        events.start[posts], events.start[call_of[posts]], events.end[call_of[posts]]
    )
    return Calls(rows, launches[rows], blocks[rows], until[rows], cost[rows])


def is_message(events: RankEvents, rows: I64) -> np.ndarray:
    """Which rows are messages of a host thread (see ``columns.with_network_lanes``)."""
    messages: np.ndarray = (events.device[rows] == NETWORK) & (events.stream[rows] < -1)
    return messages


def network_waits(events: RankEvents, collectives: RankCollectives) -> tuple[I64, I64]:
    """``(work row, waiting row)`` of operations that a host thread carries out and one waits for.

    On a GPU such a wait only makes a stream wait; here the host itself blocks.
    """
    waited = (collectives.work >= 0) & (collectives.wait >= 0)
    work, wait = collectives.work[waited], collectives.wait[waited]
    here = events.device[work] == NETWORK
    return work[here], wait[here]


def _blocked_copies(events: RankEvents, call_of: I64, names: tuple[str, ...]) -> np.ndarray:
    """Copy calls that return only after their copy: by kind, or as the trace shows."""
    copies = np.flatnonzero((events.kind == KIND["memcpy"]) & (call_of >= 0))
    calls = call_of[copies]
    done_inside = events.end[copies] <= events.end[calls] + RETURN_TOLERANCE_NS
    long = events.end[calls] - events.start[calls] >= BLOCKED_COPY_NS
    by_kind = matching(PAGEABLE_TO_HOST, names)[events.name[copies]]
    synchronous = matching(SYNCHRONOUS_COPY, names)[events.name[calls]]
    result = np.zeros(len(events.kind), bool)
    result[calls[by_kind | synchronous | (done_inside & long)]] = True
    return result
