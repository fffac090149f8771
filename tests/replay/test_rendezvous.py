"""Waiting apart from execution: who waits for whom in a collective, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.replay.traces import COMM, US, Job, RankTrace, job

from foretrace.replay.accuracy import collective_waiting
from foretrace.replay.graph import EdgeKind, TaskKind
from foretrace.replay.timeline import measured

ARRIVE, COMMUNICATE, JOIN, KERNEL = (
    TaskKind.ARRIVE,
    TaskKind.COMM,
    TaskKind.JOIN,
    TaskKind.KERNEL,
)
NAME = {"all_reduce": "ncclDevKernel_AllReduce", "broadcast": "ncclDevKernel_Broadcast"}


def ranks(
    kind: str, arrivals: list[float], ends: list[float], p2p: bool = False, **values: object
) -> list[RankTrace]:
    """One operation of all ranks behind a kernel each, and a kernel behind it on its stream."""
    result = []
    for rank, (arrive, end) in enumerate(zip(arrivals, ends, strict=True)):
        r = RankTrace(rank=rank, groups=[tuple(range(len(arrivals)))])
        r.mark(1, 0, 100)
        r.kernel("before", 0, 0, arrive, stream=COMM)
        by = r.call("launch", 10, 5)
        work = r.work(NAME.get(kind, "ncclDevKernel_SendRecv"), arrive, end - arrive, COMM, by)
        r.kernel("after", 20, end, 10, stream=COMM)
        r.operation(kind, work, group=0, seq=1, p2p=p2p, **values)
        result.append(r)
    return result


def waits(j: Job) -> list[float]:
    """Replayed waiting per rank, us."""
    comm, waited = collective_waiting(j.replayed())
    by_rank = dict(zip(j.graph.rank[comm].tolist(), waited.tolist(), strict=True))
    return [by_rank[r] / US for r in sorted(by_rank)]


def executions(j: Job) -> list[float]:
    """Execution per rank, us."""
    return [j.dur_us(t) for t in sorted(j.tasks(COMMUNICATE), key=lambda t: int(j.graph.rank[t]))]


def starts_after(j: Job) -> list[float]:
    return [j.start(j.task(KERNEL, "after", rank=r)) for r in range(len(j.tasks(COMMUNICATE)))]


def test_all_wait_for_the_last(tmp_path: Path) -> None:
    # Ranks arrive at 100, 250 and 400 and leave at 500, 502 and 501.
    j = job(tmp_path, *ranks("all_reduce", [100, 250, 400], [500, 502, 501]))
    shift = [j.build.alignment.offset_ns[r] / US for r in range(3)]
    assert max(abs(s) for s in shift) <= 2
    exact = [pytest.approx(v, abs=2) for v in (300, 150, 0)]
    assert waits(j) == exact
    assert executions(j) == [pytest.approx(v, abs=4) for v in (100, 102, 101)]
    assert len(j.tasks(JOIN)) == 1
    # The last rank comes 70 us earlier: all leave 70 earlier.
    before = starts_after(j)
    j.longer(j.task(KERNEL, "before", rank=2), -70)
    assert starts_after(j) == [t - 70 for t in before]
    # Now the second rank comes last, 430.
    j.longer(j.task(KERNEL, "before", rank=1), 180)
    assert waits(j)[1] == 0
    assert waits(j)[0] == pytest.approx(330, abs=2)


def test_execution_alone_is_a_duration(tmp_path: Path) -> None:
    j = job(tmp_path, *ranks("all_reduce", [100, 9_000], [9_050, 9_050]))
    assert executions(j) == [50, 50]  # rank 0's kernel took 8,950 us
    assert waits(j) == [8_900, 0]


def test_a_slower_network_costs_execution_only(tmp_path: Path) -> None:
    j = job(tmp_path, *ranks("all_reduce", [100, 400], [500, 500]))
    for task in j.tasks(COMMUNICATE):
        j.longer(task, 100)
    assert waits(j) == [300, 0]
    assert starts_after(j) == [600, 600]


def test_a_broadcasts_sender_may_leave_early(tmp_path: Path) -> None:
    # The root is done at 150, long before the last receiver comes at 400.
    j = job(tmp_path, *ranks("broadcast", [100, 200, 400], [150, 420, 430]))
    assert executions(j) == [50, 20, 30]
    assert waits(j) == [0, 200, 0]
    j.longer(j.task(KERNEL, "before", rank=2), 500)
    assert starts_after(j) == [150, 920, 930]


def test_a_broadcasts_receivers_wait_for_the_root_and_not_for_each_other(tmp_path: Path) -> None:
    # Rank 1 has its data at 220; rank 2 comes later and changes nothing for it.
    j = job(tmp_path, *ranks("broadcast", [100, 200, 400], [150, 220, 430], peer=0))
    assert executions(j) == [50, 20, 30]
    j.longer(j.task(KERNEL, "before", rank=2), 500)
    assert starts_after(j)[:2] == [150, 220]
    j.longer(j.task(KERNEL, "before", rank=0), 1_000)
    assert starts_after(j)[1] >= 1_100


def test_a_reduces_members_may_leave_when_they_have_sent(tmp_path: Path) -> None:
    # The root comes first and has the sum at 450; rank 1 is rid of its part at 220.
    j = job(tmp_path, *ranks("reduce", [100, 200, 400], [450, 220, 430], peer=0))
    assert executions(j) == [50, 20, 30]
    assert waits(j) == [300, 0, 0]
    j.longer(j.task(KERNEL, "before", rank=2), 500)
    assert starts_after(j) == [950, 220, 930]


def test_a_fused_kernel_waits_for_its_own_partners_only(tmp_path: Path) -> None:
    # A pipeline of three: rank 1 sends to rank 2 and receives from rank 0 in one kernel.
    middle = [("recv", 0), ("send", 2)]
    peers = [[("send", 1)], middle, [("recv", 1)]]
    recorded = []
    for rank, (arrive, end) in enumerate(zip([100, 200, 400], [250, 450, 450], strict=True)):
        r = RankTrace(rank=rank, groups=[(0, 1, 2)])
        r.mark(1, 0, 100)
        r.kernel("before", 0, 0, arrive, stream=COMM)
        work = r.work("ncclDevKernel_SendRecv", arrive, end - arrive, COMM, r.call("launch", 10, 5))
        r.kernel("after", 20, end, 10, stream=COMM)
        for kind, peer in peers[rank]:
            r.operation(kind, work, group=0, p2p=True, peer=peer)
        recorded.append(r)
    j = job(tmp_path, *recorded)
    # Rank 0 leaves 50 after rank 1 has come, whatever rank 2 does.
    assert executions(j) == [50, 50, 50]
    assert starts_after(j) == [250, 450, 450]
    j.longer(j.task(KERNEL, "before", rank=2), 1_000)
    assert starts_after(j) == [250, 1_450, 1_450]
    j.longer(j.task(KERNEL, "before", rank=0), 2_000)
    assert starts_after(j) == [2_150, 2_150, 1_450]


def pair(arrivals: list[float], ends: list[float]) -> list[RankTrace]:
    sender, receiver = ranks("send", arrivals, ends, p2p=True)
    sender.operations[0] |= {"peer": 1}
    receiver.operations[0] |= {"kind": "recv", "peer": 0}
    return [sender, receiver]


def test_send_and_receive_start_when_both_are_there(tmp_path: Path) -> None:
    j = job(tmp_path, *pair([100, 300], [340, 350]))
    assert executions(j) == [40, 50]
    assert waits(j) == [200, 0]
    assert {int(j.graph.edge_kind[e]) for t in j.tasks(COMMUNICATE)
            for e in range(j.graph.pred_ptr[t], j.graph.pred_ptr[t + 1])} == {
        EdgeKind.RENDEZVOUS, EdgeKind.PEER}  # fmt: skip
    j.longer(j.task(KERNEL, "before", rank=1), 60)
    assert starts_after(j) == [400, 410]


def test_a_small_send_ends_before_the_receiver_comes(tmp_path: Path) -> None:
    j = job(tmp_path, *pair([100, 300], [130, 320]))
    assert executions(j) == [30, 20]
    assert waits(j) == [0, 0]
    j.longer(j.task(KERNEL, "before", rank=1), 1_000)
    assert starts_after(j) == [130, 1_320]


def test_so_does_one_that_is_recorded_as_a_fused_kernel(tmp_path: Path) -> None:
    # Kernel names do not tell a send from a receive; peers and directions are not recorded.
    j = job(tmp_path, *ranks("send_recv", [100, 300], [130, 320], p2p=True))
    assert executions(j) == [30, 20]
    assert waits(j) == [0, 0]


def test_a_receiver_waits_for_a_small_send(tmp_path: Path) -> None:
    j = job(tmp_path, *pair([100, 300], [130, 320]))
    j.longer(j.task(KERNEL, "before", rank=0), 1_000)
    assert starts_after(j)[1] >= 1_100


def test_a_group_of_which_one_rank_was_not_recorded(tmp_path: Path) -> None:
    # Two of three ranks: the recorded ones still wait for each other; that is said.
    present = ranks("all_reduce", [100, 250, 400], [500, 500, 500])[:2]
    j = job(tmp_path, *present)
    assert waits(j) == [150, 0]
    assert len(j.tasks(JOIN)) == 1
    assert j.build.stood_in == {0: 1, 1: 1}
    assert not j.build.unmatched


def test_a_rank_alone_keeps_its_whole_operation(tmp_path: Path) -> None:
    j = job(tmp_path, ranks("all_reduce", [100, 250], [500, 500])[0])
    assert executions(j) == [400]
    assert j.build.unmatched == {0: 1}
    assert not j.build.stood_in
    assert not j.tasks(JOIN)


def test_measured_waiting_is_replayed_waiting(tmp_path: Path) -> None:
    j = job(tmp_path, *ranks("all_reduce", [100, 250, 400], [500, 500, 500]))
    comm, waited = collective_waiting(measured(j.graph))
    assert dict(zip(j.graph.rank[comm].tolist(), (waited / US).tolist(), strict=True)) == {
        0: 300, 1: 150, 2: 0}  # fmt: skip
    assert waits(j) == [300, 150, 0]
