"""The job graph of one training step: a workload under a layout on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.cluster import Cluster
from foretrace.replay.costs.collectives.cost import Collectives
from foretrace.replay.costs.collectives.price import price
from foretrace.replay.costs.collectives.shapes import KINDS
from foretrace.replay.extrapolate.assemble import Job, Link, assemble
from foretrace.replay.extrapolate.fabric import Spans, spans
from foretrace.replay.extrapolate.merge import merged
from foretrace.replay.extrapolate.program import Labelled, Program, Transfers, program
from foretrace.replay.extrapolate.roles import Roles, fold, unfolded
from foretrace.replay.extrapolate.stages import Stages, Timed
from foretrace.replay.extrapolate.template import Lane, Message
from foretrace.replay.graph import I64, JobGraph
from foretrace.replay.layout import GROUP_KINDS, Layout, group_of, group_size
from foretrace.replay.schedule.named import named_schedule
from foretrace.replay.schedule.order import Phase, Schedule, check
from foretrace.replay.schedule.table import read_schedule
from foretrace.replay.workload.loads import routed
from foretrace.traces.schema import COLLECTIVE_KINDS

F64 = NDArray[np.float64]
Price = Callable[[Collectives, Cluster], F64]
"""Collectives on a cluster -> microseconds of each."""


@dataclass(frozen=True, slots=True)
class Extrapolated:
    """A job graph and what its ranks stand for.

    Attributes:
        graph: the graph; ``rank`` is the first rank of a role.
        roles: roles of all ranks.
        schedule: pipeline schedule.
        layout: the layout.
        cluster: the machine.
        inside: for each role communication that its computations hold, see ``Program.inside``.
    """

    graph: JobGraph
    roles: Roles
    schedule: Schedule
    layout: Layout
    cluster: Cluster
    inside: tuple[Mapping[str, int], ...]


def default_price(ops: Collectives, cluster: Cluster) -> F64:
    """The cost models' time of each operation, microseconds."""
    return price(ops, cluster).time_us


def extrapolate(
    timed: Timed, layout: Layout, cluster: Cluster, layers: tuple[int, ...], *,
    slow: F64 | None = None, whole: bool = False, brief: bool = False, loads: F64 | None = None,
    prices: Price = default_price,
) -> Extrapolated:  # fmt: skip
    """Build the job graph.

    Args:
        timed: the workload with the durations of its operations.
        layout: how it is split.
        cluster: what it runs on; ranks fill the nodes in order.
        layers: layers of each stage.
        slow: factor of each rank's computations, shape ``(gpus,)``; all 1 by default.
        whole: lay out every rank instead of one of each role.
        brief: merge what runs in turn on stages whose ranks all do the same; the same times from
            fewer tasks.
        loads: tokens that come to the experts of each expert-parallel rank, over an even share,
            shape ``(ep,)``; their computations take that much longer, and the all-to-all goes
            at the pace of the busiest rank.
        prices: times of communication.

    Raises:
        LayoutError: the schedule does not fit the layout.
    """
    schedule = schedule_of_layout(layout)
    groups = layout_groups(layout)
    lie = {kind: spans(group, cluster) for kind, group in groups.items()}
    factor = np.ones(layout.gpus) if slow is None else slow
    load = np.ones(layout.gpus) if loads is None else loads[_expert_rank(layout)]
    roles = _roles(layout, groups, lie, (factor, load), whole)
    stages = Stages(timed, layout, layers)
    priced = Prices(groups, lie, roles, cluster, prices, load)
    shorten = _shortened(roles, layout, factor * load, priced) if brief else _as_it_is
    transfers = Transfers(timed.workload.boundary_bytes, not layout.overlap_pipeline)

    def template(rank: int, rows: list[int], edge: tuple[bool, bool]) -> Labelled:
        return shorten(rank, stages.template_of(schedule, rows, edge))

    programs, links = programs_of(schedule, template, stages.finish, transfers)
    job = Job(
        programs=programs,
        links=links,
        roles=roles,
        stage_ranks=layout.stage_ranks,
        slow=factor[roles.rank],
        load=load[roles.rank],
        routed=_routed(timed, layout, layers, schedule, transfers) if (load != 1).any() else None,
        prices=priced.of,
        members=lambda kind, role: tuple(
            np.flatnonzero(groups[kind] == groups[kind][roles.rank[role]]).tolist()
        ),
    )
    inside = tuple(programs[rank].inside for rank in roles.rank // layout.stage_ranks)
    return Extrapolated(assemble(job), roles, schedule, layout, cluster, inside)


def layout_groups(layout: Layout) -> dict[str, I64]:
    """Group of every rank for each kind of group that has several members."""
    groups = {kind: group_of(layout, kind) for kind in GROUP_KINDS if group_size(layout, kind) > 1}
    if layout.gpus > 1:
        groups["world"] = np.zeros(layout.gpus, np.int64)
    return groups


def schedule_of_layout(layout: Layout) -> Schedule:
    """The layout's schedule, by name or from its file."""
    if layout.schedule.endswith(".csv"):
        schedule = read_schedule(Path(layout.schedule))
    else:
        schedule = _checked(layout.schedule, layout.pp, layout.micro_batches, layout.virtual)
    return schedule


@lru_cache(maxsize=256)
def _checked(name: str, ranks: int, micro_batches: int, chunks: int) -> Schedule:
    schedule = named_schedule(name, ranks, micro_batches, chunks)
    check(schedule)
    return schedule


def _roles(
    layout: Layout,
    groups: dict[str, I64],
    lie: dict[str, Spans],
    paces: tuple[F64, ...],
    whole: bool,
) -> Roles:
    if whole or not groups:
        return unfolded(groups or {"world": np.zeros(layout.gpus, np.int64)})
    traits: list[NDArray[np.generic]] = [np.arange(layout.gpus) // layout.stage_ranks, *paces]
    for kind, group in groups.items():
        columns = (lie[kind].nodes, lie[kind].share)
        traits += [column[group] for column in columns if column.min() != column.max()]
    return fold(traits, groups)


def _expert_rank(layout: Layout) -> I64:
    """Place of each rank in its expert-parallel group, shape ``(gpus,)``."""
    inside = np.arange(layout.gpus) % layout.stage_ranks
    return inside // layout.etp % layout.ep


def _routed(
    timed: Timed, layout: Layout, layers: tuple[int, ...], schedule: Schedule, transfers: Transfers
) -> list[I64]:
    """Part of each piece's duration that follows the tokens of a rank's experts, by program."""
    own = tuple(
        np.where(routed(block.operations), ns, 0)
        for block, ns in zip(timed.workload.blocks, timed.dur_ns, strict=True)
    )
    stages = Stages(Timed(timed.workload, own, lambda moved: 0, timed.launch_ns), layout, layers)

    def template(rank: int, rows: list[int], edge: tuple[bool, bool]) -> Labelled:
        del rank
        return stages.template_of(schedule, rows, edge)

    programs, _ = programs_of(schedule, template, stages.finish, transfers)
    return [np.where(program.lane == Lane.HOST, 0, program.dur_ns) for program in programs]


Shorten = Callable[[int, Labelled], Labelled]
"""(pipeline rank, template) -> a template with the same times."""


def _as_it_is(rank: int, labelled: Labelled) -> Labelled:
    del rank
    return labelled


def _shortened(roles: Roles, layout: Layout, slow: F64, prices: Prices) -> Shorten:
    """Merge templates of pipeline ranks whose ranks have one role and normal speed."""
    pipeline = roles.rank // layout.stage_ranks
    single = np.bincount(pipeline, minlength=layout.pp) == 1
    single &= slow.reshape(layout.pp, -1).min(axis=1) == slow.reshape(layout.pp, -1).max(axis=1)
    single &= slow.reshape(layout.pp, -1)[:, 0] == 1
    role = np.argsort(pipeline, kind="stable")[np.searchsorted(np.sort(pipeline), range(layout.pp))]
    made: dict[tuple[int, bytes], Labelled] = {}

    def shorten(rank: int, labelled: Labelled) -> Labelled:
        if not single[rank]:
            return labelled
        pieces = labelled.pieces
        price = prices.of(pieces.messages, int(role[rank]))
        key = (id(pieces), price.tobytes())
        if key not in made:
            made[key] = merged(labelled, price)
        return replace(made[key], name=labelled.name)

    return shorten


TemplateOf = Callable[[int, list[int], tuple[bool, bool]], Labelled]
"""(pipeline rank, rows that run together, edges of the step) -> template; see ``Stages``."""


def programs_of(
    schedule: Schedule,
    template_of: TemplateOf,
    finish: Callable[[list[int]], Labelled],
    transfers: Transfers,
) -> tuple[list[Program], Link]:
    """Programs of all pipeline ranks, and the transfers between them.

    Args:
        schedule: the schedule.
        template_of: what a rank does at a place of its order.
        finish: what a rank with these stages does at the end of the step.
        transfers: what goes from stage to stage.
    """
    source, target = _transfers(schedule)
    starts = np.searchsorted(schedule.rank, np.arange(schedule.ranks + 1))
    leaves = np.zeros(len(schedule), np.int64)
    leaves[source] = 1
    first, last = _edges_of_step(schedule)
    alike = ((schedule.stage.astype(np.int64) * len(Phase) + schedule.phase) * 2 + first) * 2 + last
    programs = []
    for rank in range(schedule.ranks):
        rows = np.arange(starts[rank], starts[rank + 1])
        held = np.unique(schedule.stage[rows]).tolist()
        programs.append(
            program(
                schedule,
                rows,
                leaves[rows],
                alike[rows],
                lambda places, rank=rank: template_of(  # type: ignore[misc]
                    rank, places, (bool(first[places].any()), bool(last[places].any()))
                ),
                finish(held),
                transfers,
            )
        )
    ranks = schedule.rank.astype(np.int64)
    link = Link(
        ranks[source], source - starts[ranks[source]], ranks[target], target - starts[ranks[target]]
    )
    return programs, link


def _transfers(schedule: Schedule) -> tuple[I64, I64]:
    """Rows whose results other ranks' rows wait for."""
    shape = (schedule.micro_batches, schedule.stages)
    cell = schedule.micro_batch.astype(np.int64) * shape[1] + schedule.stage
    forward, backward = (np.full(shape[0] * shape[1], -1, np.int64) for _ in range(2))
    rows = np.arange(len(schedule))
    ahead = schedule.phase == Phase.FORWARD
    back = np.isin(schedule.phase, (Phase.BACKWARD, Phase.INPUT))
    forward[cell[ahead]], backward[cell[back]] = rows[ahead], rows[back]
    up, down = forward.reshape(shape), backward.reshape(shape)
    source = np.concatenate([up[:, :-1].reshape(-1), down[:, 1:].reshape(-1)])
    target = np.concatenate([up[:, 1:].reshape(-1), down[:, :-1].reshape(-1)])
    across = schedule.rank[source] != schedule.rank[target]
    return source[across], target[across]


def _edges_of_step(schedule: Schedule) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Each rank and stage's first forward, and its last row with gradients of weights."""
    key = schedule.rank.astype(np.int64) * schedule.stages + schedule.stage
    first, last = (np.zeros(len(schedule), np.bool_) for _ in range(2))
    ahead = np.flatnonzero(schedule.phase == Phase.FORWARD)
    first[ahead[np.unique(key[ahead], return_index=True)[1]]] = True
    weights = np.flatnonzero(np.isin(schedule.phase, (Phase.BACKWARD, Phase.WEIGHT)))[::-1]
    last[weights[np.unique(key[weights], return_index=True)[1]]] = True
    return first, last


class Prices:
    """Prices of messages; each different (message, lie of a group) is priced once."""

    def __init__(
        self, groups: dict[str, I64], lie: dict[str, Spans], roles: Roles, cluster: Cluster,
        prices: Price, load: F64 | None = None,
    ) -> None:  # fmt: skip
        self.lie, self.cluster, self.prices = lie, cluster, prices
        self.group = {kind: group[roles.rank] for kind, group in groups.items()}
        self.load = np.ones(len(roles)) if load is None else load[roles.rank]
        self.busiest = float(self.load.max())
        self.known: dict[tuple[object, ...], int] = {}

    def of(self, messages: tuple[Message, ...], role: int) -> I64:
        """Time of each message, ns, on a role's groups."""
        keys = [self._key(message, role) for message in messages]
        new = list(dict.fromkeys(key for key in keys if key not in self.known))
        if new:
            kind, size, ranks, nodes, share = zip(*new, strict=True)
            times = self.prices(Collectives.of(kind, size, ranks, nodes, share), self.cluster)
            self.known.update(zip(new, np.rint(times * 1e3).astype(np.int64).tolist(), strict=True))
        return np.array([self.known[key] for key in keys], np.int64)

    def _key(self, message: Message, role: int) -> tuple[int, int, int, int, float]:
        lie, group = self.lie[message.group], self.group[message.group][role]
        name = COLLECTIVE_KINDS[message.collective]
        nodes = int(lie.nodes[group])
        pair = name == "send_recv"
        pace = {"ep": self.busiest, "etp": self.load[role]}.get(message.group, 1.0)
        ranks = 2 if pair else int(lie.ranks[group])
        return (
            KINDS.index(name), round(message.bytes * pace), ranks, min(nodes, 2) if pair else nodes,
            float(lie.share[group]),
        )  # fmt: skip
