"""Which send meets which receive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.test_identity import Op, matched, ranks
from tests.replay.traces import job

from foretrace.replay.build.messages import Messages, pair_messages

PIPE = [(0, 1, 2)]


def send(end: float, peer: int, **values: Any) -> Op:
    return ("send", end, {"p2p": True, "peer": peer, "stream": 40 + peer, **values})


def recv(end: float, peer: int, **values: Any) -> Op:
    return ("recv", end, {"p2p": True, "peer": peer, "stream": 50 + peer, **values})


def test_activations_down_and_gradients_up(tmp_path: Path) -> None:
    # Three stages, two micro-batches; no sequence numbers.
    j = job(tmp_path, *ranks([
        [send(100, 1), send(200, 1), recv(700, 1), recv(900, 1)],
        [recv(100, 0), send(150, 2), recv(200, 0), send(300, 2), recv(500, 2), send(700, 0),
         recv(800, 2), send(900, 0)],
        [recv(150, 1), recv(300, 1), send(500, 1), send(800, 1)],
    ], [PIPE] * 3))  # fmt: skip
    assert matched(j) == [
        ["0.0", "1.0"], ["0.1", "1.2"], ["0.2", "1.5"], ["0.3", "1.7"],
        ["1.1", "2.0"], ["1.3", "2.1"], ["1.4", "2.2"], ["1.6", "2.3"],
    ]  # fmt: skip
    assert not j.build.unmatched
    assert {j.graph.groups[g] for g in j.graph.collectives.group.tolist()} == {(0, 1), (1, 2)}


def test_sequence_numbers_of_two_ranks_meet(tmp_path: Path) -> None:
    # Rank 1's window begins one message later.
    j = job(tmp_path, *ranks([
        [send(100, 1, seq=4), send(200, 1, seq=5), send(300, 1, seq=6)],
        [recv(200, 0, seq=5), recv(300, 0, seq=6), recv(400, 0, seq=7)],
    ], [[(0, 1)]] * 2))  # fmt: skip
    assert matched(j) == [["0.1", "1.0"], ["0.2", "1.1"]]
    assert j.build.unmatched == {0: 1, 1: 1}


def test_a_sequence_counts_all_messages_of_its_own_rank(tmp_path: Path) -> None:
    # A process group counts each rank's own messages, whoever the peer is: the number of a
    # send and that of its receive differ as soon as three ranks share a group.
    j = job(tmp_path, *ranks([
        [send(100, 1, group=0, seq=1), send(200, 1, group=0, seq=2)],
        [recv(100, 0, group=0, seq=1), send(150, 2, group=0, seq=2),
         recv(200, 0, group=0, seq=3), send(300, 2, group=0, seq=4)],
        [recv(150, 1, group=0, seq=1), recv(300, 1, group=0, seq=2)],
    ], [PIPE] * 3))  # fmt: skip
    assert matched(j) == [["0.0", "1.0"], ["0.1", "1.2"], ["1.1", "2.0"], ["1.3", "2.1"]]
    assert not j.build.unmatched


def test_unmatched_messages_are_listed(tmp_path: Path) -> None:
    j = job(tmp_path, *ranks([
        [send(100, 1), send(200, 2)],
        [recv(100, 0), recv(400, 0)],
        [],
    ], [PIPE] * 3))  # fmt: skip
    assert matched(j) == [["0.0", "1.0"]]
    assert j.build.unmatched == {0: 1, 1: 1}


def test_messages_of_two_groups_do_not_meet(tmp_path: Path) -> None:
    groups = [(0, 1), (0, 1, 2)]
    j = job(tmp_path, *ranks([
        [send(100, 1, group=0), send(200, 1, group=1)],
        [recv(200, 0, group=1), recv(300, 0, group=0)],
    ], [groups] * 2))  # fmt: skip
    assert matched(j) == [["0.0", "1.1"], ["0.1", "1.0"]]


def test_an_operation_without_a_peer_is_not_a_message(tmp_path: Path) -> None:
    j = job(tmp_path, *ranks([[send(100, 1)], [recv(100, 0), ("recv", 300, {"p2p": True})]],
                             [[(0, 1)]] * 2))  # fmt: skip
    assert matched(j) == [["0.0", "1.0"]]
    assert j.build.unmatched == {1: 1}


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], int]:
    """Messages (from, to, group) of three to five ranks in order of time."""
    world = draw(st.integers(2, 5))
    rank = st.integers(0, world - 1)
    sent = draw(st.lists(st.tuples(rank, rank, st.integers(0, 1)), max_size=25))
    return [(a, b, g) for a, b, g in sent if a != b], world


@given(exchanges())
def test_random_exchanges(exchange: tuple[list[tuple[int, int, int]], int]) -> None:
    """Each rank issues its ends of the messages in the job's order."""
    sent, world = exchange
    rows = [
        (rank, sends, peer, group, number)
        for me in range(world)
        for number, (a, b, group) in enumerate(sent)
        for rank, sends, peer in ((a, True, b), (b, False, a))
        if rank == me
    ]
    columns = list(zip(*rows, strict=True)) or [()] * 5
    rank, sends, peer, group, number = (np.array(c, np.int64) for c in columns)
    found = pair_messages(
        Messages(
            rank=rank.astype(np.int32),
            operation=np.arange(len(rank)),
            sends=sends.astype(bool),
            peer=peer.astype(np.int32),
            group=group.astype(np.int32),
            seq=np.full(len(rank), -1, np.int64),
        )
    )
    assert sorted(number[found[:, 0]].tolist()) == list(range(len(sent)))
    assert (number[found[:, 0]] == number[found[:, 1]]).all()
    assert sends[found[:, 0]].all()
    assert not sends[found[:, 1]].any()
