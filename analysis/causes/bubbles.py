"""Ranks of a pipeline that wait for their neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace.analysis.causes.case import Case, Cause
from foretrace.analysis.causes.wording import ms, named_ranks
from foretrace.analysis.communication import labels
from foretrace.replay.arrivals import arrivals
from foretrace.replay.graph import EdgeKind, TaskKind
from foretrace.traces.schema import COLLECTIVE_KINDS

POINT_TO_POINT = tuple(COLLECTIVE_KINDS.index(k) for k in ("send", "recv", "send_recv"))


def pipeline_bubbles(case: Case) -> Iterator[Cause]:
    """No rank waits for a neighbour: what the pipeline would cost without bubbles."""
    graph, timeline = case.graph, case.timeline
    edges = np.flatnonzero(np.isin(graph.edge_kind, (EdgeKind.RENDEZVOUS, EdgeKind.PEER)))
    target = np.searchsorted(graph.pred_ptr, edges, side="right") - 1
    kind = labels(graph).kind[target]
    between = np.isin(kind, POINT_TO_POINT) & (graph.kind[target] == TaskKind.COMM)
    between &= graph.rank[graph.pred[edges]] != graph.rank[target]  # its own arrival stays
    between &= case.in_steps[target]
    edges, target = edges[between], np.unique(target[between])
    arrive = arrivals(graph)[target]
    target, arrive = target[arrive >= 0], arrive[arrive >= 0]
    if not len(target):
        return
    waited = np.maximum(timeline.start_ns[target] - timeline.start_ns[arrive], 0)
    by_rank = np.bincount(graph.rank[target], weights=waited) / case.steps
    ranks = tuple(np.unique(graph.rank[target]).tolist())
    most = int(np.argmax(by_rank))
    yield Cause(
        kind="pipeline_bubble",
        title=f"Pipeline bubbles: {named_ranks(ranks)} wait in point-to-point transfers, up to "
        f"{ms(by_rank[most])} a step (rank {most})",
        ranks=ranks,
        gone=edges,
        evidence=(
            f"{len(target) / case.steps / len(ranks):,.3g} transfers a step and rank, "
            f"{ms(by_rank[list(ranks)].mean())} of waiting a step and rank on average",
            "priced as if no transfer waited for its partner: no schedule can save more",
        ),
        action=(
            "More micro-batches, an interleaved or zero-bubble schedule, or stages split so "
            "that they take the same time."
        ),
        confidence=1,
    )
