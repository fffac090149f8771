"""Parameters in parts on all ranks (FSDP) instead of whole on each (DDP).

The layers stay as they were recorded; the gradient all-reduces go. Units of layers are gathered
before they compute, the next one while one computes, in the backward pass again; the gradients
of a unit are reduced and scattered while the next one computes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from foretrace.replay.graph import JobGraph, TaskKind
from foretrace.replay.schedule.order import Phase
from foretrace.replay.transforms.layercosts import BACKWARD, FORWARD, LayerCosts, layer_costs
from foretrace.replay.transforms.program import Program
from foretrace.traces.errors import ScenarioError
from foretrace.traces.schema import COLLECTIVE_KINDS

STEPS = 3

CostNs = Callable[[str, int, int], float]
"""Time of a collective, ns, by kind, bytes of a rank's largest buffer, and ranks."""


def sharded(
    graph: JobGraph,
    unit: int,
    cost_ns: CostNs,
    forward: str = FORWARD,
    backward: str = BACKWARD,
    steps: int = STEPS,
) -> JobGraph:
    """The data-parallel job with its parameters sharded over all ranks.

    Args:
        graph: a recorded job of one data-parallel group that all-reduces its gradients.
        unit: layers that are gathered and scattered together.
        cost_ns: what a collective costs, waiting excluded.
        forward: pattern of the names of forward passes, its group the layer's number.
        backward: the same of backward passes.
        steps: steps of the new job.

    Raises:
        ScenarioError: the trace lacks named layers or gradient all-reduces of known size.
    """
    costs = layer_costs(graph, forward, backward)
    ranks = tuple(sorted(set(graph.rank[graph.rank >= 0].tolist())))
    layers = costs.layers
    units = [layers[i : i + unit] for i in range(0, len(layers), unit)]
    sizes = [gradient_bytes(graph) * len(u) // len(layers) for u in units]
    builder = _Builder(Program(), costs, ranks, units, sizes, cost_ns)
    for step in range(steps):
        builder.step(step)
    return builder.program.graph()


def gradient_bytes(graph: JobGraph) -> int:
    """Bytes of all gradients: what a step all-reduces.

    Raises:
        ScenarioError: no all-reduce of known size in any step.
    """
    table = graph.collectives
    comm = np.flatnonzero((graph.kind == TaskKind.COMM) & (graph.collective >= 0))
    which, first = np.unique(graph.collective[comm], return_index=True)
    step = graph.step[comm[first]]
    wanted = (table.kind[which] == COLLECTIVE_KINDS.index("all_reduce")) & (step >= 0)
    which, step = which[wanted], step[wanted]
    if not len(which) or (table.bytes[which] < 0).any():
        raise ScenarioError("shard: the trace has no gradient all-reduces of known size")
    each = np.bincount(step - step.min(), table.bytes[which])
    return int(np.median(each[each > 0]))


class _Builder:
    """Writes the program of the sharded job, step by step."""

    def __init__(
        self, program: Program, costs: LayerCosts, ranks: tuple[int, ...],
        units: list[list[int]], sizes: list[int], cost_ns: CostNs,
    ) -> None:  # fmt: skip
        self.program, self.costs, self.ranks = program, costs, ranks
        self.units, self.sizes, self.cost_ns = units, sizes, cost_ns

    def step(self, step: int) -> None:
        """One step of all ranks."""
        for rank in self.ranks:
            self.program.begin(rank, step)
            self.program.work(rank, "begin of step", self.costs.begin_ns)
        self._passes(Phase.FORWARD, list(range(len(self.units))))
        scattered = self._passes(Phase.BACKWARD, list(range(len(self.units)))[::-1])
        for rank in self.ranks:
            for operation in scattered:
                self.program.wait(rank, operation, self.costs.wait_ns)
            self.program.work(rank, "end of step", self.costs.end_ns)
            self.program.end(rank)

    def _passes(self, phase: Phase, order: list[int]) -> list[int]:
        """A pass over all units; returns its reduce-scatters."""
        scattered = []
        ready = self._posted("all_gather", order[0])
        for place, number in enumerate(order):
            for rank in self.ranks:
                self.program.wait(rank, ready, self.costs.wait_ns)
            if place + 1 < len(order):
                ready = self._posted("all_gather", order[place + 1])
            for rank in self.ranks:
                self._compute(rank, phase, self.units[number])
            if phase == Phase.BACKWARD:
                scattered.append(self._posted("reduce_scatter", number))
        return scattered

    def _posted(self, kind: str, number: int) -> int:
        """A collective over all ranks, posted by all."""
        size = self.sizes[number]
        took = self.cost_ns(kind, size, len(self.ranks))
        operation = self.program.operation(kind, self.ranks, size)
        for rank in self.ranks:
            self.program.post(rank, operation, self.costs.call_ns, took)
        return operation

    def _compute(self, rank: int, phase: Phase, layers: list[int]) -> None:
        costs = self.costs
        for layer in layers if phase == Phase.FORWARD else layers[::-1]:
            took = costs.run_ns[phase, layer] + costs.between_ns[phase]
            self.program.work(rank, costs.named(phase, layer), took)
