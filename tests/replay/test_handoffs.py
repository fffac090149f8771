"""Threads that wait for each other: backward on the autograd thread, main thread blocked."""

from __future__ import annotations

from pathlib import Path

from tests.replay.traces import AUTOGRAD, MAIN, WORKER, Job, RankTrace, job

from foretrace.replay.graph import EdgeKind, TaskKind

CALL, MARK = TaskKind.CALL, TaskKind.MARK
NODE = "autograd::engine::evaluate_function: MulBackward0"


def backward(r: RankTrace, start: float, nodes: int, each: float = 100) -> None:
    """Nodes of the graph, one after another on autograd's thread, each launching a kernel."""
    for i in range(nodes):
        at = start + i * each
        r.op(NODE, at, each - 10, AUTOGRAD)
        r.kernel(f"grad {i}", at + 20, at + 20, 4, thread=AUTOGRAD)


def step() -> RankTrace:
    """Forward to 200, backward 230-720 on autograd's thread, optimizer from 750."""
    r = RankTrace()
    r.mark(1, 0, 1_000)
    r.op("forward", 10, 190)
    r.kernel("f", 50, 50, 4)
    backward(r, 230, 5)
    r.op("optimizer", 750, 200)
    r.kernel("o", 800, 800, 4)
    return r


def launch(j: Job, name: str) -> int:
    return j.task(CALL, f"launch {name}")


def test_main_to_autograd_and_back(tmp_path: Path) -> None:
    j = job(tmp_path, step())
    names = ["f", "grad 0", "grad 1", "grad 4", "o"]
    assert [j.start(launch(j, n)) for n in names] == [50, 250, 350, 650, 800]
    # Forward takes 60 us longer: backward and the optimizer move with it.
    j.longer(launch(j, "f"), 60)
    assert [j.start(launch(j, n)) for n in names] == [50, 310, 410, 710, 860]
    # Backward takes 40 us longer: the optimizer moves, forward does not.
    j.longer(launch(j, "grad 1"), 40)
    assert [j.start(launch(j, n)) for n in names] == [50, 310, 410, 750, 900]
    assert j.start(j.tasks(MARK)[1]) == 1_100


def test_the_blocked_threads_time_is_no_work(tmp_path: Path) -> None:
    j = job(tmp_path, step())
    # 520 us of the gap 200-750 are backward; 30 on each side the hand-over.
    host = [t for t in j.tasks(TaskKind.HOST) if j.graph.lanes.number[j.graph.lane[t]] == MAIN]
    assert max(j.dur_us(t) for t in host) < 200
    j.longer(launch(j, "f"), 0)
    for i in range(5):
        j.longer(launch(j, f"grad {i}"), -4)
    assert j.start(launch(j, "o")) == 780


def test_a_hand_over_is_no_wait_of_the_worker(tmp_path: Path) -> None:
    j = job(tmp_path, step())
    first = [t for t in j.tasks(TaskKind.HOST) if j.before(t, EdgeKind.THREAD)]
    assert len(first) == 2
    assert [j.dur_us(t) for t in first] == [30, 30]  # 200 -> 230 and 720 -> 750


def test_the_engine_hands_a_task_back(tmp_path: Path) -> None:
    # Autograd is at work through the gap and beyond: main waits for one node's result only.
    r = RankTrace()
    r.mark(1, 0, 1_500)
    r.kernel("f", 20, 20, 4)
    r.op("forward", 10, 90)
    backward(r, 130, 10)  # 130-1120
    r.op("other", 460, 200)  # main goes on while autograd works
    r.kernel("x", 500, 500, 4)
    j = job(tmp_path, r)
    assert j.start(launch(j, "x")) == 500
    j.longer(launch(j, "grad 2"), 70)  # before main goes on
    assert j.start(launch(j, "x")) == 570
    j.longer(launch(j, "grad 6"), 900)  # behind it
    assert j.start(launch(j, "x")) == 570


def test_an_idle_thread_waits_for_its_work_each_time(tmp_path: Path) -> None:
    r = RankTrace()
    for i in range(3):
        at = 2_000 * i
        r.mark(i, at, at + 1_900)
        r.op("forward", at + 10, 190)
        r.kernel(f"f{i}", at + 50, at + 50, 4)
        r.op(NODE, at + 230, 900, AUTOGRAD)
        r.kernel(f"g{i}", at + 300, at + 300, 4, thread=AUTOGRAD)
        r.op("optimizer", at + 1_160, 700)
        r.kernel(f"o{i}", at + 1_200, at + 1_200, 4)
    j = job(tmp_path, r)
    j.longer(launch(j, "g0"), 100)
    assert j.start(launch(j, "o0")) == 1_300
    assert j.start(launch(j, "g1")) == 2_400
    assert j.start(launch(j, "o2")) == 5_300


def test_a_short_pause_is_work(tmp_path: Path) -> None:
    # 40 us between two operators of main while another thread happens to be at work.
    r = RankTrace()
    r.mark(1, 0, 300)
    r.op("a", 0, 100)
    r.kernel("a", 10, 10, 4)
    r.op("other", 102, 36, WORKER)
    r.kernel("w", 110, 110, 4, stream=9, thread=WORKER)
    r.op("b", 140, 100)
    r.kernel("b", 150, 150, 4)
    j = job(tmp_path, r)
    j.longer(launch(j, "w"), 500)
    assert j.start(launch(j, "b")) == 150


def test_a_thread_that_works_beside_main_is_not_waited_for(tmp_path: Path) -> None:
    # The data loader works on and on; a long pause of main is not its doing.
    r = RankTrace()
    r.mark(1, 0, 1_000)
    r.op("a", 0, 200)
    r.kernel("a", 10, 10, 4)
    for i in range(10):
        r.op("load", 95 * i, 90, WORKER)
        r.kernel(f"w{i}", 95 * i + 20, 95 * i + 20, 4, stream=9, thread=WORKER)
    r.op("b", 700, 100)
    r.kernel("b", 750, 750, 4)
    j = job(tmp_path, r)
    j.longer(launch(j, "w4"), 400)
    assert j.start(launch(j, "b")) == 750
