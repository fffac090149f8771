"""Other stages, micro-batches and sharding, held against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.replay.engine import replay
from foretrace.replay.graph import JobGraph
from foretrace.replay.schedule.order import Phase
from foretrace.replay.schedule.simple import gpipe, interleaved, one_forward_one_backward
from foretrace.replay.timeline import step_windows
from foretrace.replay.transforms.layercosts import layer_costs
from foretrace.replay.transforms.program import Program
from foretrace.replay.transforms.repipeline import message_costs, repipelined
from foretrace.replay.transforms.shard import gradient_bytes, sharded
from foretrace.traces.errors import ScenarioError

LAYERS = 4


def step_ns(graph: JobGraph) -> int:
    """Time between the last two steps' ends."""
    ends = np.maximum.accumulate(step_windows(replay(graph)).end_ns)
    return int(ends[-1] - ends[-2])


def two_stages(forward: int, backward: int, message: int, batches: int = 4) -> JobGraph:
    """A recorded pipeline: every forward, then every backward; each message waited for at once."""
    program = Program()
    for step in range(3):
        sends = {
            (phase, b): program.operation("send", ends, 4096)
            for phase, ends in (("forward", (0, 1)), ("backward", (1, 0)))
            for b in range(batches)
        }
        for rank in range(2):
            program.begin(rank, step)
            own = range(rank * 2, rank * 2 + 2)
            for phase, took, order in (
                ("forward", forward, own), ("backward", backward, reversed(own)),
            ):  # fmt: skip
                layers = list(order)
                receives = rank == (phase == "forward")
                for b in range(batches):
                    if receives:
                        program.post(rank, sends[phase, b], 0, message)
                        program.wait(rank, sends[phase, b])
                    for layer in layers:
                        program.work(rank, f"{phase} layer {layer}", took)
                    if not receives:
                        program.post(rank, sends[phase, b], 0, 0)
            program.end(rank)
    return program.graph()


def test_costs_of_layers_and_messages_are_found() -> None:
    graph = two_stages(10, 25, 7)
    costs = layer_costs(graph)
    assert costs.layers == [0, 1, 2, 3]
    assert {costs.run_ns[Phase.FORWARD, n] for n in range(4)} == {10}
    assert {costs.run_ns[Phase.BACKWARD, n] for n in range(4)} == {25}
    assert costs.between_ns == {Phase.FORWARD: 0, Phase.BACKWARD: 0}
    found = message_costs(graph)
    assert found.bytes == 4096
    assert {found.received((phase, False)) for phase in (Phase.FORWARD, Phase.BACKWARD)} == {7}


def test_work_between_layers_and_passes_is_told_apart() -> None:
    program = Program()
    for step in range(2):
        program.begin(0, step)
        for name, took in (
            ("load", 3), ("forward layer 0", 10), ("glue", 2), ("forward layer 1", 11),
            ("loss", 5), ("backward layer 1", 20), ("hook", 1), ("backward layer 0", 21),
            ("optimizer", 9),
        ):  # fmt: skip
            program.work(0, name, took)
        program.end(0)
    costs = layer_costs(program.graph())
    assert (costs.begin_ns, costs.end_ns) == (3, 9)
    assert costs.between_ns == {Phase.FORWARD: 2, Phase.BACKWARD: 1}
    assert costs.enter_ns == {Phase.FORWARD: 0, Phase.BACKWARD: 5}
    assert costs.run_ns[Phase.BACKWARD, 0] == 21


@settings(max_examples=25)
@given(
    st.sampled_from([1, 2, 4]), st.integers(1, 4), st.integers(1, 40), st.integers(1, 80),
)  # fmt: skip
def test_1f1b_takes_its_known_time(stages: int, more: int, forward: int, backward: int) -> None:
    """(micro-batches + stages - 1) times both passes of a stage, where messages are free."""
    batches = stages * more
    new = repipelined(
        two_stages(forward, backward, 0), one_forward_one_backward(stages, batches), steps=2
    )
    each = LAYERS // stages * (forward + backward)
    ends = step_windows(replay(new))
    assert int(ends.end_ns[0]) == (batches + stages - 1) * each


def test_messages_between_stages_delay_the_first_and_the_last_pass() -> None:
    new = repipelined(two_stages(10, 20, 7), gpipe(2, 1), steps=2)
    # One micro-batch: forward, message, forward, backward, message, backward.
    assert int(step_windows(replay(new)).end_ns[0]) == 20 + 7 + 20 + 40 + 7 + 40


def test_layers_have_to_fill_the_stages_and_be_named() -> None:
    graph = two_stages(1, 1, 1)
    with pytest.raises(ScenarioError, match="4 layers cannot be spread evenly over 3"):
        repipelined(graph, one_forward_one_backward(3, 3))
    with pytest.raises(ScenarioError, match="annotate the layers"):
        repipelined(graph, one_forward_one_backward(2, 2), forward="no such (\\d+)", backward="x")


def test_schedules_and_layers_that_do_not_fit_are_refused() -> None:
    graph = two_stages(1, 1, 1)
    with pytest.raises(ScenarioError, match="expected one stage a rank"):
        repipelined(graph, interleaved(2, 4, 2))
    with pytest.raises(ScenarioError, match="layer 0 was recorded in one of"):
        layer_costs(graph, backward=r"backward layer ([123])$")


def data_parallel(ranks: int) -> JobGraph:
    """Every rank computes all layers and all-reduces 4 kB of gradients in two buckets."""
    program = Program()
    for step in range(3):
        buckets = [program.operation("all_reduce", tuple(range(ranks)), 2000) for _ in range(2)]
        for rank in range(ranks):
            program.begin(rank, step)
            for layer in range(LAYERS):
                program.work(rank, f"forward layer {layer}", 10)
            for layer in reversed(range(LAYERS)):
                program.work(rank, f"backward layer {layer}", 20)
            for bucket in buckets:
                program.post(rank, bucket, 0, 33)
            for bucket in buckets:
                program.wait(rank, bucket)
            program.end(rank)
    return program.graph()


@pytest.mark.parametrize(
    ("gather", "scatter", "expected"),
    [
        # Gathers hide behind two layers of work, but for the first one of each pass; of the
        # scatters only the last one shows.
        (15, 30, 15 + 20 + 20 + 15 + 40 + 40 + 30),
        # Bound by the network: two gathers, the forward pass of the second unit, then one gather
        # after another and both scatters behind the work of their units.
        (50, 60, 50 + 50 + 20 + 50 + 50 + 60 + 60),
    ],
)
def test_sharded_parameters(gather: int, scatter: int, expected: int) -> None:
    graph = data_parallel(2)
    assert gradient_bytes(graph) == 4000
    seen = set()

    def cost_ns(kind: str, size: int, ranks: int) -> float:
        seen.add((kind, size, ranks))
        return {"all_gather": gather, "reduce_scatter": scatter}[kind]

    new = sharded(graph, 2, cost_ns)
    assert seen == {("all_gather", 2000, 2), ("reduce_scatter", 2000, 2)}
    assert step_ns(new) == expected


def test_a_job_without_gradients_cannot_be_sharded() -> None:
    with pytest.raises(ScenarioError, match="no gradient all-reduces"):
        sharded(two_stages(1, 1, 1), 1, lambda *_: 1.0)
