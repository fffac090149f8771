"""Hosts that ask again and again whether the device is done: told apart by where they stand.

Queries inside an operator belong to it (the caching allocator asks whether blocks are free): host
work. A long run of queries outside of any operator is a spin, so a wait, and becomes one blocking
call, on threads that launch work. One that launches none and does little but ask is a watchdog:
background, nobody waits for it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np

from foretrace.replay.build.columns import KIND, RankEvents
from foretrace.replay.build.labelkernel import distinct, grouped
from foretrace.replay.build.named import matching
from foretrace.replay.graph import I64

QUERY = re.compile(r"^(cuda|hip|cu)(Event|Stream)Query")

MIN_RUN = 8
"""Fewer queries in a row are no spin."""

MIN_SPIN_NS = 50_000
"""A shorter run is no spin."""

WATCHDOG_SHARE = 0.9
MIN_WATCHDOG_ROWS = 8
"""A thread that launches nothing and mostly queries, outside of operators, is a watchdog."""


def with_polls(
    events: RankEvents, call_of: I64, names: tuple[str, ...]
) -> tuple[RankEvents, I64, dict[str, int]]:
    """Spins as one row each, watchdogs' rows taken out.

    Args:
        events: the rank's events.
        call_of: runtime row that caused each device row, -1 without one.
        names: the job's names.

    Returns:
        The events, the rows that stand for a spin, and how many rows were set aside and why.
    """
    query = (events.kind == KIND["runtime"]) & matching(QUERY, names)[events.name]
    none = np.zeros(0, np.int64)
    if not query.any():
        return events, none, {}
    row, first_of = _rows_of_asking_threads(events, query)
    bare = query[row] & ~_inside_others(events, row, first_of, query[row])
    thread = np.repeat(np.arange(len(first_of) - 1), np.diff(first_of))
    count = np.diff(first_of)
    asking = np.bincount(thread, bare, minlength=len(count))
    launches = np.isin(events.thread[row[first_of[:-1]]], events.thread[call_of[call_of >= 0]])
    watchdog = (asking >= WATCHDOG_SHARE * count) & (count >= MIN_WATCHDOG_ROWS) & ~launches
    background = row[watchdog[thread]]
    # Rows of a thread in order of start: equal neighbours form a run.
    head = np.ones(len(row), bool)
    head[1:] = (bare[1:] != bare[:-1]) | (thread[1:] != thread[:-1])
    first = np.flatnonzero(head)
    last = np.append(first[1:], len(row)) - 1
    spin = bare[first] & launches[thread[first]] & (last - first + 1 >= MIN_RUN)
    spin &= events.end[row[last]] - events.start[row[first]] >= MIN_SPIN_NS
    first, last = first[spin], last[spin]
    kind, end = events.kind.copy(), events.end.copy()
    end[row[first]] = events.end[row[last]]
    inside = np.zeros(len(row) + 1, np.int64)
    np.add.at(inside, first + 1, 1)
    np.add.at(inside, last + 1, -1)
    merged = row[np.cumsum(inside)[:-1] > 0]
    kind[merged] = kind[background] = KIND["other"]
    told = {
        "queries that spin: one wait each run": len(merged),
        "rows of watchdog threads: background": len(background),
    }
    return replace(events, kind=kind, end=end), row[first], {k: v for k, v in told.items() if v}


def _rows_of_asking_threads(events: RankEvents, query: np.ndarray) -> tuple[I64, I64]:
    """Operators and calls of threads that query, by thread and start; where each thread begins.

    An annotation around a step is no operator.
    """
    plain = (events.kind == KIND["host_op"]) | (events.kind == KIND["runtime"])
    row = np.flatnonzero(plain)
    threads, lane = distinct(events.thread[row])
    order, first = grouped(lane, len(threads))
    asks = np.bincount(lane, query[row], minlength=len(threads)) > 0
    kept = np.repeat(asks, np.diff(first))
    count = np.diff(first)[asks]
    return row[order[kept]], np.append(0, np.cumsum(count))


def _inside_others(events: RankEvents, row: I64, first: I64, query: np.ndarray) -> np.ndarray:
    """Which rows begin and end inside an earlier row of their thread that is no query."""
    end = events.end[row]
    inside = np.zeros(len(row), bool)
    for lo, hi in pairwise(first.tolist()):
        reach = np.maximum.accumulate(np.where(query[lo:hi], np.iinfo(np.int64).min, end[lo:hi]))
        inside[lo:hi] = reach >= end[lo:hi]
    return inside
