"""What a step loses because no two executions of an operation last equally long.

A rendezvous waits for its slowest member. With a relative standard deviation for each class of
operations, independent from rank to rank and from one execution to the next, the expected step is
longer than the step of expected durations. The difference is worked out in three parts:

1. *Inside a template* the ranks of a cell (``noise``) meet many times. Between two meetings the
   variances of a rank's operations add up; the meeting costs the expected maximum over its
   members. Simulated, for each different template, with the cell's real groups. Each run of the
   template gets a mean and a variance; sums of many meetings are close to normal.
2. *Along the pipeline* the stages of one replica wait for each other. Simulated on the replica's
   own graph, with runs drawn from part 1.
3. *Across replicas* gradients, and the norm over all ranks, wait for the last one. Nothing of
   one replica's computation waits for another before that, so the step is the maximum over R
   independent replicas of the time M at which one would reach the end::

       E[max of R] = mean(M) + std(M) * e(R, skew(M))

   where ``e`` is the expected largest of R standard deviates, skewed as M is (Cornish and
   Fisher's first correction). The optimizer behind the norm adds its own maximum over all ranks.

Where parameters are sharded (ZeRO 3), replicas meet at every gather; then up to ``_TASKS`` tasks'
worth of replicas are simulated together instead of part 3, and what they lose is scaled by
``e(R) / e(simulated)`` if there are more.

Validity: normal noise that is independent across executions. Noise that lasts (a slow GPU, one
rank's clocks) is no jitter: it is a straggler and takes ``slow`` of ``extrapolate``. Messages
across replicas count with their mean. Agrees with a simulation of all 1,024 ranks within 2 % of
the term (``benchmarks/extrapolate_speed.py`` prints it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.kernel_book import ATTENTION
from foretrace.replay.engine import replay, replay_each
from foretrace.replay.extrapolate.assemble import Job, assemble
from foretrace.replay.extrapolate.fabric import spans
from foretrace.replay.extrapolate.job import (
    Price,
    Prices,
    default_price,
    layout_groups,
    programs_of,
    schedule_of_layout,
)
from foretrace.replay.extrapolate.merge import joined, merged, take_apart
from foretrace.replay.extrapolate.noise import cell_groups, cell_size, uneven_runs
from foretrace.replay.extrapolate.program import Labelled, Transfers
from foretrace.replay.extrapolate.roles import Roles
from foretrace.replay.extrapolate.stages import Stages, Timed
from foretrace.replay.extrapolate.template import Message, Pieces
from foretrace.replay.extrapolate.times import MATRIX
from foretrace.replay.graph import I64, JobGraph
from foretrace.replay.layout import Layout
from foretrace.replay.schedule.order import Schedule

F64 = NDArray[np.float64]
_TASKS = 200_000  # of replicas that are simulated together
_DRAWN = 4_000_000  # deviates in all
_SEED = 20_261_201


class Jitter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Relative standard deviation of one execution, by class of operations.

    Attributes:
        matrix: matrix products.
        attention: fused attention.
        memory: operations limited by memory, the optimizer among them.
        communication: messages, waiting excluded.
        source: where the figures are from.
    """

    matrix: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    communication: float = 0.0
    source: str = ""


def variances(timed: Timed, jitter: Jitter) -> Timed:
    """The workload with each operation's variance, ns squared, in place of its duration."""
    made = []
    for block, ns in zip(timed.workload.blocks, timed.dur_ns, strict=True):
        kind = block.operations.work.kind
        sigma = np.where(MATRIX[kind], jitter.matrix, jitter.memory)
        sigma = np.where(kind == ATTENTION, jitter.attention, sigma)
        made.append(np.rint((sigma * ns) ** 2).astype(np.int64))

    def optimizer(moved: float) -> int:
        return round((jitter.memory * timed.optimizer_ns(moved)) ** 2)

    return Timed(timed.workload, tuple(made), optimizer, timed.launch_ns)


def jitter_ns(
    timed: Timed, jitter: Jitter, layout: Layout, cluster: Cluster, layers: tuple[int, ...],
    prices: Price = default_price,
) -> float:  # fmt: skip
    """Expected step less the step of expected durations, ns; the same for the same arguments.

    Args:
        timed: the workload with the durations of its operations.
        jitter: how far executions differ.
        layout: how it is split.
        cluster: what it runs on.
        layers: layers of each stage.
        prices: times of communication.

    Raises:
        LayoutError: the schedule does not fit the layout.
    """
    rng = np.random.default_rng(_SEED)
    replicas = layout.stage_ranks // cell_size(layout)
    noisy = _Noisy(timed, jitter, layout, layers, rng)
    together = 1
    if layout.zero == 3 and replicas > 1:
        size = len(_graphs(noisy, layout, cluster, prices, 1)[0])
        together = min(replicas, max(_TASKS // size, 2))
    plain, mean, variance = _graphs(noisy, layout, cluster, prices, together)
    ends = np.fromiter(_ends(mean, variance, rng), np.float64)
    base = float(replay(plain).end_ns.max())
    middle, spread = float(ends.mean()), float(ends.std())
    if together > 1:
        lost = (middle - base) * largest(replicas) / largest(together)
    else:
        skew = float(((ends - middle) ** 3).mean() / spread**3) if spread else 0.0
        lost = middle - base + spread * largest(replicas, skew)
    return lost + noisy.optimizer_ns(layout.gpus)


def largest(count: int, skew: float = 0.0) -> float:
    """Expected largest of ``count`` standard deviates with a given skewness."""
    z = np.linspace(-9.0, 9.0, 20_001)
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    below = np.clip((np.cumsum(density) - density / 2) * (z[1] - z[0]), 0.0, 1.0)
    weight = density * count * below ** (count - 1)
    value = z + skew / 6 * (z**2 - 1)
    return float((weight * value).sum() / weight.sum())


@dataclass(frozen=True, slots=True)
class _Template:
    """A template three times over: as it is, with mean times, with variances."""

    versions: tuple[Labelled, Labelled, Labelled]


class _Noisy:
    """Templates of all stages, with the noise of their runs."""

    def __init__(
        self, timed: Timed, jitter: Jitter, layout: Layout, layers: tuple[int, ...],
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self.timed, self.talk, self.rng = timed, jitter.communication, rng
        self.plain = Stages(timed, layout, layers)
        self.spread = Stages(variances(timed, jitter), layout, layers)
        self.groups = cell_groups(layout)
        self.made: dict[tuple[int, bytes], _Template] = {}
        self.held: list[tuple[float, float]] = []  # optimizer of each stage: ns, its deviation

    def template_of(
        self, schedule: Schedule, rows: list[int], edge: tuple[bool, bool], price: Prices, rank: int
    ) -> _Template:
        """Like ``Stages.template_of``, for a pipeline rank with its prices."""
        labelled = self.plain.template_of(schedule, rows, edge)
        variance = self.spread.template_of(schedule, rows, edge).pieces
        cost = price.of(labelled.pieces.messages, rank)
        key = (id(labelled.pieces), cost.tobytes())
        if key not in self.made:
            self.made[key] = self._made(labelled, variance, cost)
        return self.made[key]

    def finish(self, held: list[int]) -> _Template:
        """End of the step; the optimizer's own noise comes behind the last meeting."""
        plain, spread = self.plain.finish(held), self.spread.finish(held)
        work = plain.pieces.message < 0
        self.held.append(
            (
                float(plain.pieces.dur_ns[work].sum()),
                float(np.sqrt(spread.pieces.dur_ns[work].sum())),
            )
        )
        return _Template((plain, plain, replace(plain, pieces=_silent(plain.pieces))))

    def optimizer_ns(self, gpus: int) -> float:
        """What waiting for the slowest optimizer adds, ns; stages of the longest one count."""
        longest = max(self.held)
        alike = sum(1 for ns, _ in self.held if ns > longest[0] - longest[1])
        return longest[1] * largest(max(gpus * alike // len(self.held), 1))

    def _made(self, labelled: Labelled, variance: Pieces, cost: I64) -> _Template:
        pieces = labelled.pieces
        parts = take_apart(pieces)
        plain = merged(labelled, cost)
        talk = np.append(cost, 0)[pieces.message].astype(np.float64)
        says = pieces.message >= 0
        mean = np.where(says, talk, pieces.dur_ns)
        spread = np.where(says, talk * self.talk, np.sqrt(variance.dur_ns))
        found = uneven_runs(pieces, parts, (mean, spread), self.groups, self.rng)
        times = np.rint(found.mean_ns).astype(np.int64).tolist()
        squares = np.rint(found.variance).astype(np.int64).tolist()
        return _Template(
            (
                plain,
                replace(plain, pieces=joined(pieces, parts, times)),
                replace(plain, pieces=joined(_silent(pieces), parts, squares)),
            )
        )


def _silent(pieces: Pieces) -> Pieces:
    """Pieces that take no time."""
    return replace(pieces, dur_ns=np.zeros_like(pieces.dur_ns))


def _graphs(
    noisy: _Noisy, layout: Layout, cluster: Cluster, prices: Price, together: int
) -> list[JobGraph]:
    """Graphs of some replicas: times as they are, mean times of cells, variances; tasks alike."""
    schedule = schedule_of_layout(layout)
    groups = layout_groups(layout)
    lie = {kind: spans(group, cluster) for kind, group in groups.items()}
    one = _stage_roles(layout, groups, 1, layout.stage_ranks)
    cost = Prices(groups, lie, one, cluster, prices)
    roles = _stage_roles(layout, groups, together, cell_size(layout))
    price = Prices(groups, lie, roles, cluster, prices)
    noisy.held.clear()
    transfers = Transfers(noisy.timed.workload.boundary_bytes, not layout.overlap_pipeline)
    graphs = []
    for version in range(3):

        def template(
            rank: int, rows: list[int], edge: tuple[bool, bool], v: int = version
        ) -> Labelled:
            return noisy.template_of(schedule, rows, edge, cost, rank).versions[v]

        def finish(held: list[int], v: int = version) -> Labelled:
            return noisy.finish(held).versions[v]

        programs, links = programs_of(schedule, template, finish, transfers)
        job = Job(
            programs=programs, links=links, roles=roles, stage_ranks=layout.stage_ranks,
            slow=np.ones(len(roles)), load=np.ones(len(roles)), routed=None,
            prices=_nothing if version == 2 else price.of,
            members=lambda kind, role: (),
        )  # fmt: skip
        graphs.append(assemble(job))
    noisy.held[:] = noisy.held[: layout.pp]
    return graphs


def _nothing(messages: tuple[Message, ...], role: int) -> I64:
    del role
    return np.zeros(len(messages), np.int64)


def _stage_roles(layout: Layout, groups: dict[str, I64], replicas: int, cell: int) -> Roles:
    """One role for each stage of some replicas: the first rank of the cell."""
    stage = np.repeat(np.arange(layout.pp), replicas)
    rank = stage * layout.stage_ranks + np.tile(np.arange(replicas) * cell, layout.pp)
    inside = np.arange(layout.gpus) % layout.stage_ranks // cell
    of_rank = np.arange(layout.gpus) // layout.stage_ranks * replicas
    of_rank += np.minimum(inside, replicas - 1)
    own = {kind: group[rank] for kind, group in groups.items()}
    return Roles(of_rank, rank, np.bincount(of_rank, minlength=len(rank)), own)


def _ends(mean: JobGraph, variance: JobGraph, rng: np.random.Generator) -> Iterator[float]:
    """Ends of steps with durations drawn anew.

    Every second step takes the deviates of the one before with the other sign: what the end
    follows in proportion then leaves no trace in the mean and the skewness.
    """
    rows = np.flatnonzero(variance.dur_ns)
    spread = np.sqrt(variance.dur_ns[rows].astype(np.float64))
    count = int(np.clip(_DRAWN // max(len(mean), 1), 32, 16384)) // 2

    def drawn() -> Iterator[tuple[str, I64]]:
        for number in range(count):
            off = np.rint(spread * rng.standard_normal(len(rows))).astype(np.int64)
            for sign in (1, -1):
                dur = mean.dur_ns.copy()
                dur[rows] = np.maximum(dur[rows] + sign * off, 0)
                yield str(sign * number), dur

    for timeline in replay_each(mean, drawn()):
        yield float(timeline.end_ns.max())
