"""Numbers, links and windows of the recorder, with a clock that the test turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foretrace.collector.calls import OPERATORS
from foretrace.collector.recorder import GroupState, Recorder


@dataclass
class Clock:
    now: int = 1000

    def __call__(self) -> int:
        self.now += 10
        return self.now


@dataclass
class Group:
    group_name: str
    ranks: list[int]
    rank: int = 0


@dataclass
class Tensor:
    nbytes: int = 8
    dtype: str = "torch.float32"


@dataclass
class Job:
    """One rank that makes calls."""

    recorder: Recorder
    clock: Clock
    met: list[str] = field(default_factory=list)

    def call(self, name: str, group: Group, root: int = -1) -> int:
        operator = OPERATORS[name]
        args: list[Any] = [[Tensor()], group, root if operator.p2p else None, 0]
        start = self.clock()
        ticket = self.recorder.begin(name, operator, args, group, 0)
        self.recorder.end(ticket, start, self.clock())
        self.recorder.spend(7)
        return ticket.ident


def job() -> Job:
    clock, met = Clock(), []

    def describe(group: Group) -> GroupState:
        met.append(group.group_name)
        return GroupState(group.group_name, "", group.rank, group.ranks)

    return Job(Recorder(describe, clock), clock, met)


WORLD = Group("0", [0, 1, 2, 3])
PAIR = Group("1", [1, 3])


def test_collectives_are_numbered_within_their_group() -> None:
    j = job()
    j.recorder.open()
    for group in (WORLD, PAIR, WORLD, WORLD, PAIR):
        j.call("allreduce_", group)
    calls, _, _ = j.recorder.rows()
    assert [(c.group, c.seq) for c in calls] == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1)]
    assert j.met == ["0", "1"]
    assert [g.ranks for g in j.recorder.groups()] == [[0, 1, 2, 3], [1, 3]]


def test_p2p_is_numbered_between_two_ranks_and_each_way() -> None:
    j = job()
    j.recorder.open()
    j.call("send", PAIR, 1)
    j.call("allreduce_", PAIR)
    j.call("recv_", PAIR, 1)
    j.call("send", PAIR, 1)
    j.call("send", WORLD, 2)
    calls, _, _ = j.recorder.rows()
    assert [(c.operator, c.peer, c.seq) for c in calls] == [
        ("send", 3, 0),
        ("allreduce_", -1, 0),
        ("recv_", 3, 0),
        ("send", 3, 1),
        ("send", 2, 0),
    ]


def test_calls_before_the_window_count_but_leave_no_row() -> None:
    j = job()
    j.call("allreduce_", WORLD)
    j.recorder.open()
    j.call("allreduce_", WORLD)
    j.recorder.close()
    j.call("allreduce_", WORLD)
    calls, waits, done = j.recorder.rows()
    assert [c.seq for c in calls] == [1]
    assert (waits, done) == ([], [])
    assert j.recorder.own_ns == [7, 7]


def test_a_wait_finds_its_call_by_the_work() -> None:
    j = job()
    j.recorder.open()
    first = j.call("allreduce_", WORLD)
    work = object()
    j.recorder.remember_work(work)
    second = j.call("allreduce_", WORLD)
    assert j.recorder.work_ident(work) == first
    assert j.recorder.work_ident(object()) == -1
    start = j.clock()
    j.recorder.waited(j.recorder.work_ident(work), start, annotated=False)
    calls, waits, _ = j.recorder.rows()
    assert [(w.ident, w.start_ns, w.end_ns) for w in waits] == [(first, start, start + 10)]
    assert [c.from_python for c in calls] == [True, False]
    assert second == first + 1


def test_a_wait_finds_its_call_by_the_tensor_once() -> None:
    j = job()
    ident = j.call("allreduce_", WORLD)
    j.recorder.remember_outputs(ident, [4096, 8192])
    assert [j.recorder.output_ident(p) for p in (4096, 4096, 8192)] == [ident, -1, ident]


class Timer:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def reached(self, ident: int, tensor: Any) -> None:
        self.seen.append(("reached", ident))

    def waiting(self, ident: int) -> None:
        self.seen.append(("waiting", ident))

    def waited(self, ident: int) -> None:
        self.seen.append(("waited", ident))


def test_the_timer_is_asked_inside_the_window_only() -> None:
    j = job()
    timer = j.recorder.timer = Timer()
    j.call("allreduce_", WORLD)
    j.recorder.open()
    ident = j.call("allreduce_", WORLD)
    j.recorder.waiting(ident)
    j.recorder.waited(ident, j.clock(), annotated=False)
    j.recorder.close()
    j.recorder.waiting(ident)
    assert timer.seen == [("reached", ident), ("waiting", ident), ("waited", ident)]
