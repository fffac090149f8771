"""Other pipeline stages or micro-batches: a new job made of the recorded layers and messages.

Every stage computes its layers as they were recorded, its passes in the order of a schedule.
Around them it sends and receives as PyTorch's pipelining does: where a rank turns from one phase
to the other, what it has to send and what it needs next go out together and are waited for
together; otherwise a send is waited for after the next pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import I32, I64, EdgeKind, JobGraph, TaskKind
from foretrace.replay.schedule.order import Phase, Schedule
from foretrace.replay.transforms.edit import edges_of
from foretrace.replay.transforms.layercosts import (
    BACKWARD,
    FORWARD,
    LayerCosts,
    layer_costs,
    layer_runs,
)
from foretrace.replay.transforms.program import Program
from foretrace.traces.errors import ScenarioError
from foretrace.traces.schema import COLLECTIVE_KINDS

STEPS = 4
"""The first steps fill the pipeline; where ranks drift into step, later ones tell."""

_MESSAGES = [COLLECTIVE_KINDS.index(kind) for kind in ("send", "recv")]

Turn = tuple[Phase, bool]
"""What a message carries, and whether its receiver turned to that phase from the other."""


@dataclass(frozen=True, slots=True)
class MessageCosts:
    """Messages between neighbouring stages.

    Attributes:
        recv_ns: kind of message -> from both ends being ready to its arrival, ns.
        send_ns: the same to the sender's being free of it.
        bytes: of one message.
    """

    recv_ns: dict[Turn, float]
    send_ns: dict[Turn, float]
    bytes: int

    def received(self, turn: Turn) -> float:
        """Time until a message is there, ns; that of the nearest kind where none was recorded."""
        return _nearest(self.recv_ns, turn)

    def sent(self, turn: Turn) -> float:
        """Time until its sender is free of it, ns."""
        # Somebody who waits late makes a send look long.
        return min(_nearest(self.send_ns, turn), self.received(turn))


def repipelined(
    graph: JobGraph,
    schedule: Schedule,
    forward: str = FORWARD,
    backward: str = BACKWARD,
    steps: int = STEPS,
) -> JobGraph:
    """The job with other stages or micro-batches.

    Layers are spread over the schedule's stages evenly, in their order; a layer costs what it did
    on the rank that held it.

    Args:
        graph: a recorded job of one pipeline, each rank one stage in order.
        schedule: the new order; its ranks hold one stage each.
        forward: pattern of the names of forward passes, its group the layer's number.
        backward: the same of backward passes.
        steps: steps of the new job.

    Raises:
        ScenarioError: the trace lacks named layers or messages, the layers cannot be spread
            evenly, or the schedule has more than one stage a rank or splits its backward passes.
    """
    plain = np.isin(schedule.phase, (Phase.FORWARD, Phase.BACKWARD)).all()
    if schedule.stages != schedule.ranks or not plain:
        raise ScenarioError(
            f"pipeline: schedule {schedule.name!r} has {schedule.stages} stages on "
            f"{schedule.ranks} ranks or splits its backward passes; expected one stage a rank, "
            "with whole forward and backward passes"
        )
    costs, messages = layer_costs(graph, forward, backward), message_costs(graph, forward, backward)
    layers = costs.layers
    if len(layers) % schedule.stages:
        raise ScenarioError(
            f"pipeline: {len(layers)} layers cannot be spread evenly over {schedule.stages} stages"
        )
    each = len(layers) // schedule.stages
    program = Program()
    builder = _Builder(program, schedule, costs, messages)
    for step in range(steps):
        builder.post_ids()
        for rank in range(schedule.ranks):
            builder.rank_step(rank, step, layers[rank * each : (rank + 1) * each])
    return program.graph()


def message_costs(
    graph: JobGraph, forward: str = FORWARD, backward: str = BACKWARD
) -> MessageCosts:
    """Medians of the recorded messages by kind.

    Raises:
        ScenarioError: no message between ranks was recorded at both ends.
    """
    comm = np.flatnonzero((graph.kind == TaskKind.COMM) & (graph.collective >= 0))
    comm = comm[np.isin(graph.collectives.kind[graph.collective[comm]], _MESSAGES)]
    which, count = np.unique(graph.collective[comm], return_counts=True)
    comm = comm[np.isin(graph.collective[comm], which[count == 2])]
    if not len(comm):
        raise ScenarioError("pipeline: no message between ranks was recorded at both ends")
    receives = _receives(graph, comm)
    order = np.lexsort((receives, graph.collective[comm]))
    send, recv = comm[order].reshape(-1, 2).T
    phase = np.where(graph.rank[recv] > graph.rank[send], Phase.FORWARD, Phase.BACKWARD)
    turned = _phase_before(graph, recv, forward, backward) == 1 - phase
    recv_ns, send_ns = {}, {}
    for one in (Phase.FORWARD, Phase.BACKWARD):
        for turn in (False, True):
            alike = (phase == one) & (turned == turn)
            if alike.any():
                recv_ns[one, turn] = float(np.median(graph.dur_ns[recv[alike]]))
                send_ns[one, turn] = float(np.median(graph.dur_ns[send[alike]]))
    size = int(np.median(graph.collectives.bytes[graph.collective[recv]]))
    return MessageCosts(recv_ns, send_ns, size)


class _Builder:
    """Writes the program of one pipeline, step by step."""

    def __init__(
        self, program: Program, schedule: Schedule, costs: LayerCosts, messages: MessageCosts
    ) -> None:
        self.program, self.schedule = program, schedule
        self.costs, self.messages = costs, messages
        self.ids: dict[tuple[Phase, int, int], int] = {}
        self.passes = [self._passes(rank) for rank in range(schedule.ranks)]
        self.turning = {
            (rank, *one)
            for rank, passes in enumerate(self.passes)
            for one, before in zip(passes[1:], passes, strict=False)
            if one[0] != before[0]
        }

    def post_ids(self) -> None:
        """New messages for a step: (phase, micro-batch, sending stage)."""
        stages = self.schedule.stages
        for batch in range(self.schedule.micro_batches):
            for s in range(stages - 1):
                for phase, ends in ((Phase.FORWARD, (s, s + 1)), (Phase.BACKWARD, (s + 1, s))):
                    self.ids[phase, batch, ends[0]] = self.program.operation(
                        "send", ends, self.messages.bytes
                    )

    def rank_step(self, rank: int, step: int, layers: list[int]) -> None:
        """All of one rank's step."""
        program, costs = self.program, self.costs
        program.begin(rank, step)
        program.work(
            rank, "begin of step", max(costs.begin_ns - costs.enter_ns[Phase.FORWARD], 0.0)
        )
        held: tuple[int, Phase, bool] | None = None  # a message of the pass before, and its kind
        late: int | None = None  # a message that is waited for after the next pass
        for phase, batch in self.passes[rank]:
            turns = (rank, phase, batch) in self.turning
            if held is not None:
                self._send(rank, held)
            took = self._take(rank, phase, batch, turns)
            if held is not None and turns:
                program.wait(rank, held[0], costs.wait_ns)
            elif held is not None:
                late = held[0]
            if took is not None:
                program.wait(rank, took, costs.wait_ns)
            self._compute(rank, phase, layers)
            if late is not None:
                program.wait(rank, late, costs.wait_ns)
            held, late = self._to_send(rank, phase, batch), None
        if held is not None:
            self._send(rank, held)
            program.wait(rank, held[0], costs.wait_ns)
        program.work(rank, "end of step", costs.end_ns)
        program.end(rank)

    def _passes(self, rank: int) -> list[tuple[Phase, int]]:
        """Phases and micro-batches of a rank, in order."""
        mine = np.flatnonzero(self.schedule.rank == rank)
        phases = [Phase(int(p)) for p in self.schedule.phase[mine]]
        return list(zip(phases, self.schedule.micro_batch[mine].tolist(), strict=True))

    def _compute(self, rank: int, phase: Phase, layers: list[int]) -> None:
        costs, program = self.costs, self.program
        program.work(rank, f"enter {phase.name.lower()}", costs.enter_ns[phase])
        for number, layer in enumerate(layers if phase == Phase.FORWARD else layers[::-1]):
            between = costs.between_ns[phase] if number else 0.0
            program.work(rank, costs.named(phase, layer), costs.run_ns[phase, layer] + between)

    def _take(self, rank: int, phase: Phase, batch: int, turns: bool) -> int | None:
        """Post the receive that a pass needs."""
        source = rank - 1 if phase == Phase.FORWARD else rank + 1
        if not 0 <= source < self.schedule.stages:
            return None
        message = self.ids[phase, batch, source]
        took = self.messages.received((phase, turns))
        self.program.post(rank, message, self.costs.call_ns, took)
        return message

    def _to_send(self, rank: int, phase: Phase, batch: int) -> tuple[int, Phase, bool] | None:
        """The message that a pass makes, and whether its receiver turns."""
        number = self.ids.get((phase, batch, rank))
        if number is None:
            return None
        target = rank + 1 if phase == Phase.FORWARD else rank - 1
        return number, phase, (target, phase, batch) in self.turning

    def _send(self, rank: int, message: tuple[int, Phase, bool]) -> None:
        number, phase, turns = message
        self.program.post(rank, number, self.costs.call_ns, self.messages.sent((phase, turns)))


def _nearest(times: dict[Turn, float], turn: Turn) -> float:
    phase, turns = turn
    for other in (turn, (phase, not turns), (Phase(1 - phase), turns)):
        if other in times:
            return times[other]
    return next(iter(times.values()))


def _receives(graph: JobGraph, comm: I64) -> np.ndarray:
    """Which ends of messages receive, shape ``(k,)``, bool; by their names."""
    is_recv = np.array(["recv" in name for name in graph.names])
    return np.asarray(is_recv[graph.name[comm]])


def _phase_before(graph: JobGraph, comm: I64, forward: str, backward: str) -> I64:
    """Phase of the layer that each message's rank ran last before it posted it, -1 for none."""
    runs, edges = layer_runs(graph, forward, backward), edges_of(graph)
    posts = np.isin(edges.kind, (EdgeKind.POST, EdgeKind.LAUNCH))
    arrives = posts & (graph.kind[edges.target] == TaskKind.ARRIVE)
    poster = np.full(len(graph), -1, np.int64)
    poster[edges.target[arrives]] = edges.source[arrives]
    # Both halves of an operation lie on its lane, in the same order.
    arrive = np.flatnonzero(graph.kind == TaskKind.ARRIVE)
    done = np.flatnonzero(graph.kind == TaskKind.COMM)
    arrive, done = (t[np.lexsort((t, graph.event[t], graph.lane[t]))] for t in (arrive, done))
    own = np.full(len(graph), -1, np.int64)
    own[done] = poster[arrive]
    # Runs lie by rank, step and order, and so do their tasks.
    place = _place(graph, graph.rank[comm], graph.step[comm], own[comm])
    at = np.searchsorted(_place(graph, runs.rank, runs.step, runs.task), place) - 1
    before = np.maximum(at, 0)
    same = (runs.rank[before] == graph.rank[comm]) & (runs.step[before] == graph.step[comm])
    return np.where((at >= 0) & same, runs.phase[before], -1).astype(np.int64)


def _place(graph: JobGraph, rank: I32, step: I32, task: I64) -> I64:
    """Numbers that are in the order of rank, step and task."""
    steps = int(graph.step.max(initial=0)) + 2
    place: I64 = (rank.astype(np.int64) * steps + step + 1) * (len(graph) + 1) + task
    return place
