"""Start times out of durations and dependencies, against a plain second implementation."""

from __future__ import annotations

import heapq

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foretrace.traces.layout import closing_edges, lay_out


def plain(dur: list[int], lane: list[int], edges: list[tuple[int, int]]) -> list[int]:
    """One task at a time: whichever can begin first, then was ready first, then comes first."""
    start: dict[int, int] = {}
    free: dict[int, int] = {}
    while len(start) < len(dur):
        best: list[tuple[int, int, int, int]] = []
        for task in range(len(dur)):
            before = [a for a, b in edges if b == task]
            if task in start or any(a not in start for a in before):
                continue
            ready = max((start[a] + dur[a] for a in before), default=0)
            begin = max(ready, free.get(lane[task], 0))
            heapq.heappush(best, (begin, lane[task], ready, task))
        begin, _, _, task = best[0]
        start[task] = begin
        free[lane[task]] = begin + dur[task]
    return [start[i] for i in range(len(dur))]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    n = draw(st.integers(1, 12))
    dur = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    lane = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
    edges = [(min(p), max(p)) for p in draw(st.lists(pairs, max_size=20)) if p[0] != p[1]]
    return dur, lane, edges


@given(jobs())
def test_layout_is_that_of_the_plain_one(
    job: tuple[list[int], list[int], list[tuple[int, int]]],
) -> None:
    dur, lane, edges = job
    source, target = np.array(edges, np.int64).reshape(-1, 2).T
    start = lay_out(np.array(dur), np.array(lane), source, target)
    assert start.tolist() == plain(dur, lane, edges)


def test_tasks_of_a_lane_do_not_overlap_and_wait_for_what_they_need() -> None:
    start = lay_out(np.array([3, 4, 5]), np.array([0, 1, 0]), np.array([0, 0]), np.array([1, 2]))
    assert start.tolist() == [0, 3, 3]


def test_no_tasks() -> None:
    none = np.zeros(0, np.int64)
    assert lay_out(none, none, none, none).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), max_size=30))
def test_without_closing_edges_nothing_goes_round(edges: list[tuple[int, int, bool]]) -> None:
    source, target, firm = np.array(edges, np.int64).reshape(-1, 3).T
    closing = closing_edges(source, target, firm.astype(np.bool_), 8)
    left = [(a, b) for (a, b, _), c in zip(edges, closing.tolist(), strict=True) if not c]
    waiting = set(range(8))
    while True:
        free = {t for t in waiting if not any(b == t and a in waiting for a, b in left)}
        if not free:
            break
        waiting -= free
    assert not waiting


def test_firm_edges_stay_where_others_make_the_cycle() -> None:
    source, target = np.array([0, 1]), np.array([1, 0])
    assert closing_edges(source, target, np.array([True, False]), 2).tolist() == [False, True]
    assert closing_edges(source, target, np.array([False, True]), 2).tolist() == [True, False]
