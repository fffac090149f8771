"""Recordings without host rows, and jobs whose host threads carry out the communication (gloo)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.replay.traces import COMM, MAIN, WORKER, Job, RankTrace, job

from foretrace.replay.graph import EdgeKind, TaskKind
from foretrace.replay.timeline import measured, step_windows

ARRIVE, CALL, COMMUNICATE, KERNEL, MARK = (
    TaskKind.ARRIVE,
    TaskKind.CALL,
    TaskKind.COMM,
    TaskKind.KERNEL,
    TaskKind.MARK,
)


def device_only() -> list[RankTrace]:
    """Kernels and an all-reduce of two ranks; what launched them was not recorded."""
    result = []
    for rank, busy in ((0, 100), (1, 400)):
        r = RankTrace(rank=rank, groups=[(0, 1)])
        r.work("before", 50 * rank, busy, COMM)
        work = r.work("ncclDevKernel_AllReduce", 50 * rank + busy, 500 - 50 * rank - busy, COMM)
        r.work("after", 500, 30, COMM)
        r.work("aside", 60, 20)
        r.operation("all_reduce", work, group=0, seq=1)
        result.append(r)
    return result


def test_device_rows_alone(tmp_path: Path) -> None:
    j = job(tmp_path, *device_only())
    assert [j.start(j.task(KERNEL, "after", rank=r)) for r in (0, 1)] == [500, 500]
    assert [j.start(j.task(KERNEL, "aside", rank=r)) for r in (0, 1)] == [60, 60]
    assert [j.dur_us(t) for t in j.tasks(COMMUNICATE)] == [50, 50]
    for timeline in (measured(j.graph), j.replayed()):
        w = step_windows(timeline)
        assert (w.step.tolist(), w.dur_ns.tolist()) == ([0], [530_000])
    j.longer(j.task(KERNEL, "before", rank=1), 200)
    assert [j.start(j.task(KERNEL, "after", rank=r)) for r in (0, 1)] == [700, 700]
    assert [j.start(j.task(KERNEL, "aside", rank=r)) for r in (0, 1)] == [60, 60]
    assert step_windows(j.replayed()).dur_ns.tolist() == [730_000]


def gloo(recorded_wait: bool) -> list[RankTrace]:
    """Rank 0 comes to the all-reduce at 210, rank 1 at 510; it takes 290; both use it at once."""
    result = []
    for rank, forward in ((0, 100), (1, 400)):
        r = RankTrace(rank=rank, groups=[(0, 1)])
        r.mark(1, 0, 1_200)
        r.op("forward", 50, forward)
        call = r.op("c10d::allreduce_", 100 + forward, 10)
        work = r.add("annotation", "gloo:all_reduce", 110 + forward, 690 - forward, thread=WORKER)
        wait = None
        if recorded_wait:
            wait = r.op("wait", 120 + forward, 680 - forward)
        r.op("optimizer", 800, 300)
        r.operation("all_reduce", work, call, wait, group=0, seq=1)
        result.append(r)
    return result


def ends(j: Job) -> list[float]:
    return [j.start(t) for t in j.tasks(MARK) if not j.before(t, EdgeKind.WINDOW)]


@pytest.mark.parametrize("recorded_wait", [True, False])
def test_a_host_thread_reduces(tmp_path: Path, recorded_wait: bool) -> None:
    j = job(tmp_path, *gloo(recorded_wait))
    comm = {int(j.graph.rank[t]): t for t in j.tasks(COMMUNICATE)}
    assert [j.dur_us(comm[r]) for r in (0, 1)] == [290, 290]
    assert [j.start(comm[r]) for r in (0, 1)] == [pytest.approx(510, abs=10)] * 2
    assert ends(j) == [pytest.approx(1_200, abs=10)] * 2
    # Rank 1's forward takes 150 us longer: both ranks end 150 us later.
    before = ends(j)
    forward = j.tasks(TaskKind.HOST, "forward", rank=1)
    j.longer(forward[0], 150)
    assert ends(j) == [e + 150 for e in before]
    # Rank 0's forward has 300 us to spare.
    j.longer(forward[0], -150).longer(j.tasks(TaskKind.HOST, "forward", rank=0)[0], 250)
    assert ends(j) == before


def test_no_wait_is_host_work(tmp_path: Path) -> None:
    j = job(tmp_path, *gloo(recorded_wait=False))
    main = [t for t in j.tasks(TaskKind.HOST) if j.graph.lanes.number[j.graph.lane[t]] == MAIN]
    assert max(j.dur_us(t) for t in main if j.graph.rank[t] == 0) < 410


def test_messages_to_two_peers_do_not_wait_for_each_other(tmp_path: Path) -> None:
    # Rank 0 receives from 1 (late) and from 2 (early), both on one worker thread.
    ranks = [RankTrace(rank=i, groups=[(0, 1, 2)]) for i in range(3)]
    for r in ranks:
        r.mark(1, 0, 1_000)
    zero, one, two = ranks
    for peer, posted, end in ((1, 20, 800), (2, 40, 300)):
        call = zero.op("c10d::recv_", posted - 5, 8)
        work = zero.add("annotation", "gloo:recv", posted, end - posted, thread=WORKER + peer)
        zero.operation("recv", work, call, p2p=True, peer=peer, group=0)
    for r, at, end in ((one, 700, 800), (two, 250, 300)):
        r.op("forward", 5, at - 60)
        call = r.op("c10d::send", at - 5, 8)
        work = r.add("annotation", "gloo:send", at, end - at, thread=WORKER)
        r.operation("send", work, call, p2p=True, peer=0, group=0)
    j = job(tmp_path, *ranks)
    arrivals = {int(j.graph.measured_end_ns[t]): t for t in j.tasks(COMMUNICATE, rank=0)}
    second, first = (arrivals[k] for k in sorted(arrivals))
    early = j.end(second)
    j.longer(j.tasks(TaskKind.HOST, "forward", rank=1)[0], 400)
    assert j.end(second) == early
    assert j.end(first) == pytest.approx(1_200, abs=10)
