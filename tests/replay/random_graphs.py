"""Random job graphs: any tasks, any edges without a cycle, in any order."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from foretrace.replay.graph import (
    Collectives,
    EdgeKind,
    JobGraph,
    Lanes,
    StepMarks,
    TaskKind,
)

Edge = tuple[int, int, int, int]
"""Source, target, EdgeKind, delay in ns."""

DURATIONS = st.one_of(st.integers(0, 20), st.integers(0, 2**55))
"""Small ones make ties; large ones lose nanoseconds wherever floating point slips in."""


def graph_of(dur_ns: list[int], edges: list[Edge], kinds: list[int] | None = None) -> JobGraph:
    """A graph with these durations and edges; ``event`` and ``names`` tell tasks apart."""
    n = len(dur_ns)
    edges = sorted(edges, key=lambda e: e[1])
    counts = [sum(1 for e in edges if e[1] == task) for task in range(n)]
    number = np.arange(n)
    none = np.zeros(0, np.int64)
    return JobGraph(
        rank=(number % 3).astype(np.int32),
        lane=np.zeros(n, np.int32),
        kind=np.array([TaskKind.HOST] * n if kinds is None else kinds, np.int8),
        dur_ns=np.array(dur_ns, np.int64),
        name=number.astype(np.int32),
        event=number.astype(np.int64),
        collective=np.full(n, -1, np.int32),
        step=np.zeros(n, np.int32),
        measured_start_ns=number * 1_000,
        measured_end_ns=number * 1_000 + 7,
        pred_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        pred=np.array([e[0] for e in edges], np.int64),
        edge_kind=np.array([e[2] for e in edges], np.int8),
        edge_delay_ns=np.array([e[3] for e in edges], np.int64),
        names=tuple(f"task {i}" for i in range(n)),
        lanes=Lanes(np.zeros(1, np.int32), np.full(1, -1, np.int32), np.ones(1, np.int64)),
        collectives=Collectives(
            none.astype(np.int8), none.astype(np.int32), none, none.astype(np.float32)
        ),
        groups=(),
        steps=StepMarks(none.astype(np.int32), none.astype(np.int32), none, none),
    )


@st.composite
def edge_lists(draw: st.DrawFn, order: list[int]) -> list[Edge]:
    """Edges that lead forward in ``order``; double edges are possible."""
    if len(order) < 2:
        return []
    pairs = draw(
        st.lists(
            st.tuples(st.integers(0, len(order) - 2), st.integers(1, len(order) - 1)),
            max_size=2 * len(order),
        )
    )
    kinds = st.sampled_from([int(k) for k in EdgeKind])
    return [(order[a], order[b], draw(kinds), draw(st.integers(0, 12))) for a, b in pairs if a < b]


@st.composite
def job_graphs(draw: st.DrawFn, shuffled: bool = True, smallest: int = 0) -> JobGraph:
    """A random graph without cycles; its tasks are in topological order unless shuffled."""
    n = draw(st.integers(smallest, 16))
    order = list(range(n))
    if shuffled:
        order = draw(st.permutations(order))
    edges = draw(edge_lists(order))
    dur = draw(st.lists(DURATIONS, min_size=n, max_size=n))
    kinds = draw(st.lists(st.sampled_from([int(k) for k in TaskKind]), min_size=n, max_size=n))
    return graph_of(dur, edges, kinds)
