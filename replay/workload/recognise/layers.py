"""Times and order of the operations of a layer, over all its occurrences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.costs.kernel_book import GEMM
from foretrace.replay.costs.kernel_work import Work
from foretrace.replay.graph import F64, I64, JobGraph
from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.recognise.chain import P2P, Chain
from foretrace.replay.workload.recognise.passes import Pass, Passes
from foretrace.replay.workload.recognise.rows import GAPS, OTHER, Row, Talk, work_row
from foretrace.replay.workload.recognise.talks import Talks
from foretrace.replay.workload.recognise.weave import beside_of, weave
from foretrace.traces.schema import COLLECTIVE_KINDS


@dataclass(frozen=True, slots=True)
class Job:
    """What blocks are read off.

    Attributes:
        graph: the job graph.
        chains: what each rank did in each step.
        labels: name of each token.
        talks: groups of ranks.
        passes: passes and layers.
        rank_in: rank -> number within its tensor-parallel group.
        stage: rank -> pipeline rank.
        counts: for each chain which places are operations of blocks.
    """

    graph: JobGraph
    chains: Sequence[Chain]
    labels: Sequence[str]
    talks: Talks
    passes: Passes
    rank_in: dict[int, int]
    stage: dict[int, int]
    counts: Sequence[NDArray[np.bool_]]

    def talk(self, collective: int) -> Talk:
        """A communication operation as a row has it."""
        table = self.graph.collectives
        kind = int(table.kind[collective])
        if kind in P2P:
            kind = COLLECTIVE_KINDS.index("send_recv")
        group = self.talks.of(self.graph, collective)
        return Talk(kind, group, max(int(table.bytes[collective]), 0))


def counted(graph: JobGraph, chains: Sequence[Chain], talks: Talks) -> list[NDArray[np.bool_]]:
    """Which places of each chain are operations of blocks.

    Transfers between stages, gradients and parameters follow from the layout, and sums over all
    ranks are of no block; work of other streams runs beside.
    """
    table = graph.collectives
    number = np.arange(len(table.kind)).tolist()
    kind = np.array([talks.of(graph, c) for c in number] + [""], object)
    state = np.array([talks.is_state(graph, c) for c in number] + [False], np.bool_)
    left_out = state | (kind == "world") | np.append(np.isin(table.kind, P2P), False)
    return [
        np.where(chain.collective >= 0, ~left_out[chain.collective], chain.main) for chain in chains
    ]


@dataclass(frozen=True, slots=True)
class Layer:
    """One phase of a layer on one pipeline rank.

    Attributes:
        rows: its operations, the launch gaps first.
        occurrences: how often it was seen.
        total_ns: time of each occurrence that counts, gaps included, shape ``(k,)``.
        resume_ns: gaps behind transfers, before a pass's first operation, shape ``(passes,)``.
        slowest: number within tensor-parallel groups whose times are taken.
    """

    rows: list[Row]
    occurrences: int
    total_ns: F64
    resume_ns: F64
    slowest: int

    @property
    def tokens(self) -> float:
        """Rows of the first product, 1 if none has shapes."""
        rows = (r.work[2][1] for r in self.rows if r.work[0] == GEMM and r.work[2][1] > 0)
        return next(rows, 1.0)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Occurrences; arrays of shape ``(k, operations)`` or ``(k,)``."""

    dur: I64
    gap: I64
    other: I64  # time of the main stream's work between the operations
    where: I64  # tensor-parallel number
    talks: list[list[int]]  # places of communication
    first: list[tuple[Chain, I64]]  # chain, and places of the operations


def read_layer(job: Job, stage: int, tokens: float = 0.0) -> Layer:
    """A layer's phase: medians over layers, micro-batches and ranks of a pipeline rank.

    Ranks of a tensor-parallel group wait for each other, so where they differ the slowest
    one's times count.

    Args:
        job: the job.
        stage: pipeline rank whose layers are read.
        tokens: rows of the forward pass's products, for the backward pass; 0 for the forward
            pass itself.
    """
    backward = tokens > 0
    seen, resume = _collect(job, backward, stage)
    alike = _signature(job, seen)
    slowest = _slowest(seen.dur.sum(axis=1), seen.where)
    mine = seen.where == slowest
    dur = np.median(seen.dur[mine], axis=0)
    gap = float(np.median(seen.gap[mine]))
    chain, places = seen.first[0]
    phases = _phases(chain, places, tokens)
    base = [
        Row(job.labels[chain.token[place]], phase, ns, work_row(chain.work, int(place)))
        for place, phase, ns in zip(places, phases, dur.tolist(), strict=True)
    ]
    start = Phase.INPUT if backward else Phase.FORWARD
    rows = [Row(GAPS, start, gap), *_woven(job, seen, alike, base, start)]
    if seen.other[mine].any():
        rows.append(Row(OTHER, start, float(seen.other[mine].mean())))
    total = seen.dur[mine].sum(axis=1) + seen.gap[mine] + seen.other[mine]
    return Layer(rows, len(seen.dur), total.astype(np.float64), resume, slowest)


def _collect(job: Job, backward: bool, stage: int) -> tuple[_Seen, F64]:
    dur, gap, other, where, talks, first, resume = [], [], [], [], [], [], []
    for p in job.passes.passes:
        chain = job.chains[p.chain]
        if p.backward != backward or job.stage[chain.rank] != stage:
            continue
        for number in range(len(p.layers)):
            places = p.main[p.layers[number]]
            begin, end = p.bounds(number)
            mine = np.flatnonzero(job.counts[p.chain][begin:end]) + begin
            idle = int(chain.gap_ns[mine].sum())
            if number == 0 and p.after_transfer and _opens(job, p, begin):
                resume.append(float(chain.gap_ns[begin]))
                idle -= int(chain.gap_ns[begin])
            dur.append(chain.dur_ns[places])
            between = mine[chain.main[mine]]
            other.append(int(chain.dur_ns[between].sum() - chain.dur_ns[places].sum()))
            gap.append(idle)
            where.append(job.rank_in.get(chain.rank, 0))
            talks.append(mine[chain.collective[mine] >= 0].tolist())
            first.append((chain, places))
    seen = _Seen(
        np.array(dur), np.array(gap), np.array(other), np.array(where), talks, first
    )  # fmt: skip
    return seen, np.array(resume)


def _opens(job: Job, p: Pass, begin: int) -> bool:
    """Whether nothing of a block stands before the first layer of a pass."""
    return not job.counts[p.chain][p.begin : begin].any()


def _signature(job: Job, seen: _Seen) -> list[int]:
    """Occurrences with the communication that most of them have."""
    signs = []
    for (chain, _), places in zip(seen.first, seen.talks, strict=True):
        signs.append(tuple(job.talk(int(chain.collective[c])) for c in places))
    most = Counter(signs).most_common(1)[0][0]
    return [i for i, sign in enumerate(signs) if sign == most]


def _slowest(total: I64, where: I64) -> int:
    """Number within tensor-parallel groups of the ranks that compute longest."""
    numbers = np.unique(where)
    middle = [float(np.median(total[where == n])) for n in numbers]
    return int(numbers[int(np.argmax(middle))])


def _phases(chain: Chain, places: I64, tokens: float) -> list[Phase]:
    """Phase of each operation; ``tokens`` is 0 in forward passes."""
    if not tokens:
        return [Phase.FORWARD] * len(places)
    weight = weight_products(chain.work.only(places), tokens)
    return [Phase.WEIGHT if w else Phase.INPUT for w in weight.tolist()]


def weight_products(work: Work, tokens: float) -> NDArray[np.bool_]:
    """Which operations of a backward pass are products that make gradients of weights.

    They sum over the tokens, where those of inputs keep the tokens as rows. Where the sides tell
    both (a layer as wide as there are tokens), the first of two equal products is the inputs'. A
    product whose operator tells no shapes (a fused sum into the gradient) counts to weights.
    """
    result = np.zeros(len(work), np.bool_)
    seen: set[tuple[float, ...]] = set()
    for row in np.flatnonzero(work.kind == GEMM).tolist():
        _, m, _, k = work.sides[row].tolist()
        alike = tuple(sorted(work.sides[row].tolist()))
        result[row] = m != tokens or (k == tokens and alike in seen)
        seen.add(alike)
    return result


def _woven(
    job: Job, seen: _Seen, alike: list[int], base: list[Row], phase: Phase
) -> list[Row]:  # fmt: skip
    """Computations and communication in order; what runs together stands together."""
    chain, _ = seen.first[alike[0]]
    count = len(seen.talks[alike[0]])
    if not count:
        return base
    ns = np.array([seen.first[i][0].dur_ns[seen.talks[i]] for i in alike])
    talks = [job.talk(int(chain.collective[c])) for c in seen.talks[alike[0]]]
    place, shared = _overlaps(seen, alike)
    rows = [
        Row(f"{COLLECTIVE_KINDS[t.collective]} {t.group}", phase, float(v), talk=t)
        for t, v in zip(talks, np.median(ns, axis=0), strict=True)
    ]
    return weave(base, rows, place, shared)


def _overlaps(seen: _Seen, alike: list[int]) -> tuple[I64, NDArray[np.bool_]]:
    """Where each communication stands, and which operations run beside it in most cases."""
    place, shared = [], []
    for i in alike:
        chain, places = seen.first[i]
        at, beside = beside_of(chain, np.array(seen.talks[i]), places)
        place.append(at)
        shared.append(beside)
    return np.median(place, axis=0).astype(np.int64), np.mean(shared, axis=0) > 0.5
