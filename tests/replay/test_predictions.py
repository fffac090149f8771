"""What-ifs predicted from a recording against a run in which they really happened."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replay.machine import LAUNCHING, Machine, Op
from tests.replay.traces import COMPUTE, COPY, US, Job, job

from foretrace.replay.graph import TaskKind

DEVICE = (TaskKind.KERNEL, TaskKind.MEMCPY, TaskKind.ARRIVE)

FILL = st.one_of(
    st.builds(Op, st.just("work"), st.integers(1, 60)),
    st.builds(Op, st.just("kernel"), st.integers(5, 150), st.sampled_from([COMPUTE, COPY])),
    st.builds(Op, st.just("record"), stream=st.sampled_from([COMPUTE, COPY])),
    st.builds(Op, st.just("wait"), stream=st.sampled_from([COMPUTE, COPY])),
    st.builds(Op, st.just("sync")),
    st.builds(Op, st.just("item"), st.integers(5, 20)),
)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """One to three ranks with up to three collectives; each rank fills the time as it likes."""
    ranks = draw(st.integers(1, 3))
    stages = draw(st.integers(0, 3))
    lasts = [draw(st.integers(5, 80)) for _ in range(stages)]
    programs = []
    for _ in range(ranks):
        program = [Op("kernel", 10)]
        for last in lasts:
            program += draw(st.lists(FILL, max_size=4))
            # The stream in use when a collective begins shows in the last kernel before it.
            program += [Op("kernel", draw(st.integers(5, 150))), Op("collective", last)]
            program += draw(st.lists(FILL, max_size=3))
            program += [Op("kernel", 5), Op("await"), Op("kernel", draw(st.integers(5, 90)))]
        programs.append([*program, *draw(st.lists(FILL, max_size=4))])
    begins = [0, *(draw(st.integers(0, 200)) for _ in range(ranks - 1))]
    return Machine(programs, begins, pause=draw(st.integers(1, 3)))


def device_starts(j: Job) -> dict[str, int]:
    """Predicted start of every device task by its name, us."""
    run, g = j.replayed(), j.graph
    tasks = [t for kind in DEVICE for t in j.tasks(kind)]
    return {g.names[g.name[t]].split(") ")[-1]: int(run.start_ns[t]) // US for t in tasks}


def true_starts(machine: Machine) -> dict[str, int]:
    return {
        f"{op.what} {rank}.{i}": machine.arrives(rank, i)
        for rank, program in enumerate(machine.programs)
        for i, op in enumerate(program)
        if op.what in LAUNCHING
    }


def step_ends(j: Job) -> list[int]:
    """Predicted end of the step on each rank's host, us."""
    run, marks = j.replayed(), j.graph.steps
    order = marks.rank.argsort()
    return [int(run.end_ns[t]) // US for t in marks.end[order]]


def recorded(machine: Machine) -> Job:
    with tempfile.TemporaryDirectory() as folder:
        return job(Path(folder), *machine.traces())


def true_ends(machine: Machine) -> list[int]:
    return [machine.at(rank, len(program)) for rank, program in enumerate(machine.programs)]


@settings(max_examples=100)
@given(machines(), st.data())
def test_an_intervention_is_predicted(machine: Machine, data: st.DataObject) -> None:
    """Some kernels, transfers and calls take longer, or less long."""
    j = recorded(machine)
    assert device_starts(j) == true_starts(machine)
    assert step_ends(j) == true_ends(machine)
    spots = [(r, i) for r, p in enumerate(machine.programs) for i in range(len(p))]
    changed = Machine(machine.programs, machine.begins, machine.pause)
    for rank, i in data.draw(st.lists(st.sampled_from(spots), max_size=4, unique=True)):
        op = machine.programs[rank][i]
        if op.what == "kernel":
            by = data.draw(st.integers(-op.us, 400))
            changed.longer[rank, i] = by
            j.longer(j.task(TaskKind.KERNEL, f"kernel {rank}.{i}"), by)
        if op.what == "collective":
            by = data.draw(st.integers(0, 400))
            _lengthen(j, changed, len(machine.launched(rank, i, 20)), by)
        if op.what in ("kernel", "collective"):
            by = data.draw(st.integers(0, 90))
            changed.slower[rank, i] = by
            j.longer(j.task(TaskKind.CALL, f"call {rank}.{i}"), by)
    assert device_starts(j) == true_starts(changed)
    assert step_ends(j) == true_ends(changed)


def _lengthen(j: Job, machine: Machine, number: int, by: int) -> None:
    """One collective takes longer on all of its members."""
    for rank, program in enumerate(machine.programs):
        i = machine.launched(rank, len(program), 20)[number]
        machine.longer[rank, i] = machine.longer.get((rank, i), 0) + by
        j.longer(j.task(TaskKind.COMM, f"collective {rank}.{i}"), by)
